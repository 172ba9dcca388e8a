/// Receipts on the side channel. Little-endian.
///   receipts: u16 shard, u16 zero, u32 count (1 to 1024), and for each: u64 lsn, u64 history, u32 epoch
///   counter,
///             u32 epoch node, u32 key index, u32 value CRC, u64 age in ns (of the acknowledgement, when
///             sent)
///   credit:   for each shard u64: how many receipts the verifier has taken, since the beginning
/// Two machines' clocks have nothing in common, so an age travels instead of a time.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>

#include "receipts.h"

namespace tidelock::tools {

/// So many receipts of a shard may be on their way or wait for the verifier; the load then waits, too.
inline constexpr std::uint64_t kReceiptWindow = 1024;

std::string encode_receipts(ShardId shard, std::span<const ReceiptNote> notes, Instant now);

struct ReceiptBatch {
  ShardId shard{};
  std::vector<ReceiptNote> notes;  ///< `acknowledged` in this machine's time
};
/// Errors:   EBADMSG: lengths that do not add up, a shard that there is not
Result<ReceiptBatch> decode_receipts(const std::string& body, std::uint32_t shards, Instant now);

std::string encode_credit(std::span<const std::uint64_t> taken);
/// Errors:   EBADMSG: not one number a shard
Result<std::vector<std::uint64_t>> decode_credit(const std::string& body, std::uint32_t shards);

}  // namespace tidelock::tools
