/// What a node of a group keeps of its history, be it primary or follower: the log, which epoch wrote which
/// of its entries, and how much of it is committed; and the readers that wait for an entry. It stays while
/// roles change, so nobody who waits here is lost with one.
/// Thread:   owner core
#pragma once

#include <cstdint>
#include <memory>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/replication/epoch_line.h>
#include <tidelock/replication/log.h>
#include <tidelock/replication/lsn_list.h>

namespace tidelock {

class GroupLog {
 public:
  explicit GroupLog(std::unique_ptr<Log> log);
  /// No fiber may be waiting.
  ~GroupLog();
  GroupLog(const GroupLog&) = delete;
  GroupLog& operator=(const GroupLog&) = delete;

  /// What is appended is told by appended(); it is cut or begun anew by the functions below only.
  [[nodiscard]] Log& log() { return *log_; }
  [[nodiscard]] const Log& log() const { return *log_; }
  [[nodiscard]] const EpochLine& line() const { return line_; }
  [[nodiscard]] Lsn last_lsn() const { return log_->last_lsn(); }
  /// A prefix of this log that no later primary lacks. Never falls.
  [[nodiscard]] Lsn commit_lsn() const { return commit_; }
  /// The table ran out of memory amid entries of which none is in the log: it may show some of them. So the
  /// log may promise, but to lead or to follow a stream takes a snapshot first.
  [[nodiscard]] bool spoiled() const { return spoiled_; }

  /// The entry with the next LSN is an epoch's no-op.
  void begin_epoch(Epoch epoch);
  /// Entries were appended, and readers see what they did.
  void appended() {
    if (by_lsn_.reached(log_->last_lsn())) wake_appended();
  }
  /// A primary of whose log this one is a prefix told that. No more counts than is here.
  void committed(Lsn lsn);
  /// A put of which some pieces are in the log will not be finished.
  void cut_to_whole() { log_->cut_to_whole(); }
  /// Table, log and line are another's from now on: a snapshot of `lsn`.
  /// Errors:   malformed: what is committed here is not in that line; nothing has changed then
  Status replace(const EpochLine& line, Lsn lsn);
  void spoil() { spoiled_ = true; }
  /// What is here is of no history any more.
  void forget();

  /// Suspends until the entry is here and visible. Suspends: yes (fiber)
  /// Errors:   history_lost: the log goes, or went, on without it, or its epoch is too long ago;
  ///           deadline_exceeded, cancelled; closed
  Status wait_visible(Epoch epoch, Lsn lsn, Instant deadline);
  /// Likewise, until it is committed as far as this node knows.
  Status wait_committed(Epoch epoch, Lsn lsn, Instant deadline);
  /// Those who wait judge again; for whoever changes a role.
  void line_changed();
  /// From here on nobody waits: what is not here yet is not awaited.
  void close() {
    closed_ = true;
    line_changed();
  }

 private:
  struct Waiter {
    Lsn lsn{};
    WaitQueue queue;
    bool woken = false;
    Waiter* next = nullptr;
    Waiter* previous = nullptr;
  };
  Status wait(Epoch epoch, Lsn lsn, bool committed, Instant deadline);
  void wake_appended();
  static void wake(LsnList<Waiter>& waiters, Lsn lsn);

  std::unique_ptr<Log> log_;
  EpochLine line_;
  Lsn commit_{};
  bool spoiled_ = false;
  bool closed_ = false;
  LsnList<Waiter> by_lsn_;     ///< for an entry to come in the newest epoch, or an older one
  LsnList<Waiter> by_commit_;  ///< for one to be committed
  LsnList<Waiter> by_line_;    ///< for an epoch that is not here yet
};

}  // namespace tidelock
