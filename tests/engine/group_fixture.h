/// A group of real engines in one process, over shm: each may be closed and opened anew at any time.
#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>

#include "engine/engine_fixture.h"

namespace tidelock::test {

struct GroupShape {
  std::uint32_t nodes = 3;
  std::uint32_t shards = 1;
  std::uint32_t c = 1;
  bool failover = false;
  std::uint64_t last_memory = 0;  ///< of the last node's tables; 0: no limit
};

inline Options node_options(const std::vector<NodeAddress>& nodes, std::uint32_t node,
                            const GroupShape& shape) {
  Options options = small_options(shape.shards);
  options.nodes = nodes;
  options.node = node;
  options.c = shape.c;
  options.failover = shape.failover;
  if (node == shape.nodes) options.memory_bytes_max = shape.last_memory;
  options.lease = milliseconds(100);
  options.heartbeat = milliseconds(20);
  options.link_timeout = seconds(5);
  return options;
}

class EngineGroup {
 public:
  explicit EngineGroup(const GroupShape& shape) : shape_(shape), engines_(shape.nodes) {
    for (std::uint32_t node = 1; node <= shape.nodes; ++node) addresses_.push_back({node, unique_path()});
    open_all();
  }
  /// Nodes wait for each other, so they are opened side by side.
  void open_all() {
    std::vector<std::thread> threads;
    for (std::uint32_t node = 1; node <= shape_.nodes; ++node) {
      if (!engines_[node - 1]) threads.emplace_back([this, node] { open_node(node); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void open_node(std::uint32_t node) {
    auto engine = Engine::open(node_options(addresses_, node, shape_));
    if (engine) engines_[node - 1] = *std::move(engine);
  }
  /// As if it were killed, for the others: without its memory.
  void close(std::uint32_t node) { engines_[node - 1].reset(); }

  [[nodiscard]] Engine& operator[](std::uint32_t node) const {
    REQUIRE((node >= 1 && node <= shape_.nodes));
    REQUIRE(engines_[node - 1] != nullptr);
    return *engines_[node - 1];
  }
  [[nodiscard]] bool up(std::uint32_t node) const { return engines_[node - 1] != nullptr; }
  /// The node that leads the shard; 0: none does.
  [[nodiscard]] std::uint32_t leader(std::uint16_t shard = 0) const {
    for (std::uint32_t node = 1; node <= shape_.nodes; ++node) {
      if (up(node) && (*this)[node].roles()[shard].role == GroupRole::leading) return node;
    }
    return 0;
  }
  /// Every shard of every node that is up leads, or follows with memory.
  [[nodiscard]] bool whole() const {
    for (std::uint32_t node = 1; node <= shape_.nodes; ++node) {
      if (!up(node)) continue;
      for (const ShardRole& role : (*this)[node].roles()) {
        if (role.role == GroupRole::none || !role.memory) return false;
      }
    }
    return true;
  }
  void show_events() const {
    for (std::uint32_t node = 1; node <= shape_.nodes; ++node) {
      if (!up(node)) continue;
      for (const ShardRole& role : (*this)[node].roles()) {
        MESSAGE("node " << node << " shard " << role.shard.value << ": role " << static_cast<int>(role.role)
                        << ", memory " << role.memory << ", epoch " << role.epoch.counter << "."
                        << role.epoch.node << ", leader " << role.leader << ", committed "
                        << role.commit_lsn.value << ", visible "
                        << (*this)[node].visible_lsn(role.shard).value);
      }
      for (const std::string& line : (*this)[node].stats().events) MESSAGE("node " << node << ": " << line);
    }
  }

 private:
  GroupShape shape_;
  std::vector<NodeAddress> addresses_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace tidelock::test
