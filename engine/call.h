/// One engine call on its way from a host thread, or from a fiber of another core, to the shard's owner core
/// and back. Everything that the owner core touches lives in the call, never on the caller's stack: a caller
/// whose deadline has passed abandons the call, and whoever completes it gives the slot back.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/engine/engine.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/primary.h>

#include "free_list.h"

namespace tidelock {

class CallPool;
class CallSlab;
class Shard;

enum class CallKind : std::uint8_t { put, erase, write, wait, get, scan, digest };

/// One operation of a batch. The bytes belong to the batch, or to the call that carries it.
struct BatchItem {
  bool is_put = true;
  std::uint64_t hash = 0;
  Bytes key;
  Bytes value;
};

/// What stands before each record's key and value in a page that a scan copied into a call.
struct ScanRecord {
  std::uint32_t key_bytes = 0;
  std::uint32_t value_bytes = 0;
  Lsn lsn{};
};

/// As a HostTask it travels between threads, as an AckWaiter it waits for its level without a fiber. The
/// waiter's `lsn`, `level`, `replicas` and `deadline` are the call's own.
struct Call final : HostTask, AckWaiter {
  // What is asked. Strings keep their capacity from one call to the next.
  CallKind kind = CallKind::put;
  Shard* shard = nullptr;
  std::uint64_t hash = 0;
  std::string key;
  std::string value;             ///< in: put. Out: get; scan's page
  std::vector<BatchItem> items;  ///< they point into `value`
  Receipt after{};               ///< get, wait: the write that is waited for, as far as it is known
  ReadLevel read_level = ReadLevel::standard;
  ScanCursor cursor{};
  std::size_t keys_max = 0;

  // What came of it.
  Status status;
  Receipt receipt{};
  Digest digest{};

  /// Called once, on the shard's core, when status and results stand.
  void (*completed)(Call& call) = nullptr;
  Call* next_write = nullptr;  ///< in the shard's queue of writes

  // Who asked.
  bool finished = false;   ///< host: under `mutex`. Fiber: its core only
  bool abandoned = false;  ///< the same
  std::mutex mutex;        ///< host threads that block
  std::condition_variable changed;
  Engine::PutCallback callback = nullptr;
  void* context = nullptr;
  CallPool* pool = nullptr;  ///< where it goes back to: one of these two
  CallSlab* slab = nullptr;
  ReactorGroup* group = nullptr;
  CoreId origin{};
  WaitQueue reply;
};

/// The calls of host threads: fixed in number, taken and given back without a lock. It is also the gate that
/// close() shuts.
/// Thread:   any
class CallPool {
 public:
  explicit CallPool(std::uint32_t slots);

  /// Errors:   closed
  Status enter();
  void leave();
  /// Enters, too.
  /// Errors:   busy, closed
  Result<Call*> take();
  /// Leaves, too.
  void give_back(Call& call);

  void shut();
  [[nodiscard]] std::uint32_t inside() const { return inside_.load(); }

 private:
  std::unique_ptr<Call[]> calls_;
  FreeList free_;
  Error busy_;  ///< made beforehand: who polls for a slot shall not allocate
  std::atomic<std::uint32_t> inside_{0};
  std::atomic<bool> shut_{false};
};

/// Inside the gate while it lives, if it was let in.
class [[nodiscard]] GatePass {
 public:
  explicit GatePass(CallPool& gate) : gate_(gate.enter() ? &gate : nullptr) {}
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;
  ~GatePass() {
    if (gate_ != nullptr) gate_->leave();
  }
  explicit operator bool() const { return gate_ != nullptr; }
  /// Somebody else leaves in its place.
  void hand_over() { gate_ = nullptr; }

 private:
  CallPool* gate_;
};

/// The calls that the fibers of one core make to other cores.
/// Thread:   owner core
class CallSlab {
 public:
  explicit CallSlab(std::uint32_t slots_max);
  /// Errors:   busy: `slots_max` calls are in flight, abandoned ones among them
  Result<Call*> take();
  void give_back(Call& call);
  [[nodiscard]] std::size_t inside() const { return all_.size() - free_.size(); }

 private:
  std::uint32_t slots_max_;
  Error busy_;
  std::vector<std::unique_ptr<Call>> all_;
  std::vector<Call*> free_;
};

}  // namespace tidelock
