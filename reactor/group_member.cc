#include "group_member.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <pthread.h>
#include <system_error>
#include <unistd.h>

#include <sys/eventfd.h>

#include <tidelock/base/check.h>
#include <tidelock/base/counter.h>
#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/fence.h>

namespace tidelock {

namespace {

/// FdWatches and other long-lived polls take ring slots beside the reactor's own operations.
constexpr std::uint32_t kWatchSlots = 64;
/// While stopping, reactors look around this often instead of parking.
constexpr Duration kNap = milliseconds(1);
/// A reactor that has its core for itself looks that often in one idle turn.
constexpr std::uint32_t kIdleLooks = 8;

}  // namespace

GroupMember::GroupMember(GroupShared& shared, CoreId id)
    : shared_(shared),
      id_(id),
      flag_(shared.directory.park_flag(id)),
      random_(shared.options.seed + std::uint64_t{id.value} * 0x9e3779b97f4a7c15ULL) {
  shared.directory.set_waker(id, this);
}

GroupMember::~GroupMember() {
  if (event_fd_ >= 0) ::close(event_fd_);
}

Status GroupMember::start_thread() {
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return Error::from_errno(error.code().value(), "no thread for reactor " + std::to_string(id_.value) +
                                                       ": raise the limit of processes (ulimit -u) or of "
                                                       "the control group (pids.max), or use fewer reactors");
  }
  return {};
}

void GroupMember::run() {
  ::pthread_setname_np(::pthread_self(), ("reactor " + std::to_string(id_.value)).c_str());
  if (await_start(set_up())) {
    drive();
    drain();
  }
  stall_.reset();
  event_watch_.reset();
  if (reactor_ != nullptr) reactor_->remove_source(host_queue_);
  mailbox_.reset();
  reactor_.reset();
  ring_.reset();
  ended_.store(true, std::memory_order_release);
  const std::lock_guard lock(shared_.mutex);
  ++shared_.ended;
  shared_.changed.notify_all();
}

Status GroupMember::set_up() {
  const ReactorGroupOptions& options = shared_.options;
  if (!shared_.cpus.empty()) TL_TRY(pin_this_thread(shared_.cpus[id_.value]));
  ReactorOptions reactor_options = options.reactor;
  reactor_options.id = id_;
  if (!options.overprovisioned) reactor_options.idle_looks = std::max(reactor_options.idle_looks, kIdleLooks);
  TL_TRY(ring_, UringBackend::create({.entries = options.ring_entries,
                                      .max_operations = reactor_options.max_operations + kWatchSlots,
                                      .allow_msg_ring = options.allow_msg_ring}));
  ring_fd_ = ring_->fd();
  notices_ = ring_->notices();
  TL_TRY(reactor_, Reactor::create(reactor_options, clock_, *ring_, random_));
  mailbox_ = std::make_unique<Mailbox>(*reactor_, shared_.directory, options.mailbox);
  host_queue_.attach(*reactor_);
  reactor_->add_source(host_queue_);
  if (options.stall_signal != 0) {
    TL_TRY(stall_, StallDetector::start(options.stall_signal, reactor_options.stall_threshold));
  }
  return set_up_wakeups();
}

Status GroupMember::set_up_wakeups() {
  const ReactorGroupOptions& options = shared_.options;
  const UringFeatures& features = ring_->features();
  const bool needs_ring =
      options.wake == WakeCarrier::msg_ring || options.mailbox.carrier == Carrier::msg_ring;
  if (needs_ring && !features.msg_ring) {
    return Error::from_errno(EOPNOTSUPP,
                             "the kernel has no IORING_OP_MSG_RING (Linux 5.18): use the eventfd carrier");
  }
  wakes_by_ring_ = features.msg_ring && options.wake != WakeCarrier::eventfd;
  ring_->on_message(
      [](void* context, std::uint64_t data) { static_cast<Mailbox*>(context)->on_announcement(data); },
      mailbox_.get());
  const bool host_wakes_by_ring = wakes_by_ring_ && features.host_msg_ring;
  if (host_wakes_by_ring && options.mailbox.carrier != Carrier::eventfd) return {};

  event_fd_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event_fd_ < 0) {
    return Error::from_errno(errno, "eventfd for wakeups: raise the limit of open files (ulimit -n)");
  }
  event_watch_ = std::make_unique<FdWatch>();
  return event_watch_->start(
      *reactor_, event_fd_, POLLIN,
      [](void* context, std::uint32_t) { static_cast<GroupMember*>(context)->drain_event(); }, this);
}

/// All rings exist before the first message, because a sender reads its target's descriptor without asking.
bool GroupMember::await_start(const Status& status) {
  std::unique_lock lock(shared_.mutex);
  if (!status && shared_.set_up) shared_.set_up = status;
  ++shared_.ready;
  shared_.changed.notify_all();
  shared_.changed.wait(lock, [this] { return shared_.start != GroupShared::Start::waiting; });
  const bool go = shared_.start == GroupShared::Start::go;
  lock.unlock();
  if (reactor_ == nullptr) return go;
  if (!go) {  // what set-up has put into the kernel has to come back before the ring goes
    if (event_watch_ != nullptr) event_watch_->stop();
    while (!reactor_->idle()) {
      reactor_->turn();
      nap();
    }
    return false;
  }
  reactor_->turn();
  lock.lock();
  ++shared_.turning;
  shared_.changed.notify_all();
  return true;
}

bool GroupMember::turn(Instant* next) {
  if (stall_ != nullptr) stall_->tick();
  const std::uint64_t before = reactor_->stats().busy_turns.load(std::memory_order_relaxed);
  *next = reactor_->turn();
  return *next == Instant{0} || reactor_->stats().busy_turns.load(std::memory_order_relaxed) != before;
}

void GroupMember::drive() {
  const Duration spin = shared_.options.overprovisioned ? Duration{0} : shared_.options.spin;
  Instant busy_at = reactor_->now();
  while (!shared_.stopping.load(std::memory_order_relaxed)) {
    Instant next;
    if (turn(&next)) {
      busy_at = reactor_->now();
    } else if (reactor_->now() - busy_at < spin) {
      spin_hint();
    } else {
      park(next);
      busy_at = reactor_->now();
    }
  }
}

void GroupMember::park(Instant next) {
  reactor_->arm_sources();
  // Its fence pairs with the ones in Mailbox::flush, submit() and close_to_hosts().
  const bool asleep = flag_.prepare(
      [this] { return shared_.stopping.load(std::memory_order_relaxed) || reactor_->has_work(); });
  if (asleep) {
    bump(park_stats_.parks);
    if (stall_ != nullptr) stall_->about_to_sleep();
    const Duration to_timer = next == Instant::never() ? Duration{INT64_MAX} : next - reactor_->refresh_now();
    const Duration limit = std::min(to_timer, shared_.options.back_stop);
    const WaitEnd end = sleep(limit);
    note_return(end == WaitEnd::timeout && limit == shared_.options.back_stop);
    flag_.finish();
  }
  reactor_->disarm_sources();
  reactor_->refresh_now();
}

/// A signal, the stall detector's own for one, is no reason to turn: that would arm its timer again, which
/// would send the next. While the flag is up nobody has sent a wakeup, so it is safe to look and sleep on.
WaitEnd GroupMember::sleep(Duration limit) {
  const Instant began = reactor_->now();
  Duration left = limit;
  while (left.ns > 0) {
    const WaitEnd end = ring_->wait(left);
    if (end != WaitEnd::interrupted) return end;
    if (!flag_.raised() || shared_.stopping.load(std::memory_order_relaxed) || reactor_->has_work())
      return end;
    left = limit - (reactor_->refresh_now() - began);
  }
  return WaitEnd::timeout;
}

void GroupMember::note_return(bool back_stop) {
  if (!flag_.raised()) {
    bump(park_stats_.wakeups_received);
    return;
  }
  if (!back_stop) return;
  bump(park_stats_.back_stops);
  // The flag is read last: a sender that has settled without claiming it will never send a wakeup.
  const bool settled = mailbox_->has_settled_work() || host_queue_.has_settled_work();
  if (settled && flag_.raised()) bump(park_stats_.lost_wakeups);
}

// ---- shutdown ----

StopBarrier::Standing GroupMember::standing() const {
  const MailboxStats& mail = mailbox_->stats();
  return {.rests = reactor_->idle() && host_queue_.drained() && !mailbox_->has_work(),
          .sent = mail.sent.load(std::memory_order_relaxed),
          .received = mail.received.load(std::memory_order_relaxed)};
}

void GroupMember::nap() {
  if (stall_ != nullptr) stall_->about_to_sleep();
  ring_->wait(kNap);
}

/// A member whose work is done keeps serving the others: what they still have to do may give it new work. No
/// reactor and no ring goes before nobody can send to it any more.
void GroupMember::drain() {
  if (event_watch_ != nullptr) event_watch_->stop();
  do {
    if (event_watch_ != nullptr) mailbox_->on_event();  // in the watch's place
    reactor_->cancel_all();  // each round: a late message may have started another fiber
    Instant next;
    if (!turn(&next)) nap();
  } while (!shared_.stop_barrier.report(id_.value, standing()));
}

std::string GroupMember::describe() const { return "reactor " + std::to_string(id_.value) + " did not end"; }

Reactor& GroupMember::reactor() {
  TL_ASSERT(reactor_ != nullptr, "the reactors are gone after stop()");
  return *reactor_;
}

}  // namespace tidelock
