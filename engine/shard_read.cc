// The data path of reads and digests. See shard.h.
#define XXH_INLINE_ALL
#include <algorithm>
#include <new>
#include <optional>
#include <vector>
#include <xxhash.h>

#include <tidelock/base/counter.h>
#include <tidelock/engine/errc.h>

#include "inside.h"
#include "shard.h"

namespace tidelock {
namespace {

/// std::string reports a lack of memory by exception, which ends here.
template <class F>
Status copy_out(F&& copy) {
  try {
    copy();
    return {};
  } catch (const std::bad_alloc&) {
    return Error(EngineErrc::out_of_memory, "no memory for the caller's copy of the value");
  }
}

Error foreign(const char* what, const std::string& theirs, const std::string& ours) {
  return Error(EngineErrc::history_lost,
               std::string("the receipt is of ") + what + " " + theirs + ", this node follows " + ours);
}

std::string to_text(Epoch epoch) { return std::to_string(epoch.counter) + "/" + std::to_string(epoch.node); }

}  // namespace

Status Shard::check_receipt(const Receipt& receipt) const {
  if (node_) return check_group_receipt(receipt);
  if (receipt.history != HistoryId{} && receipt.history != config_.history) {
    return foreign("history", std::to_string(receipt.history.value), std::to_string(config_.history.value));
  }
  if (receipt.epoch != Epoch{} && receipt.epoch != config_.epoch) {
    return foreign("epoch", to_text(receipt.epoch), to_text(config_.epoch));
  }
  if (primary_ && receipt.lsn > primary_->last_lsn()) {
    return Error(EngineErrc::history_lost, "the receipt's LSN is " + std::to_string(receipt.lsn.value) +
                                               ", the primary's last is " +
                                               std::to_string(primary_->last_lsn().value));
  }
  return {};
}

Status Shard::await_visible(const Receipt& after, Instant deadline) {
  if (node_) return await_group_visible(after, deadline);
  if (after.lsn == Lsn{}) return {};
  TL_TRY(check_receipt(after));
  if (primary_ || replica_->applied_lsn() >= after.lsn) return {};
  return own_replica_->wait_applied(after.lsn, deadline);
}

Result<Lsn> Shard::get(std::uint64_t hash, Bytes key, std::string& value, const Receipt& after,
                       ReadLevel level, Instant deadline) {
  if (shut_) return EngineErrc::closed;
  const Inside inside(inside_);
  if (const Wakeup wakeup = let_others_run(0); wakeup == Wakeup::cancelled) return to_status(wakeup).error();
  TL_TRY(const ReadLevel asked, asked_level(level));
  if (asked != ReadLevel::any) return get_committed(hash, key, value, after, asked, deadline);
  TL_TRY(await_visible(after, deadline));
  Seen seen;
  return get_here(hash, key, value, seen);
}

Result<Lsn> Shard::get_here(std::uint64_t hash, Bytes key, std::string& value, Seen& seen) {
  bump(counters_.gets);
  Table::Found found;
  const bool there = table_->find(hash, key, found);
  if (node_) seen = seen_of(there ? found.lsn : member().log().last_lsn());
  if (!there) return EngineErrc::not_found;
  const Lsn lsn = found.lsn;
  if (found.value.size() > kCopyBytes) {
    TL_TRY(copy_large(hash, key, value));
  } else {
    TL_TRY(copy_out([&] { value.assign(as_text(found.value)); }));
    unbroken_bytes_ += value.size();
  }
  return lsn;
}

Status Shard::copy_large(std::uint64_t hash, Bytes key, std::string& value) {
  const Table::Pin pin = table_->pin(hash, key);
  const Bytes from = pin.value();
  TL_TRY(copy_out([&] {
    value.clear();
    value.reserve(from.size());
  }));
  for (std::size_t at = 0; at < from.size(); at += kCopyBytes) {
    value.append(as_text(from.subspan(at, std::min(kCopyBytes, from.size() - at))));
    if (const Wakeup wakeup = this_fiber::yield(); wakeup == Wakeup::cancelled) return to_status(wakeup);
  }
  return {};
}

// ---- digest -----------------------------------------------------------------------------------------

/// The sum over all records, so that their order does not matter.
class Shard::DigestSum {
 public:
  explicit DigestSum(Digest& sum) : sum_(sum) {}

  void add(Bytes key, Bytes value, Lsn lsn) {
    add(XXH3_128bits_withSeed(value.data(), value.size(), seed(key, lsn)));
  }
  /// The same hash, in pieces.
  Status add_large(Bytes key, Bytes value, Lsn lsn) {
    XXH3_state_t state;
    XXH3_128bits_reset_withSeed(&state, seed(key, lsn));
    for (std::size_t at = 0; at < value.size(); at += kCopyBytes) {
      XXH3_128bits_update(&state, value.data() + at, std::min(kCopyBytes, value.size() - at));
      if (const Wakeup wakeup = this_fiber::yield(); wakeup == Wakeup::cancelled) return to_status(wakeup);
    }
    add(XXH3_128bits_digest(&state));
    return {};
  }

 private:
  static std::uint64_t seed(Bytes key, Lsn lsn) {
    return XXH3_64bits_withSeed(key.data(), key.size(), lsn.value);
  }
  void add(const XXH128_hash_t& hash) {
    sum_.low += hash.low64;
    sum_.high += hash.high64;
    ++sum_.keys;
  }
  Digest& sum_;
};

Status Shard::digest_pass(Digest& digest, Instant deadline) {
  struct Page {
    DigestSum sum;
    std::vector<std::string> large;  ///< keys of values that are too long for one go
  };
  digest = {};
  Page page{DigestSum(digest), {}};
  const auto visit = [](void* context, Bytes key, Bytes value, Lsn lsn) {
    Page& into = *static_cast<Page*>(context);
    if (value.size() <= kCopyBytes) return into.sum.add(key, value, lsn);
    into.large.emplace_back(as_text(key));
  };
  std::uint64_t position = 0;
  do {
    position = table_->scan(position, kCopyBytes, visit, &page);
    for (const std::string& text : page.large) {
      const Bytes key = as_bytes(text);
      const std::uint64_t hash = hash_key(config_.routing_seed, key);
      Table::Found found;
      // Replaced meanwhile: the LSN has moved, and this pass will not count.
      if (!table_->find(hash, key, found) || found.value.size() <= kCopyBytes) continue;
      const Lsn lsn = found.lsn;
      const Table::Pin pin = table_->pin(hash, key);
      TL_TRY(page.sum.add_large(key, pin.value(), lsn));
    }
    page.large.clear();
    TL_TRY(pause(deadline));
  } while (position != 0);
  return {};
}

Result<std::pair<Digest, Lsn>> Shard::digest(Instant deadline) {
  constexpr int kPassesUnheld = 2;
  if (shut_) return EngineErrc::closed;
  const Inside inside(inside_);
  TL_TRY(await_memory(deadline));
  std::optional<Hold> hold;
  for (int pass = 0;; ++pass) {
    // A replica cannot hold its primary's writes off, so it repeats until one pass was undisturbed.
    if (pass >= kPassesUnheld && leads() && !hold) {
      TL_TRY(Hold held, hold_writes("a digest", deadline));
      hold.emplace(std::move(held));
    }
    const Lsn lsn = visible_lsn();
    const std::uint64_t table = table_->number();
    Digest digest;
    TL_TRY(digest_pass(digest, deadline));
    if (lsn == visible_lsn() && table == table_->number()) return std::pair{digest, lsn};
  }
}

}  // namespace tidelock
