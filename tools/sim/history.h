/// What clients asked a primary for, when, and what they were told. One line of writes a life of the primary.
/// Thread:   one
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tidelock/base/ids.h>

#include "check_linear.h"

namespace tidelock::sim {

enum class CallKind : std::uint8_t { put, erase, get };
enum class Outcome : std::uint8_t {
  pending,  ///< counts as unknown
  ok,
  not_done,  ///< refused before anything was written
  unknown,   ///< it may take effect later, or never
};

/// How the load fared: a run in which nothing was asked for proves nothing.
struct CallCounts {
  std::uint64_t ok = 0;
  std::uint64_t not_done = 0;
  std::uint64_t unknown = 0;
  std::uint64_t replica_reads = 0;  ///< each was checked
  std::uint64_t receipt_reads = 0;  ///< of those, after a receipt's LSN was waited for
  void add(const CallCounts& other) {
    ok += other.ok;
    not_done += other.not_done;
    unknown += other.unknown;
    replica_reads += other.replica_reads;
    receipt_reads += other.receipt_reads;
  }
};

/// What became of those whom the log had left behind, and of writes with too few replicas.
struct SyncCounts {
  std::uint64_t snapshots = 0;  ///< begun
  std::uint64_t whole = 0;      ///< of those
  std::uint64_t broken = 0;     ///< likewise
  std::uint64_t ranges = 0;     ///< that left
  std::uint64_t voids = 0;      ///< records that went while their pieces were on their way
  std::uint64_t drops = 0;      ///< of replicas that stood in the way of an append
  std::uint64_t below_c = 0;    ///< writes that were refused
  void add(const SyncCounts& other) {
    snapshots += other.snapshots;
    whole += other.whole;
    broken += other.broken;
    ranges += other.ranges;
    voids += other.voids;
    drops += other.drops;
    below_c += other.below_c;
  }
};

struct Call {
  CallKind kind = CallKind::get;
  std::size_t line = 0;
  std::uint32_t key = 0;
  std::uint64_t value = 0;  ///< written, or found; 0: none
  std::uint64_t start = 0;  ///< starts and ends count up together
  std::uint64_t end = 0;
  Outcome outcome = Outcome::pending;
  Lsn lsn{};
};

class History {
 public:
  std::size_t begin(CallKind kind, std::size_t line, std::uint32_t key, std::uint64_t value) {
    Call call;
    call.kind = kind;
    call.line = line;
    call.key = key;
    call.value = value;
    call.start = ++stamp_;
    calls_.push_back(call);
    return calls_.size() - 1;
  }
  void found(std::size_t call, std::uint64_t value) { calls_[call].value = value; }
  void written(std::size_t call, Lsn lsn) { calls_[call].lsn = lsn; }
  void end(std::size_t call, Outcome outcome) {
    calls_[call].outcome = outcome;
    calls_[call].end = ++stamp_;
  }
  [[nodiscard]] const std::vector<Call>& calls() const { return calls_; }

  void read_at_replica() { ++replica_reads_; }
  void read_after_receipt() { ++receipt_reads_; }
  [[nodiscard]] CallCounts counts() const {
    CallCounts counts;
    counts.replica_reads = replica_reads_;
    counts.receipt_reads = receipt_reads_;
    for (const Call& call : calls_) {
      ++(call.outcome == Outcome::ok         ? counts.ok
         : call.outcome == Outcome::not_done ? counts.not_done
                                             : counts.unknown);
    }
    return counts;
  }

  /// Of one line and key, for check_linear().
  [[nodiscard]] std::vector<LinearCall> linear(std::size_t line, std::uint32_t key) const {
    std::vector<LinearCall> linear;
    for (const Call& call : calls_) {
      if (call.line != line || call.key != key || call.outcome == Outcome::not_done) continue;
      const bool write = call.kind != CallKind::get;
      const bool known = call.outcome == Outcome::ok;
      if (!write && !known) continue;
      linear.push_back({write, call.value, call.start, known ? call.end : LinearCall::kUnknown});
    }
    return linear;
  }

 private:
  std::uint64_t stamp_ = 0;
  std::uint64_t replica_reads_ = 0;
  std::uint64_t receipt_reads_ = 0;
  std::vector<Call> calls_;
};

}  // namespace tidelock::sim
