#include <algorithm>
#include <string>
#include <utility>

#include <tidelock/base/check.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/group_log.h>

namespace tidelock {
namespace {

constexpr Lsn kEveryLsn{~std::uint64_t{0}};

}  // namespace

GroupLog::GroupLog(std::unique_ptr<Log> log) : log_(std::move(log)) {}

GroupLog::~GroupLog() {
  const bool waited_for =
      by_lsn_.head() != nullptr || by_commit_.head() != nullptr || by_line_.head() != nullptr;
  TL_ASSERT(!waited_for, "a fiber still waits for an LSN");
}

void GroupLog::begin_epoch(Epoch epoch) {
  line_.begin(epoch, last_lsn().next());
  line_changed();
}

void GroupLog::committed(Lsn lsn) {
  lsn = std::min(lsn, last_lsn());
  if (lsn <= commit_) return;
  commit_ = lsn;
  wake(by_commit_, commit_);
}

Status GroupLog::replace(const EpochLine& line, Lsn lsn) {
  const auto mine = line_.epoch_of(commit_);
  const auto theirs = line.epoch_of(commit_);
  if (lsn < commit_ || (mine && theirs && *mine != *theirs)) {
    return Error(ReplicationErrc::malformed, "a snapshot without what is committed here, up to LSN " +
                                                 std::to_string(commit_.value) +
                                                 ": this node or that one has lost its history");
  }
  log_->begin_anew(lsn);
  line_.assign(line.starts());
  spoiled_ = false;
  line_changed();
  return {};
}

void GroupLog::forget() {
  log_->begin_anew({});
  line_ = {};
  commit_ = {};
  spoiled_ = false;
  line_changed();
}

Status GroupLog::wait_visible(Epoch epoch, Lsn lsn, Instant deadline) {
  return wait(epoch, lsn, false, deadline);
}
Status GroupLog::wait_committed(Epoch epoch, Lsn lsn, Instant deadline) {
  return wait(epoch, lsn, true, deadline);
}

/// An LSN names an entry only with its epoch, and the line may have changed during each suspension.
Status GroupLog::wait(Epoch epoch, Lsn lsn, bool committed, Instant deadline) {
  while (lsn != Lsn{}) {
    const EntryStanding standing = line_.standing(epoch, lsn, last_lsn());
    if (standing == EntryStanding::cut) {
      return Error(ReplicationErrc::history_lost,
                   "LSN " + std::to_string(lsn.value) + " of epoch " + std::to_string(epoch.counter) + "." +
                       std::to_string(epoch.node) + " is not in what this node has");
    }
    if (standing == EntryStanding::held && (!committed || lsn <= commit_)) return {};
    if (closed_) return ReactorErrc::closed;
    Waiter waiter;
    waiter.lsn = lsn;
    LsnList<Waiter>& waiters = epoch > line_.last_epoch() ? by_line_ : committed ? by_commit_ : by_lsn_;
    waiters.insert(waiter);
    const Wakeup wakeup = waiter.queue.wait(deadline);
    if (waiter.woken) continue;
    waiters.remove(waiter);
    return to_status(wakeup);
  }
  return {};
}

void GroupLog::line_changed() {
  wake(by_line_, kEveryLsn);
  wake(by_lsn_, kEveryLsn);
  wake(by_commit_, kEveryLsn);
}

void GroupLog::wake_appended() { wake(by_lsn_, last_lsn()); }

void GroupLog::wake(LsnList<Waiter>& waiters, Lsn lsn) {
  while (Waiter* const waiter = waiters.pop_reached(lsn)) {
    waiter->woken = true;
    waiter->queue.notify_one();
  }
}

}  // namespace tidelock
