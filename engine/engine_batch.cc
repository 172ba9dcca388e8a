// Batches: each shard's share is sent to its core, then all answers are collected. See engine.h.
#include <optional>
#include <string>
#include <vector>

#include "call_support.h"
#include "engine_impl.h"

namespace tidelock {
namespace {

/// One shard's part of a batch.
struct Share {
  Shard* shard = nullptr;
  std::vector<BatchItem> items;
  std::uint64_t encoded_bytes = 0;
};

/// A share under way to another core.
struct Leg {
  Share* share;
  Ticket call;
};

/// Lets the call carry the share's bytes itself: the caller may be gone before they are read.
void carry(const Share& share, Call& call) {
  std::size_t bytes = 0;
  for (const BatchItem& item : share.items) bytes += item.key.size() + item.value.size();
  call.value.reserve(bytes);  // so that the views stay where they point
  const auto copy = [&call](Bytes from) {
    const std::size_t at = call.value.size();
    call.value.append(as_text(from));
    return as_bytes(call.value).subspan(at, from.size());
  };
  for (const BatchItem& item : share.items) {
    const Bytes key = copy(item.key);
    call.items.push_back({item.is_put, item.hash, key, copy(item.value)});
  }
}

class BatchWrite {
 public:
  BatchWrite(Host& host, Reactor* caller, AckNeed ack, Instant deadline)
      : host_(host), caller_(caller), ack_(ack), deadline_(deadline) {}

  Result<std::vector<Receipt>> run(std::vector<Share>& shares) {
    legs_.reserve(shares.size());
    // First what travels, so that the cores work at the same time.
    for (Share& share : shares) {
      if (!share.items.empty() && !here(share)) launch(share);
    }
    for (Share& share : shares) {
      if (!share.items.empty() && here(share)) {
        settle(share, share.shard->write_all(share.items, ack_, deadline_));
      }
    }
    for (Leg& leg : legs_) settle(*leg.share, collect(leg));
    if (failed_) return *failed_;
    return std::move(receipts_);
  }

 private:
  [[nodiscard]] bool here(const Share& share) const { return caller_ == &share.shard->reactor(); }

  void launch(Share& share) {
    auto call = host_.take(caller_, deadline_);
    if (!call) return settle(share, call.error());
    (*call)->kind = CallKind::write;
    (*call)->shard = share.shard;
    (*call)->level = ack_.level;
    (*call)->replicas = ack_.replicas;
    carry(share, **call);
    if (const Status launched = call->launch(); !launched)
      return settle(share, launch_error(launched.error()));
    legs_.push_back({&share, *std::move(call)});
  }

  static Result<Receipt> collect(Leg& leg) {
    if (const Status answered = leg.call.await(); !answered) return write_error(answered.error());
    if (!leg.call->status) return leg.call->status.error();
    return leg.call->receipt;
  }

  void settle(const Share& share, const Result<Receipt>& result) {
    if (result) {
      receipts_.push_back(*result);
    } else if (!failed_) {
      failed_ = Error(result.error().code(),
                      "shard " + std::to_string(share.shard->id().value) + ": " + result.error().message());
    }
  }

  Host& host_;
  Reactor* caller_;
  AckNeed ack_;
  Instant deadline_;
  std::vector<Leg> legs_;
  std::vector<Receipt> receipts_;
  std::optional<Error> failed_;
};

}  // namespace

Result<std::vector<Receipt>> Engine::write(const WriteBatch& batch, const WriteOptions& options) {
  const std::uint64_t share_bytes_max = impl_->options.batch_bytes_max();
  const auto body = [&]() -> Result<std::vector<Receipt>> {
    TL_TRY(impl_->check_replicas(options.replicas));
    TL_TRY(Reactor * caller, impl_->host->caller());
    const Instant deadline = deadline_of(caller, options.timeout);
    TL_TRY(impl_->await_seed(caller, deadline));
    std::vector<Share> shares(impl_->options.shards);
    for (const WriteBatch::Operation& operation : batch.operations_) {
      TL_TRY(impl_->check_sizes(operation.key, operation.value.size()));
      const EntryKind kind = operation.is_put ? EntryKind::put : EntryKind::erase;
      const std::uint32_t bytes = entry_bytes(kind, operation.key.size(), operation.value.size());
      const std::uint64_t hash = impl_->hash(operation.key);
      Shard& shard = impl_->owner(hash);
      Share& share = shares[shard.id().value];
      share.shard = &shard;
      share.items.push_back({operation.is_put, hash, as_bytes(operation.key), as_bytes(operation.value)});
      share.encoded_bytes += bytes;
      if (bytes > kEntryBytesMax || share.encoded_bytes > share_bytes_max) {
        return Error(ReplicationErrc::too_large,
                     "a batch takes operations of up to " + std::to_string(kEntryBytesMax) +
                         " bytes encoded, and " + std::to_string(share_bytes_max) +
                         " bytes a shard (a quarter of log_bytes or of ring_bytes, "
                         "or 1 MiB): write less at once, put the large ones alone");
      }
    }
    return BatchWrite(*impl_->host, caller, {options.ack, options.replicas}, deadline).run(shares);
  };
  return without_exceptions(body);
}

}  // namespace tidelock
