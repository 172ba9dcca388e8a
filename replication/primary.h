/// The primary's end of a shard's replication: appends to the log, sends what a turn has accumulated as one
/// batch to every replica, and tells waiters when their LSN has reached their ack level.
/// Thread:   owner core
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/reactor/timer.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/log.h>

namespace tidelock {

/// How far a write must have come before its caller goes on. It delays its caller and nothing else.
enum class AckLevel : std::uint8_t {
  local,     ///< in this node's log and table
  received,  ///< checked by one replica's software
  applied,   ///< visible to one replica's readers
};

struct PrimaryOptions {
  ShardId shard{};
  std::uint16_t shard_count = 1;
  HistoryId history{};
  std::uint64_t routing_seed = 0;
  Epoch epoch{};
  std::uint32_t node = 0;
  std::uint64_t log_bytes = 16ULL << 20;
  Duration heartbeat = milliseconds(100);      ///< a control frame leaves at least this often
  Duration link_timeout = seconds(3);          ///< a peer that says nothing for so long is dropped
};

/// Waits for an LSN without a fiber. Intrusive; embedded in a pooled completion slot.
struct AckWaiter {
  /// Success, or outcome_unknown once the deadline has passed. Runs on the loop; must not suspend.
  void (*done)(AckWaiter& waiter, Status status) = nullptr;
  Lsn lsn{};
  AckLevel level = AckLevel::applied;
  AckWaiter* next = nullptr;
  Instant deadline{};
};

/// Single-writer; readable by anyone.
struct PrimaryStats {
  std::atomic<std::uint64_t> entries{0}, batches{0};
  std::atomic<std::uint64_t> last_lsn{0}, received_lsn{0}, applied_lsn{0};
  std::atomic<std::uint64_t> replicas{0};
  std::atomic<std::uint64_t> links_lost{0};
  std::atomic<std::uint64_t> outcome_unknown{0};
  std::atomic<std::uint64_t> log_full_waits{0};
};

class Primary final : public PollSource {
 public:
  static Result<std::unique_ptr<Primary>> create(Reactor& reactor, const PrimaryOptions& options);
  ~Primary() override;

  /// Appends one entry of at most kEntryBytesMax encoded, if there is room. Suspends: never
  /// Errors:   log_full
  Result<Lsn> try_append(EntryKind kind, Bytes key, Bytes value);
  /// Waits until an entry (or fragment) of that size fits. Suspends: yes (fiber)
  /// Errors:   deadline_exceeded, cancelled; too_large if it can never fit, naming the log's size
  Status wait_for_room(std::uint32_t encoded_bytes, Instant deadline);
  /// Appends a put of any legal size as fragments that share one LSN. Other writers wait meanwhile (see
  /// write_lock()). Once the first fragment is in, the entry is completed whatever the deadline says, or, if
  /// that is impossible, the links are closed; it is never half visible. Suspends: yes (fiber)
  Result<Lsn> append_fragments(Bytes key, Bytes value, Instant deadline);
  /// True while a fragmented put is being appended: nobody else may append.
  [[nodiscard]] bool fragmenting() const;

  /// Waits until `lsn` has reached `level`. Suspends: yes (fiber)
  /// Errors:   outcome_unknown at the deadline; cancelled
  Status wait(Lsn lsn, AckLevel level, Instant deadline);
  /// The same without a fiber; LSNs are added in ascending order per level by a well-behaved caller, any
  /// order is correct.
  void add_waiter(AckWaiter& waiter);
  [[nodiscard]] bool reached(Lsn lsn, AckLevel level) const;

  /// Takes over a link whose peer has said hello and resumes it after `peer_last`.
  /// Errors:   gap: the log no longer holds what follows; the link is closed with that reason
  Status attach(std::unique_ptr<Link> link, Lsn peer_last);
  [[nodiscard]] std::size_t replicas() const;
  /// Called on the loop whenever a link was lost, with the reason.
  void on_link_lost(std::function<void(const std::string& reason)> handler);

  [[nodiscard]] Lsn last_lsn() const;
  [[nodiscard]] Epoch epoch() const;
  [[nodiscard]] const PrimaryOptions& options() const;
  [[nodiscard]] const Log& log() const;
  [[nodiscard]] const PrimaryStats& stats() const;
  /// Says goodbye on all links and closes them.
  void close(const std::string& reason);

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  void arm() override;
  void disarm() override;
  [[nodiscard]] bool has_work() const override;

 private:
  struct State;
  explicit Primary(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tidelock
