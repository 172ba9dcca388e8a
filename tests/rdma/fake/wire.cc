// The order of things: steps, what is late, and whose turn it is.
#include <poll.h>

#include "world.h"

namespace tidelock::fake {

void after(World& w, std::uint64_t steps, std::function<void()> run) {
  w.timed.emplace(++w.seq, Timed{w.tick + steps, std::move(run)});
}

void update_head(World& w, Qp& qp) {
  for (auto entry = w.heads.begin(); entry != w.heads.end(); ++entry) {
    if (entry->second != qp.serial) continue;
    w.heads.erase(entry);
    break;
  }
  if (!qp.sq.empty() && qp.attr.qp_state == IBV_QPS_RTS && !qp.silent) w.heads[qp.sq.front().seq] = qp.serial;
}

/// The first thing in global order that is due and has not been tried in this step.
bool run_candidate(World& w) {
  auto late = w.timed.begin();
  while (late != w.timed.end() && late->second.due > w.tick) ++late;
  auto head = w.heads.begin();
  while (head != w.heads.end() && w.qps.find(head->second)->blocked_tick == w.tick) ++head;
  if (late != w.timed.end() && (head == w.heads.end() || late->first < head->first)) {
    const std::function<void()> run = std::move(late->second.run);
    w.timed.erase(late);
    run();
    return true;
  }
  if (head == w.heads.end()) return false;
  Qp& qp = *w.qps.find(head->second);
  if (!run_head(w, qp)) qp.blocked_tick = w.tick;
  return true;
}

void run_tick(World& w) {
  ++w.tick;
  while (run_candidate(w)) {
  }
}

void pump(World& w) {
  if (w.held) return;
  if (w.timed.empty() && w.heads.empty()) {
    ++w.tick;
    return;
  }
  run_tick(w);
}

bool wait_until(World& w, Lock& lock, const EventFd& event_fd, const std::function<bool()>& done) {
  constexpr int kStepsMax = 100000;
  pump(w);
  while (!done()) {
    if (!event_fd.blocking()) return false;
    // Who blocks lets time pass; and where nothing is on its way, another thread must bring it.
    for (int i = 0; i < kStepsMax && !done() && !w.held && !(w.timed.empty() && w.heads.empty()); ++i)
      run_tick(w);
    if (done()) break;
    lock.unlock();
    pollfd waited{event_fd.fd(), POLLIN, 0};
    poll(&waited, 1, -1);
    lock.lock();
  }
  return true;
}

}  // namespace tidelock::fake
