#include "host.h"

#include <chrono>
#include <thread>

#include <tidelock/engine/errc.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/mailbox.h>

#include "shard.h"

namespace tidelock {
namespace {

/// The owner core answers at the deadline itself; only if it does not come to it is the call abandoned.
constexpr Duration kGrace = milliseconds(250);

std::chrono::steady_clock::time_point to_chrono(Instant when) {
  // Both read CLOCK_MONOTONIC.
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(when.ns));
}

void start_task(HostTask& task, Reactor&) {
  Call& call = static_cast<Call&>(task);
  call.shard->start(call);
}

void host_completed(Call& call) {
  bool abandoned = false;
  {
    const std::lock_guard lock(call.mutex);
    abandoned = call.abandoned;
    call.finished = true;
    call.changed.notify_one();
  }
  if (abandoned) call.pool->give_back(call);
}

void async_completed(Call& call) {
  const auto callback = call.callback;
  void* const context = call.context;
  const Result<Receipt> result =
      call.status ? Result<Receipt>(call.receipt) : Result<Receipt>(call.status.error());
  call.pool->give_back(call);  // first, so that the callback can start the next
  callback(context, result);
}

/// Back on the caller's core.
void fiber_arrived(Call& call) {
  if (call.abandoned) return call.slab->give_back(call);
  call.finished = true;
  call.reply.notify_one();
}

void fiber_completed(Call& call) {
  const auto reply = [message = &call](Reactor&) { fiber_arrived(*message); };
  if (Reactor::current()->mailbox()->try_post(call.origin, reply)) return;
  // The lane is full. The submit queue is intrusive and never is, so a reply never waits.
  call.run = [](HostTask& task, Reactor&) { fiber_arrived(static_cast<Call&>(task)); };
  const Status submitted = call.group->submit(call.origin, call);
  TL_ASSERT(submitted.has_value(), "the group outlives the calls of its fibers");
}

}  // namespace

Ticket::~Ticket() {
  if (call_ == nullptr || (launched_ && abandon())) return;
  if (call_->pool != nullptr) {
    call_->pool->give_back(*call_);
  } else {
    call_->slab->give_back(*call_);
  }
}

/// Whoever completes it gives it back. False if it was completed already.
bool Ticket::abandon() {
  Call& call = *call_;
  if (call.pool == nullptr) return call.abandoned = !call.finished;
  const std::lock_guard lock(call.mutex);
  return call.abandoned = !call.finished;
}

Status Ticket::launch() {
  Call& call = *call_;
  if (call.pool != nullptr) {
    call.completed = &host_completed;
    call.run = &start_task;
    TL_TRY(call.group->submit(call.shard->core(), call));
  } else {
    call.completed = &fiber_completed;
    const auto request = [message = &call](Reactor&) { message->shard->start(*message); };
    TL_TRY(Reactor::current()->mailbox()->post(call.shard->core(), request, call.deadline));
  }
  launched_ = true;
  return {};
}

Status Ticket::await() { return call_->pool != nullptr ? await_on_host() : await_in_fiber(); }

Status Ticket::send() {
  call_->completed = &async_completed;
  call_->run = &start_task;
  TL_TRY(call_->group->submit(call_->shard->core(), *call_));
  call_ = nullptr;
  return {};
}

Status Ticket::await_on_host() {
  Call& call = *call_;
  std::unique_lock lock(call.mutex);
  const auto until = to_chrono(call.deadline + kGrace);
  if (call.changed.wait_until(lock, until, [&] { return call.finished; })) return {};
  call.abandoned = true;
  call_ = nullptr;
  return ReactorErrc::deadline_exceeded;
}

Status Ticket::await_in_fiber() {
  Call& call = *call_;
  while (!call.finished) {
    const Wakeup wakeup = call.reply.wait(call.deadline + kGrace);
    if (wakeup == Wakeup::notified || call.finished) continue;
    call.abandoned = true;
    call_ = nullptr;
    return to_status(wakeup);
  }
  return {};
}

Host::Host(ReactorGroup& group, std::uint32_t host_slots, std::uint32_t fiber_slots)
    : group_(group), pool_(host_slots) {
  for (std::uint32_t i = 0; i < group.size(); ++i) slabs_.push_back(std::make_unique<CallSlab>(fiber_slots));
}

Result<Reactor*> Host::caller() const {
  Reactor* const here = Reactor::current();
  if (here == nullptr) return here;
  const bool ours = here->id().value < group_.size() && &group_.reactor(here->id()) == here;
  if (ours && this_fiber::exists()) return here;
  return Error(ReactorErrc::not_on_reactor,
               ours ? "call the engine from a fiber (spawn_on), not from the loop, which must not wait"
                    : "another engine's reactor must not wait for this one; use put_async or spawn_on");
}

Result<Ticket> Host::take(Reactor* caller, Instant deadline) {
  if (caller != nullptr) {
    TL_TRY(Call * call, slabs_[caller->id().value]->take());
    call->group = &group_;
    call->origin = caller->id();
    call->deadline = deadline;
    return Ticket(*call);
  }
  for (;;) {
    auto ticket = try_take();
    if (ticket || !(ticket.error() == EngineErrc::busy) || SystemClock().now() >= deadline) {
      if (ticket) (*ticket)->deadline = deadline;
      return ticket;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

Result<Ticket> Host::try_take() {
  TL_TRY(Call * call, pool_.take());
  call->group = &group_;
  return Ticket(*call);
}

}  // namespace tidelock
