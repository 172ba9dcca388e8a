// Every call of the API: checked, sent to its shard's core, answered. See engine.h, call.h and host.h.
#include <cstring>
#include <functional>
#include <memory>

#include "call_support.h"
#include "engine_impl.h"

namespace tidelock {
Status Engine::Impl::check_sizes(std::string_view key, std::size_t value_bytes) const {
  if (key.empty() || key.size() > kKeyBytesMax) {
    return Error(EngineErrc::key_size, "a key of " + std::to_string(key.size()) + " bytes");
  }
  if (value_bytes > options.value_bytes_max) {
    return Error(EngineErrc::value_too_large, "a value of " + std::to_string(value_bytes) +
                                                  " bytes, value_bytes_max is " +
                                                  std::to_string(options.value_bytes_max));
  }
  return {};
}

Status Engine::Impl::check_shard(ShardId shard) const {
  if (shard.value < options.shards) return {};
  return Error(EngineErrc::wrong_shard, "shard " + std::to_string(shard.value) + " of " +
                                            std::to_string(options.shards) + ", counted from 0");
}

Status Engine::Impl::check_replicas(std::uint32_t replicas) const {
  if (replicas <= kAckReplicasMax) return {};
  return Error(EngineErrc::bad_option,
               "replicas is " + std::to_string(replicas) + ": give 0 to " + std::to_string(kAckReplicasMax));
}

WriteOptions Engine::Impl::write_defaults() const {
  const bool alone = options.role == NodeRole::primary && options.listen_address().empty();
  return {alone ? AckLevel::local : options.ack, options.write_timeout};
}

// ---- writes -----------------------------------------------------------------------------------------

Result<Receipt> Engine::Impl::write(CallKind kind, std::string_view key, std::string_view value,
                                    const WriteOptions& how) {
  TL_TRY(check_sizes(key, value.size()));
  TL_TRY(check_replicas(how.replicas));
  TL_TRY(Reactor * caller, host->caller());
  const Instant deadline = deadline_of(caller, how.timeout);
  TL_TRY(await_seed(caller, deadline));
  const std::uint64_t key_hash = hash(key);
  Shard& shard = owner(key_hash);
  if (caller == &shard.reactor()) {
    return shard.write({kind == CallKind::put, key_hash, as_bytes(key), as_bytes(value)},
                       {how.ack, how.replicas}, deadline);
  }
  TL_TRY(Ticket call, host->take(caller, deadline));
  call->kind = kind;
  call->shard = &shard;
  call->hash = key_hash;
  call->level = how.ack;
  call->replicas = how.replicas;
  call->key.assign(key);
  call->value.assign(value);
  if (const Status launched = call.launch(); !launched) return launch_error(launched.error());
  if (const Status answered = call.await(); !answered) return write_error(answered.error());
  if (!call->status) return call->status.error();
  return call->receipt;
}

Result<Receipt> Engine::put(std::string_view key, std::string_view value, const WriteOptions& options) {
  return without_exceptions([&] { return impl_->write(CallKind::put, key, value, options); });
}
Result<Receipt> Engine::put(std::string_view key, std::string_view value) {
  return put(key, value, impl_->write_defaults());
}
Result<Receipt> Engine::erase(std::string_view key, const WriteOptions& options) {
  return without_exceptions([&] { return impl_->write(CallKind::erase, key, {}, options); });
}
Result<Receipt> Engine::erase(std::string_view key) { return erase(key, impl_->write_defaults()); }

Status Engine::put_async(std::string_view key, std::string_view value, const WriteOptions& options,
                         PutCallback callback, void* context) {
  TL_TRY(impl_->check_sizes(key, value.size()));
  TL_TRY(impl_->check_replicas(options.replicas));
  return without_exceptions([&]() -> Status {
    TL_TRY(Ticket call, impl_->host->try_take());
    if (impl_->seed && impl_->seed->value() == 0) return EngineErrc::not_ready;
    call->kind = CallKind::put;
    call->hash = impl_->hash(key);
    call->shard = &impl_->owner(call->hash);
    call->level = options.ack;
    call->replicas = options.replicas;
    call->deadline = deadline_of(nullptr, options.timeout);
    call->key.assign(key);
    call->value.assign(value);
    call->callback = callback;
    call->context = context;
    return call.send();
  });
}

Status Engine::wait(const Receipt& receipt, AckLevel level, Duration timeout, std::uint32_t replicas) {
  TL_TRY(impl_->check_shard(receipt.shard));
  TL_TRY(impl_->check_replicas(replicas));
  TL_TRY(Reactor * caller, impl_->host->caller());
  const Instant deadline = deadline_of(caller, timeout);
  Shard& shard = *impl_->shards[receipt.shard.value];
  if (caller == &shard.reactor()) return shard.wait(receipt, {level, replicas}, deadline);
  TL_TRY(Ticket call, impl_->host->take(caller, deadline));
  call->kind = CallKind::wait;
  call->shard = &shard;
  call->after = receipt;
  call->level = level;
  call->replicas = replicas;
  if (const Status launched = call.launch(); !launched) return write_error(launched.error());
  if (const Status answered = call.await(); !answered) return write_error(answered.error());
  return call->status;
}

// ---- reads ------------------------------------------------------------------------------------------

Result<Lsn> Engine::get(std::string_view key, std::string& value, const ReadOptions& options) {
  TL_TRY(impl_->check_sizes(key, 0));
  const auto body = [&]() -> Result<Lsn> {
    TL_TRY(Reactor * caller, impl_->host->caller());
    const Instant deadline = deadline_of(caller, options.timeout);
    TL_TRY(impl_->await_seed(caller, deadline));
    const std::uint64_t hash = impl_->hash(key);
    Shard& shard = impl_->owner(hash);
    const Receipt after{shard.id(), options.history, options.epoch, options.min_lsn};
    if (caller == &shard.reactor()) {
      return shard.get(hash, as_bytes(key), value, after, options.level, deadline);
    }
    TL_TRY(Ticket call, impl_->host->take(caller, deadline));
    call->kind = CallKind::get;
    call->read_level = options.level;
    call->shard = &shard;
    call->hash = hash;
    call->after = after;
    call->key.assign(key);
    call->value.swap(value);  // its capacity serves for the answer
    TL_TRY(call.launch());
    TL_TRY(call.await());
    if (!call->status) return call->status.error();
    value.swap(call->value);
    return call->receipt.lsn;
  };
  return without_exceptions(body);
}

Result<Lsn> Engine::get(std::string_view key, std::string& value) {
  return get(key, value, ReadOptions{{}, {}, {}, impl_->options.read_timeout, ReadLevel::standard});
}

namespace {

/// A fiber lets others run after each 64 KiB.
Status visit_page(std::string_view page, const Engine::Visitor& visitor, bool in_fiber) {
  constexpr std::size_t kVisitedBytes = 64 * 1024;
  std::size_t visited = 0;
  while (!page.empty()) {
    ScanRecord record;
    std::memcpy(&record, page.data(), sizeof record);
    page.remove_prefix(sizeof record);
    const std::string_view key = page.substr(0, record.key_bytes);
    const std::string_view value = page.substr(record.key_bytes, record.value_bytes);
    page.remove_prefix(key.size() + value.size());
    visitor(key, value, record.lsn);
    visited += sizeof record + key.size() + value.size();
    if (!in_fiber || visited < kVisitedBytes) continue;
    visited = 0;
    if (const Wakeup wakeup = this_fiber::yield(); wakeup == Wakeup::cancelled) return to_status(wakeup);
  }
  return {};
}

}  // namespace

Status Engine::scan(ShardId shard_id, ScanCursor& cursor, std::size_t keys_max, const Visitor& visitor,
                    Duration timeout) {
  TL_TRY(impl_->check_shard(shard_id));
  TL_TRY(Reactor * caller, impl_->host->caller());
  Shard& shard = *impl_->shards[shard_id.value];
  const Instant deadline = deadline_of(caller, timeout);
  if (caller == &shard.reactor()) return shard.scan(cursor, keys_max, visitor, deadline);
  TL_TRY(Ticket call, impl_->host->take(caller, deadline));
  call->kind = CallKind::scan;
  call->shard = &shard;
  call->cursor = cursor;
  call->keys_max = keys_max;
  TL_TRY(call.launch());
  TL_TRY(call.await());
  if (!call->status) return call->status.error();
  TL_TRY(visit_page(call->value, visitor, caller != nullptr));
  cursor = call->cursor;
  return {};
}

Result<std::pair<Digest, Lsn>> Engine::digest(ShardId shard_id, Duration timeout) {
  TL_TRY(impl_->check_shard(shard_id));
  TL_TRY(Reactor * caller, impl_->host->caller());
  const Instant deadline = deadline_of(caller, timeout);
  Shard& shard = *impl_->shards[shard_id.value];
  if (caller == &shard.reactor()) return shard.digest(deadline);
  TL_TRY(Ticket call, impl_->host->take(caller, deadline));
  call->kind = CallKind::digest;
  call->shard = &shard;
  TL_TRY(call.launch());
  TL_TRY(call.await());
  if (!call->status) return call->status.error();
  return std::pair{call->digest, call->receipt.lsn};
}

// ---- fibers on the cores ----------------------------------------------------------------------------

namespace {

struct SpawnTask final : HostTask {
  Shard* shard = nullptr;
  CallPool* gate = nullptr;
  std::function<void()> body;
};

void spawn_body(HostTask& task, Reactor&) {
  const std::unique_ptr<SpawnTask> spawn(static_cast<SpawnTask*>(&task));
  spawn->shard->spawn(std::move(spawn->body));
  spawn->gate->leave();  // from here on the shard counts it
}

}  // namespace

Status Engine::spawn_on(ShardId shard, std::function<void()> body) {
  TL_TRY(impl_->check_shard(shard));
  return without_exceptions([&]() -> Status {
    auto task = std::make_unique<SpawnTask>();
    CallPool& gate = impl_->host->pool();
    GatePass inside(gate);
    if (!inside) return EngineErrc::closed;
    task->HostTask::run = &spawn_body;
    task->shard = impl_->shards[shard.value].get();
    task->gate = &gate;
    task->body = std::move(body);
    TL_TRY(impl_->group->submit({shard.value}, *task));
    inside.hand_over();  // the task leaves, and has itself destroyed
    static_cast<void>(task.release());
    return {};
  });
}

}  // namespace tidelock
