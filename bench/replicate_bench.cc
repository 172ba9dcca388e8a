// A replicated put: two engines in this process, primary and replica, each with one reactor on a core of its
// own, joined by the shm link. The raw limits are a cache line's round trip between those cores and a put
// into a plain table; a replicated put needs at least both.
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

#include <tidelock/engine/engine.h>
#include <tidelock/reactor/fiber.h>

#include "cache_line.h"
#include "support.h"
#include "table.h"

namespace tidelock::bench {
namespace {

constexpr ShardId kShard{0};
constexpr std::uint64_t kKeys = 16 * 1024;

struct Pair {
  std::unique_ptr<Engine> primary;
  std::unique_ptr<Engine> replica;
};

Result<Pair> open_pair(const CpuPair& cpus) {
  static std::atomic<unsigned> opened{0};
  Options options;
  options.seed = 1;
  options.overprovisioned = cpus.shared;
  options.pin = !cpus.shared;
  if (!cpus.shared) options.cpus = {cpus.first};
  options.listen = "@tidelock-bench-" + std::to_string(::getpid()) + "-" + std::to_string(++opened);
  Options replica_options = options;
  replica_options.role = NodeRole::replica;
  replica_options.node = 2;
  replica_options.primary = std::exchange(replica_options.listen, {});
  if (!cpus.shared) replica_options.cpus = {cpus.second};
  Pair pair;
  TL_TRY(pair.primary, Engine::open(options));
  TL_TRY(pair.replica, Engine::open(replica_options));
  // The replica follows before the primary's core has taken the link over.
  for (int tries = 0; pair.primary->link_count() == 0; ++tries) {
    if (tries == 10'000) return Error(std::make_error_code(std::errc::timed_out), "the replica's link");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return pair;
}

/// Sixteen bytes, a different key every time, of kKeys. A put may suspend while it uses its key, so each
/// fiber has keys of its own.
class Keys {
 public:
  explicit Keys(std::uint64_t seed = 0) : step_(seed << 40) {}
  std::string_view next() {
    const std::uint64_t index = mix(step_++) % kKeys;
    store(key_.data(), mix(index));
    store(key_.data() + 8, index);
    return as_text(key_);
  }

 private:
  std::uint64_t step_;
  std::array<std::byte, 16> key_{};
};

/// Runs `body` in a fiber of the primary's shard and waits for its end.
template <class F>
Status on_shard(Engine& engine, F&& body) {
  std::promise<void> ended;
  TL_TRY(engine.spawn_on(kShard, [&] {
    body();
    ended.set_value();
  }));
  ended.get_future().wait();
  return {};
}

/// Opens a pair of engines for `measure(engine, value)`, which runs in a fiber of the primary, and checks
/// afterwards that both hold the same.
template <class F>
void with_pair(benchmark::State& state, F&& measure) {
  const CpuPair cpus = cpu_pair();
  auto pair = open_pair(cpus);
  if (skipped(state, pair)) return;
  Engine& primary = *pair->primary;
  const std::string value(static_cast<std::size_t>(state.range(0)), 'v');
  if (skipped(state, on_shard(primary, [&] { measure(primary, value); }))) return;
  if (state.error_occurred()) return;
  const Lsn last = primary.visible_lsn(kShard);
  if (skipped(state, primary.wait({.shard = kShard, .lsn = last}, AckLevel::applied, seconds(30)))) return;
  const auto ours = primary.digest(kShard, seconds(30));
  const auto theirs = pair->replica->digest(kShard, seconds(30));
  if (skipped(state, ours) || skipped(state, theirs)) return;
  if (!(ours->first == theirs->first)) state.SkipWithError("primary and replica differ");
  state.SetLabel(describe(cpus));
}

// ---- one put at a time ----------------------------------------------------------------------------------

void put_one(benchmark::State& state, AckLevel ack) {
  with_pair(state, [&](Engine& engine, const std::string& value) {
    Keys keys;
    for (auto _ : state) {
      if (skipped(state, engine.put(keys.next(), value, {.ack = ack, .timeout = seconds(30)}))) break;
    }
  });
  state.SetItemsProcessed(state.iterations());
}

// ---- many in flight -------------------------------------------------------------------------------------

/// One fiber that has `in_flight` puts under way and waits for the oldest.
void put_pipelined(benchmark::State& state, AckLevel ack) {
  const auto in_flight = static_cast<std::size_t>(state.range(1));
  with_pair(state, [&](Engine& engine, const std::string& value) {
    Keys keys;
    std::vector<Receipt> receipts(in_flight);  // LSN 0: none yet
    std::size_t oldest = 0;
    for (auto _ : state) {
      if (receipts[oldest].lsn.value != 0 && skipped(state, engine.wait(receipts[oldest], ack, seconds(30))))
        break;
      const auto receipt = engine.put(keys.next(), value, {.ack = AckLevel::local, .timeout = seconds(30)});
      if (skipped(state, receipt)) break;
      receipts[oldest] = *receipt;
      oldest = oldest + 1 == in_flight ? 0 : oldest + 1;
    }
  });
  state.SetItemsProcessed(state.iterations());
}

/// As many fibers, each with one put under way, as `tidelock run` drives its load.
void put_fibers(benchmark::State& state, AckLevel ack) {
  const std::int64_t in_flight = state.range(1);
  std::int64_t puts = 0;
  std::int64_t measured = 0;
  with_pair(state, [&](Engine& engine, const std::string& value) {
    const WriteOptions options{.ack = ack, .timeout = seconds(30)};
    bool stop = false;
    std::vector<JoinHandle<void>> others;
    for (std::int64_t i = 1; i < in_flight; ++i) {
      auto other = Reactor::current()->spawn("writer", [&, i] {
        Keys keys(static_cast<std::uint64_t>(i));
        while (!stop) {
          if (skipped(state, engine.put(keys.next(), value, options))) return;
          ++puts;
        }
      });
      TL_ASSERT(other.has_value(), "there are 1,024 fibers");
      others.push_back(*std::move(other));
    }
    Keys keys;
    for (auto _ : state) {
      if (skipped(state, engine.put(keys.next(), value, options))) break;
      ++puts;
    }
    measured = puts;
    stop = true;
    for (auto& other : others) TL_ASSERT(other.join(Instant::never()).has_value(), "nobody cancels it");
  });
  state.SetItemsProcessed(measured);
}

// ---- the raw limit --------------------------------------------------------------------------------------

/// The same keys and values into a table of no shard, with no log and no link.
void table_put(benchmark::State& state) {
  on_cpu(cpu_pair().first, [&] {
    auto table = Table::create({});
    if (skipped(state, table)) return;
    const std::string value(static_cast<std::size_t>(state.range(0)), 'v');
    Keys keys;
    std::uint64_t lsn = 0;
    for (auto _ : state) {
      const Bytes key = as_bytes(keys.next());
      const std::uint64_t hash = hash_key(1, key);
      if (skipped(state, (*table)->reserve(hash, key, value.size()))) break;
      (*table)->put(hash, key, as_bytes(value), Lsn{++lsn});
    }
  });
  state.SetItemsProcessed(state.iterations());
}

void register_puts(const std::string& name, void (*function)(benchmark::State&, AckLevel), AckLevel ack,
                   std::int64_t in_flight) {
  benchmark::RegisterBenchmark(name.c_str(), function, ack)
      ->ArgNames({"value", "in_flight"})
      ->Args({16, in_flight})
      ->Args({1024, in_flight})
      ->UseRealTime();
}

void register_all() {
  const std::vector<std::pair<std::string, AckLevel>> levels = {
      {"local", AckLevel::local}, {"received", AckLevel::received}, {"applied", AckLevel::applied}};
  for (const auto& [name, ack] : levels) {
    register_puts("put/tidelock/ack_" + name, put_one, ack, 1);
    // With ack local nothing is ever under way, and a put does not suspend.
    if (ack == AckLevel::local) continue;
    register_puts("put/tidelock_fibers/ack_" + name, put_fibers, ack, 64);
    register_puts("put/tidelock_pipelined/ack_" + name, put_pipelined, ack, 64);
  }
  using benchmark::RegisterBenchmark;
  RegisterBenchmark("put/raw_cache_line", cache_line_round_trip)->UseRealTime();
  RegisterBenchmark("put/raw_table_put", table_put)->ArgName("value")->Arg(16)->Arg(1024)->UseRealTime();
}

}  // namespace
}  // namespace tidelock::bench

int main(int argc, char** argv) {
  tidelock::bench::register_all();
  return tidelock::bench::run(argc, argv, {.link = "shm", .needs_io_uring = true});
}
