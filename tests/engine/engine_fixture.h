/// Engines for tests: they share the machine's few cores with everything else, so none pins or spins.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>

#include <doctest/doctest.h>

#include <tidelock/engine/engine.h>

namespace tidelock::test {

/// No wait of a test is longer.
inline constexpr Duration kPatience = seconds(60);

/// Writes of a test that wants many: the sanitizers take several times as long for each.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr int kMany = 300;
#else
inline constexpr int kMany = 2000;
#endif

inline Options small_options(std::uint32_t shards = 1) {
  Options options;
  options.shards = shards;
  options.pin = false;
  options.overprovisioned = true;
  options.log_bytes = 1 << 20;
  options.ring_bytes = 256 << 10;
  options.max_fibers = 64;
  options.write_timeout = options.read_timeout = kPatience;
  options.connect_timeout = kPatience;
  options.link_timeout = seconds(30);
  return options;
}

/// An abstract socket that no other test uses.
inline std::string unique_path() {
  static std::atomic<int> count{0};
  return "@tidelock-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
}

inline std::unique_ptr<Engine> open(const Options& options) {
  auto engine = Engine::open(options);
  if (!engine) FAIL("open: " << engine.error().message());
  return *std::move(engine);
}

inline Options primary_options(const std::string& path, std::uint32_t shards = 1) {
  Options options = small_options(shards);
  options.listen = path;
  return options;
}

inline Options replica_options(const std::string& path, std::uint32_t shards = 1) {
  Options options = small_options(shards);
  options.role = NodeRole::replica;
  options.node = 2;
  options.primary = path;
  return options;
}

/// A primary and its replica in one process, joined by the shm link.
struct Pair {
  explicit Pair(std::uint32_t shards = 1)
      : path(unique_path()),
        primary(open(primary_options(path, shards))),
        replica(open(replica_options(path, shards))) {}
  Pair(const Options& of_primary, const Options& of_replica)
      : path(of_primary.listen), primary(open(of_primary)), replica(open(of_replica)) {}
  std::string path;
  std::unique_ptr<Engine> primary;
  std::unique_ptr<Engine> replica;
};

template <class Predicate>
bool eventually(Predicate&& holds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kPatience.ns);
  while (!holds()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// Runs `body` in a fiber of the shard's core and waits for its end. Checks inside report as usual.
template <class F>
void in_fiber(Engine& engine, ShardId shard, F&& body) {
  std::atomic<bool> ended{false};
  const Status spawned = engine.spawn_on(shard, [&] {
    body();
    ended = true;
  });
  REQUIRE(spawned.has_value());
  while (!ended) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

/// While it lives the shard's core does nothing else, like one whose process was stopped.
class Standstill {
 public:
  Standstill(Engine& engine, ShardId shard) {
    const Status spawned = engine.spawn_on(shard, [this] {
      standing_ = true;
      while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      standing_ = false;
    });
    REQUIRE(spawned.has_value());
    while (!standing_) std::this_thread::yield();
  }
  Standstill(const Standstill&) = delete;
  Standstill& operator=(const Standstill&) = delete;
  ~Standstill() { release(); }
  void release() {
    released_ = true;
    while (standing_) std::this_thread::yield();
  }

 private:
  std::atomic<bool> standing_{false};
  std::atomic<bool> released_{false};
};

/// A key of that shard: `prefix` and a number.
inline std::string key_on(const Engine& engine, ShardId shard, const std::string& prefix = "key") {
  for (int i = 0;; ++i) {
    std::string key = prefix + std::to_string(i);
    if (engine.shard_of(key) == shard) return key;
  }
}

inline std::string pattern(std::size_t bytes, unsigned seed) {
  std::string text(bytes, '\0');
  std::uint32_t state = seed * 2654435761U + 1;
  for (char& c : text) {
    state = state * 1664525U + 1013904223U;
    c = static_cast<char>(state >> 24);
  }
  return text;
}

inline bool has_event(const Engine& engine, const std::string& part) {
  for (const std::string& line : engine.stats().events) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

inline void check_equal(Engine& primary, Engine& replica) {
  for (std::uint16_t shard = 0; shard < primary.shards(); ++shard) {
    CAPTURE(shard);
    const Lsn last = primary.visible_lsn({shard});
    CHECK(eventually([&] { return replica.visible_lsn({shard}) >= last; }));
    const auto ours = primary.digest({shard}, kPatience);
    const auto theirs = replica.digest({shard}, kPatience);
    REQUIRE((ours && theirs));
    CHECK(*ours == *theirs);
  }
}

}  // namespace tidelock::test
