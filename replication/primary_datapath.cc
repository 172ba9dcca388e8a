// What happens every turn: who is waiting for acknowledgements or room hears of it. The sender does the rest.
#include <tidelock/base/check.h>

#include "primary_state.h"

namespace tidelock {

std::uint32_t Primary::poll(std::uint32_t budget) { return state_->poll(budget); }
void Primary::flush() { state_->flush(); }
void Primary::arm() { state_->sender.arm(); }
void Primary::disarm() { state_->sender.disarm(); }
bool Primary::has_work() const { return state_->sender.has_work(); }

std::uint32_t Primary::State::poll(std::uint32_t budget) {
  admitted_bytes = 0;
  std::uint32_t done = sender.poll(budget);
  if (sender.take_acknowledged()) {
    measure_all();
    commit_in_group();
    wake_reached();
  }
  if (room_head != nullptr || fragment_waiter != nullptr) {
    make_room_for_next();
    wake_room();  // the one before may have given up, or written nothing
  }
  if (sender.sweep_closed()) ++done;
  if (holds_writes() && step_handover() != Handover::Step::hold) handing_over->queue.notify_one();
  return done;
}

void Primary::State::flush() {
  const bool served = serves();
  commit_in_group();
  if (!served && serves()) wake_reached();
  if (lease_waiters.head() != nullptr) wake_leases();
  set_gauge(stats.commit_lsn, commit_lsn().value);
  sender.flush();
}

}  // namespace tidelock
