// The data path of writes. See shard.h.
#include <algorithm>

#include <tidelock/base/counter.h>
#include <tidelock/engine/errc.h>

#include "inside.h"
#include "shard.h"

namespace tidelock {
namespace {

EntryKind kind_of(const BatchItem& item) { return item.is_put ? EntryKind::put : EntryKind::erase; }

std::uint32_t size_of(const BatchItem& item) {
  return entry_bytes(kind_of(item), item.key.size(), item.value.size());
}

std::uint32_t size_of(std::span<const BatchItem> items) {
  std::uint32_t total = 0;
  for (const BatchItem& item : items) total += size_of(item);
  return total;
}

/// Gives up what was waited for and not used: the next one may be let in.
class RoomUse {
 public:
  explicit RoomUse(Primary& primary) : primary_(primary) {}
  RoomUse(const RoomUse&) = delete;
  RoomUse& operator=(const RoomUse&) = delete;
  ~RoomUse() { primary_.forgo_room(); }

 private:
  Primary& primary_;
};

}  // namespace

Status Shard::primary_here() const {
  if (shut_) return EngineErrc::closed;
  if (node_) return !leads() ? not_leading() : seed_fits() ? Status{} : Status(other_seed());
  return primary_ != nullptr ? Status{} : Status(EngineErrc::read_only);
}

Status Shard::writable(AckNeed ack) const {
  TL_TRY(primary_here());
  const std::size_t nodes = primary_->nodes();
  const std::uint32_t committing = primary_->options().c.value_or(0);
  const std::uint32_t acknowledging = level_now(ack) == AckLevel::local ? 0 : std::max(ack.replicas, 1U);
  const std::uint32_t needed = std::max(committing, acknowledging);
  if (nodes >= needed) return {};
  return Error(ReplicationErrc::no_replica,
               std::to_string(nodes) + " of the " + std::to_string(needed) + " replicas that " +
                   (committing == needed ? "every write (c)" : "this one") + " needs are connected");
}

Result<Receipt> Shard::write(const BatchItem& item, AckNeed ack, Instant deadline) {
  const Inside inside(inside_);
  if (const Wakeup wakeup = let_others_run(item.value.size()); wakeup == Wakeup::cancelled)
    return not_written(to_status(wakeup).error(), "");
  TL_TRY(const Lsn lsn, append(item, ack, deadline));
  const Receipt written = receipt(lsn);  // of the epoch that it was written in
  if (level_now(ack) != AckLevel::local) TL_TRY(await_ack(lsn, ack, deadline));
  return written;
}

Result<Receipt> Shard::write_all(std::span<const BatchItem> items, AckNeed ack, Instant deadline) {
  const Inside inside(inside_);
  if (const Wakeup wakeup = let_others_run(size_of(items)); wakeup == Wakeup::cancelled)
    return not_written(to_status(wakeup).error(), "");
  TL_TRY(const Lsn lsn, append_all(items, ack, deadline));
  const Receipt written = receipt(lsn);  // of the epoch that it was written in
  if (level_now(ack) != AckLevel::local) TL_TRY(await_ack(lsn, ack, deadline));
  return written;
}

/// What stands in the log may be asked for however few replicas there are: they may come back in time.
Status Shard::wait(const Receipt& receipt, AckNeed ack, Instant deadline) {
  TL_TRY(primary_here());
  TL_TRY(check_receipt(receipt));
  const Inside inside(inside_);
  return level_now(ack) == AckLevel::local ? Status{} : await_ack(receipt.lsn, ack, deadline);
}

/// What stands in the log cannot be taken back, so a cancelled wait for it has an unknown outcome, too.
Status Shard::await_ack(Lsn lsn, AckNeed ack, Instant deadline) {
  ack = need_now(ack);
  Status waited = primary_->wait(lsn, ack.level, deadline, ack.replicas);
  if (waited || !(waited.error() == ReactorErrc::cancelled)) return waited;
  return Error(ReplicationErrc::outcome_unknown, "the fiber was cancelled before the acknowledgement came");
}

// ---- in one turn ------------------------------------------------------------------------------------

void Shard::stand(const BatchItem& item, Lsn lsn) {
  if (item.is_put) {
    table_->put(item.hash, item.key, item.value, lsn);
    bump(counters_.puts);
  } else {
    table_->erase(item.hash, item.key);
    bump(counters_.erases);
  }
}

void Shard::wrote(Lsn lsn) {
  counters_.keys.store(table_->keys(), std::memory_order_relaxed);
  if (retired_.empty()) {
    counters_.memory_bytes.store(table_->memory_bytes(), std::memory_order_relaxed);
  } else {
    count_memory();
  }
  counters_.visible_lsn.store(lsn.value, std::memory_order_release);
}

Result<Lsn> Shard::try_write(const BatchItem& item, std::uint32_t bytes_after) {
  if (!may_append()) return ReplicationErrc::log_full;
  if (item.is_put) TL_TRY(table_->reserve(item.hash, item.key, item.value.size()));
  TL_TRY(const Lsn lsn, primary_->try_append(kind_of(item), item.key, item.value, bytes_after));
  stand(item, lsn);
  wrote(lsn);
  return lsn;
}

Result<Lsn> Shard::try_write_all(std::span<const BatchItem> items) {
  std::uint32_t bytes_after = size_of(items);
  if (!may_append() || !primary_->can_append(bytes_after)) return ReplicationErrc::log_full;
  Lsn lsn{};
  for (std::size_t i = 0; i < items.size(); ++i) {
    bytes_after -= size_of(items[i]);
    auto written = try_write(items[i], bytes_after);
    if (!written && i > 0) return end_half_written(written.error(), i, items.size());
    TL_TRY(lsn, std::move(written));
  }
  return lsn;
}

/// The group in the log says that it goes on: something must end it. There is room, since what was left out
/// is no smaller.
Error Shard::end_half_written(const Error& error, std::size_t written, std::size_t all) {
  TL_ASSERT(error != ReplicationErrc::log_full, "there was room for all");
  const auto end = primary_->try_append(EntryKind::noop, {}, {});
  TL_ASSERT(end.has_value(), "there was room for all");
  wrote(*end);
  return Error(error.code(), "only the first " + std::to_string(written) + " of " + std::to_string(all) +
                                 " operations of shard " + std::to_string(config_.id.value) +
                                 " were written");
}

// ---- waiting for the turn ---------------------------------------------------------------------------

/// Of a write that ended in a wait before anything was appended.
Error Shard::not_written(const Error& error, const char* obstacle) const {
  const std::string shard = "shard " + std::to_string(config_.id.value) + ": ";
  if (error == ReactorErrc::cancelled)
    return Error(EngineErrc::not_written, shard + "the fiber was cancelled");
  if (error == ReactorErrc::closed) return Error(EngineErrc::closed);
  if (error == ReplicationErrc::not_primary) return not_leading();
  if (!(error == ReactorErrc::deadline_exceeded)) return error;
  return Error(EngineErrc::not_written, shard + obstacle + " held this write up beyond its timeout");
}

Error Shard::log_stayed_full(const Error& error) const {
  if (!(error == ReactorErrc::deadline_exceeded)) return not_written(error, "");
  return Error(ReplicationErrc::log_full, "shard " + std::to_string(config_.id.value) +
                                              ": nothing was written within the timeout, the log of " +
                                              std::to_string(options_.log_bytes) +
                                              " bytes is full of what a replica has not yet taken");
}

Error Shard::no_turn(const Error& error) const {
  return held_ ? not_written(error, holder_) : log_stayed_full(error);
}

Status Shard::await_turn(std::uint32_t bytes, Instant deadline) {
  if (held_) {
    const Status released = to_status(released_.wait(deadline));
    return released ? Status{} : not_written(released.error(), holder_);
  }
  const Status room = primary_->wait_for_room(bytes, deadline);
  return room ? Status{} : no_turn(room.error());
}

Result<Lsn> Shard::append(const BatchItem& item, AckNeed ack, Instant deadline) {
  TL_TRY(writable(ack));
  const std::uint32_t bytes = size_of(item);
  if (bytes > kEntryBytesMax) return append_large(item, ack, deadline);
  const RoomUse room(*primary_);
  for (;;) {
    auto lsn = try_write(item);
    if (lsn || !(lsn.error() == ReplicationErrc::log_full)) return lsn;
    TL_TRY(await_turn(bytes, deadline));
    TL_TRY(writable(ack));
  }
}

Result<Lsn> Shard::append_all(std::span<const BatchItem> items, AckNeed ack, Instant deadline) {
  TL_TRY(writable(ack));
  const RoomUse room(*primary_);
  for (;;) {
    auto lsn = try_write_all(items);
    if (lsn || !(lsn.error() == ReplicationErrc::log_full)) return lsn;
    TL_TRY(await_turn(size_of(items), deadline));
    TL_TRY(writable(ack));
  }
}

// ---- above kEntryBytesMax ---------------------------------------------------------------------------

Result<Table::Assembly> Shard::assemble(const BatchItem& item) {
  TL_TRY(Table::Assembly assembly, table_->assemble(static_cast<std::uint32_t>(item.key.size()),
                                                    static_cast<std::uint32_t>(item.value.size())));
  assembly.write(0, item.key);
  for (std::size_t at = 0; at < item.value.size(); at += kCopyBytes) {
    const std::size_t piece = std::min(kCopyBytes, item.value.size() - at);
    assembly.write(item.key.size() + at, item.value.subspan(at, piece));
    if (const Wakeup wakeup = this_fiber::yield(); wakeup == Wakeup::cancelled)
      return not_written(to_status(wakeup).error(), kLargePut);
  }
  return assembly;
}

Result<Lsn> Shard::append_large(const BatchItem& item, AckNeed ack, Instant deadline) {
  const auto one_at_a_time = MutexGuard::acquire(large_, deadline);
  if (!one_at_a_time) return not_written(one_at_a_time.error(), kLargePut);
  const std::uint64_t table = table_->number();
  TL_TRY(Table::Assembly assembly, assemble(item));
  const auto hold = hold_writes(kLargePut, deadline);
  if (!hold) return not_written(hold.error(), holder_);
  TL_TRY(writable(ack));
  if (table != table_->number()) {
    return Error(EngineErrc::not_written,
                 "this node was deposed and promoted again while a large put was prepared");
  }
  // Nobody else writes from here to commit(), so what is prepared in the table stays so.
  TL_TRY(table_->prepare(assembly, item.hash));
  auto appended = primary_->append_fragments(item.key, item.value, deadline);
  if (!appended) return log_stayed_full(appended.error());
  const Status committed = table_->commit(std::move(assembly), item.hash, *appended);
  TL_ASSERT(committed.has_value(), "a prepared commit cannot fail");
  bump(counters_.puts);
  wrote(*appended);
  return *appended;
}

Result<Shard::Hold> Shard::hold_writes(const char* holder, Instant deadline) {
  while (held_) TL_TRY(to_status(released_.wait(deadline)));
  return Hold(*this, holder);
}

Shard::Hold::Hold(Shard& shard, const char* holder) : shard_(&shard) {
  shard.held_ = true;
  shard.holder_ = holder;
}

Shard::Hold::~Hold() {
  if (shard_ == nullptr) return;
  shard_->held_ = false;
  shard_->released_.notify_all();
}

}  // namespace tidelock
