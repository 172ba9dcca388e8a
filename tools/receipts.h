/// The verifier's side channel: the primary's receipts on their way to the replica's process. It is not the
/// link, so that a replica is never judged by what it said itself.
/// One single-producer single-consumer queue a shard (Boost.Lockfree), in one memfd.
/// Thread:   push: the shard's core in the primary; pop: the shard's core in the replica
#pragma once

#include <cstdint>
#include <memory>

#include <boost/lockfree/spsc_queue.hpp>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

#include "file_handle.h"

namespace tidelock::tools {

/// "This write has reached its ack level." Trivially copyable; crosses process boundaries.
struct ReceiptNote {
  std::uint64_t lsn = 0;
  HistoryId history{};
  Epoch epoch{};
  std::uint32_t key_index = 0;  ///< in the shared dataset
  std::uint32_t value_crc = 0;  ///< of the value that was written
  Instant acknowledged{};       ///< CLOCK_MONOTONIC, which both processes share
};

inline constexpr std::size_t kReceiptQueueNotes = 32'767;

class ReceiptChannels {
 public:
  using Queue = boost::lockfree::spsc_queue<ReceiptNote, boost::lockfree::capacity<kReceiptQueueNotes>>;

  /// Makes the memfd and the empty queues.
  static Result<FileHandle> create(std::uint32_t shards);
  static Result<ReceiptChannels> map(int fd, std::uint32_t shards);
  [[nodiscard]] Queue& queue(ShardId shard) { return queues_.get()[shard.value].queue; }

 private:
  struct alignas(4096) Slot {
    Queue queue;
  };
  explicit ReceiptChannels(std::shared_ptr<Slot> queues) : queues_(std::move(queues)) {}
  std::shared_ptr<Slot> queues_;
};

}  // namespace tidelock::tools
