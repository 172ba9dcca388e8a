/// The inside of an Engine: engine.cc opens and closes it, engine_calls.cc sends the calls on their way.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/transport.h>

#include "control.h"
#include "events.h"
#include "host.h"
#include "inspect.h"
#include "link_board.h"
#include "shard.h"

namespace tidelock {

struct Engine::Impl {
  explicit Impl(const Options& chosen) : options(chosen) {}

  // engine.cc
  Status start();
  Status start_shards();
  Status start_links();
  Status start_inspector();
  Status close(Duration timeout);
  Status close_in_order(Instant deadline);
  Status come_to_rest(Instant deadline);
  void keep_last_words();
  [[nodiscard]] EngineStats gather() const;
  [[nodiscard]] std::vector<LinkInfo> links() const;

  // engine_group.cc
  Status on_each_shard(Engine& engine, const char* what, Duration timeout,
                       const std::function<Status(Shard& shard, Instant deadline)>& body);

  // engine_calls.cc
  Status check_sizes(std::string_view key, std::size_t value_bytes) const;
  Status check_shard(ShardId shard) const;
  Status check_replicas(std::uint32_t replicas) const;
  /// In a group after await_seed() only.
  [[nodiscard]] std::uint64_t hash(std::string_view key) const {
    return hash_key(seed ? seed->value() : lineage.routing_seed, as_bytes(key));
  }
  [[nodiscard]] Shard& owner(std::uint64_t key_hash) const {
    return *shards[shard_of_hash(key_hash, options.shards).value];
  }
  [[nodiscard]] WriteOptions write_defaults() const;
  Result<Receipt> write(CallKind kind, std::string_view key, std::string_view value, const WriteOptions& how);

  // engine_group.cc
  /// Suspends a fiber, blocks a host thread. Outside of groups it does nothing.
  /// Errors:   not_ready at the deadline; closed; cancelled
  Status await_seed(Reactor* caller, Instant deadline);

  // In the order in which they are made.
  const Options options;
  Lineage lineage;                  ///< constant once open() has returned. Of no use in a group
  std::unique_ptr<GroupSeed> seed;  ///< in a group
  EventLog events;
  mutable LinkBoard board;  ///< links() lets it look once more
  std::unique_ptr<ReactorGroup> group;
  std::unique_ptr<Host> host;
  std::vector<std::unique_ptr<Shard>> shards;
  std::unique_ptr<Transport> transport;  ///< as long as there are links, and shorter than the reactors turn
  std::unique_ptr<Control> control;
  std::unique_ptr<Inspector> inspector;

  /// How far close() has come. It never goes back: what a step has ended, the next close() leaves alone.
  enum class Phase : std::uint8_t {
    running,     ///< or coming to rest
    destroying,  ///< shards may have ended, none is at work
    stopping,    ///< all have, the reactors remain
    closed,
  };
  std::mutex closing;            ///< one close() at a time
  Phase phase = Phase::running;  ///< under `closing`
  mutable std::mutex last_words;
  EngineStats final_stats;  ///< under `last_words`: what stats() says once the gate is shut
};

}  // namespace tidelock
