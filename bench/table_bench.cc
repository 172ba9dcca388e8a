// A shard's table alone, on one core. The raw limit is the copy of a value at a random place in an array that
// holds all of them; beside it std::unordered_map with the same hash function.
#include <array>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tidelock/base/bytes.h>

#include "support.h"
#include "table.h"

namespace tidelock::bench {
namespace {

constexpr std::uint64_t kSeed = 1;
constexpr std::size_t kKeyBytes = 16;
constexpr std::size_t kValueBytesMax = 1024;
constexpr std::size_t kBatch = 16;

using Key = std::array<std::byte, kKeyBytes>;

Key key_of(std::uint64_t index) {
  Key key;
  store(key.data(), mix(index));
  store(key.data() + 8, index);
  return key;
}

/// Numbers below `size` in an order that no prefetcher guesses.
class RandomOrder {
 public:
  /// `size` below 2^32.
  explicit RandomOrder(std::uint64_t size) : size_(size) {}
  std::uint64_t next() {
    // Lemire's multiplication instead of a division.
    return ((mix(++step_) >> 32) * size_) >> 32;
  }

 private:
  std::uint64_t size_;
  std::uint64_t step_ = 0;
};

struct Shape {
  explicit Shape(const benchmark::State& state)
      : keys(static_cast<std::uint64_t>(state.range(0))),
        value_bytes(static_cast<std::size_t>(state.range(1))) {}
  std::uint64_t keys;
  std::size_t value_bytes;
  friend auto operator<=>(const Shape&, const Shape&) = default;
};

/// Some bytes to write, and a place to copy what was read to.
struct Buffers {
  std::array<std::byte, kValueBytesMax> from{};
  std::array<std::byte, kValueBytesMax> to{};
};

// ---- the three stores -----------------------------------------------------------------------------------

class TidelockStore {
 public:
  explicit TidelockStore(const Shape& shape) : value_bytes_(shape.value_bytes) {
    auto table = Table::create({});
    TL_ASSERT(table.has_value(), "no memory for an empty table");
    table_ = *std::move(table);
  }
  void put(std::uint64_t index, const std::byte* value) {
    const Key key = key_of(index);
    const std::uint64_t hash = hash_key(kSeed, key);
    TL_ASSERT(table_->reserve(hash, key, value_bytes_).has_value(), "no memory for a record");
    table_->put(hash, key, {value, value_bytes_}, Lsn{++lsn_});
  }
  bool get(std::uint64_t index, std::byte* to) const {
    const Key key = key_of(index);
    return get(hash_key(kSeed, key), key, to);
  }
  /// Looks up kBatch keys, all of them asked for before the first is read.
  void get_batch(RandomOrder& order, std::byte* to) const {
    std::array<Key, kBatch> keys;
    std::array<std::uint64_t, kBatch> hashes;
    for (std::size_t i = 0; i < kBatch; ++i) {
      keys[i] = key_of(order.next());
      hashes[i] = hash_key(kSeed, keys[i]);
      table_->prefetch(hashes[i]);
    }
    for (std::size_t i = 0; i < kBatch; ++i) get(hashes[i], keys[i], to);
  }

 private:
  bool get(std::uint64_t hash, const Key& key, std::byte* to) const {
    Table::Found found;
    if (!table_->find(hash, key, found)) return false;
    std::memcpy(to, found.value.data(), found.value.size());
    benchmark::ClobberMemory();
    return true;
  }
  std::size_t value_bytes_;
  std::uint64_t lsn_ = 0;
  std::unique_ptr<Table> table_;
};

/// No keys: the index is the address.
class RawStore {
 public:
  /// Uninitialised, so that the first touch of a page counts for whoever fills the store, as in the others.
  explicit RawStore(const Shape& shape)
      : value_bytes_(shape.value_bytes), values_(new std::byte[shape.keys * shape.value_bytes]) {}
  void put(std::uint64_t index, const std::byte* value) {
    std::memcpy(values_.get() + index * value_bytes_, value, value_bytes_);
    benchmark::ClobberMemory();
  }
  bool get(std::uint64_t index, std::byte* to) const {
    std::memcpy(to, values_.get() + index * value_bytes_, value_bytes_);
    benchmark::ClobberMemory();
    return true;
  }
  void get_batch(RandomOrder& order, std::byte* to) const {
    std::array<std::uint64_t, kBatch> indices;
    for (auto& index : indices) {
      index = order.next();
      __builtin_prefetch(values_.get() + index * value_bytes_);
    }
    for (const auto index : indices) get(index, to);
  }

 private:
  std::size_t value_bytes_;
  std::unique_ptr<std::byte[]> values_;
};

class StdStore {
 public:
  explicit StdStore(const Shape& shape) : value_bytes_(shape.value_bytes) {}
  void put(std::uint64_t index, const std::byte* value) {
    const Key key = key_of(index);
    const std::string_view text = as_text({value, value_bytes_});
    if (const auto found = map_.find(as_text(key)); found != map_.end()) {
      found->second.assign(text);
    } else {
      map_.emplace(as_text(key), text);
    }
    benchmark::ClobberMemory();
  }
  bool get(std::uint64_t index, std::byte* to) const {
    const Key key = key_of(index);
    const auto found = map_.find(as_text(key));
    if (found == map_.end()) return false;
    std::memcpy(to, found->second.data(), found->second.size());
    benchmark::ClobberMemory();
    return true;
  }
  void get_batch(RandomOrder& order, std::byte* to) const {
    for (std::size_t i = 0; i < kBatch; ++i) get(order.next(), to);
  }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view key) const { return hash_key(kSeed, as_bytes(key)); }
  };
  std::size_t value_bytes_;
  std::unordered_map<std::string, std::string, Hash, std::equal_to<>> map_;
};

// ---- what is measured -----------------------------------------------------------------------------------

/// Filling a million records takes longer than measuring them, and Google Benchmark calls a benchmark many
/// times over, the repetitions in random order. So a store stays for all benchmarks of its shape.
template <class Store>
Store& filled(const Shape& shape) {
  static std::map<Shape, Store> stores;
  const auto [place, made] = stores.try_emplace(shape, shape);
  if (made) {
    const Buffers buffers;
    for (std::uint64_t i = 0; i < shape.keys; ++i) place->second.put(i, buffers.from.data());
  }
  return place->second;
}

template <class Store>
void get(benchmark::State& state) {
  const Shape shape(state);
  on_cpu(cpu_pair().first, [&] {
    const Store& store = filled<Store>(shape);
    RandomOrder order(shape.keys);
    Buffers buffers;
    bool all = true;
    for (auto _ : state) all &= store.get(order.next(), buffers.to.data());
    if (!all) state.SkipWithError("a key that was put is missing");
  });
  state.SetItemsProcessed(state.iterations());
}

template <class Store>
void get_batch(benchmark::State& state) {
  const Shape shape(state);
  on_cpu(cpu_pair().first, [&] {
    const Store& store = filled<Store>(shape);
    RandomOrder order(shape.keys);
    Buffers buffers;
    for (auto _ : state) store.get_batch(order, buffers.to.data());
  });
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

template <class Store>
void get_miss(benchmark::State& state) {
  const Shape shape(state);
  on_cpu(cpu_pair().first, [&] {
    const Store& store = filled<Store>(shape);
    RandomOrder order(shape.keys);
    Buffers buffers;
    bool any = false;
    for (auto _ : state) any |= store.get(shape.keys + order.next(), buffers.to.data());
    if (any) state.SkipWithError("a key that was never put was found");
  });
  state.SetItemsProcessed(state.iterations());
}

/// The limit of a miss: one load from a random cache line, one line a key.
void raw_load(benchmark::State& state) {
  const Shape shape(state);
  on_cpu(cpu_pair().first, [&] {
    constexpr std::size_t kWords = kCacheLineBytes / sizeof(std::uint64_t);
    const std::vector<std::uint64_t> lines(shape.keys * kWords, 1);
    RandomOrder order(shape.keys);
    for (auto _ : state) {
      const std::uint64_t word = lines[order.next() * kWords];
      asm volatile("" : : "r"(word));  // DoNotOptimize is content with an address
    }
  });
  state.SetItemsProcessed(state.iterations());
}

/// Overwrites keys that are there.
template <class Store>
void put_hit(benchmark::State& state) {
  const Shape shape(state);
  on_cpu(cpu_pair().first, [&] {
    Store& store = filled<Store>(shape);
    RandomOrder order(shape.keys);
    const Buffers buffers;
    for (auto _ : state) store.put(order.next(), buffers.from.data());
  });
  state.SetItemsProcessed(state.iterations());
}

/// Fills an empty store, so growth is in it (splits, rehashes, page faults). One item is one put.
template <class Store>
void put_miss(benchmark::State& state) {
  const Shape shape(state);
  on_cpu(cpu_pair().first, [&] {
    const Buffers buffers;
    std::unique_ptr<Store> store;
    for (auto _ : state) {
      state.PauseTiming();
      store.reset();
      store = std::make_unique<Store>(shape);
      state.ResumeTiming();
      for (std::uint64_t i = 0; i < shape.keys; ++i) store->put(i, buffers.from.data());
    }
  });
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// ---- registration ---------------------------------------------------------------------------------------

using Function = void (*)(benchmark::State&);

void register_shapes(const std::string& name, Function function, std::int64_t keys_max) {
  auto* const benchmark = benchmark::RegisterBenchmark(name.c_str(), function);
  benchmark->ArgNames({"keys", "value"})->UseRealTime();
  for (const std::int64_t keys : {std::int64_t{1} << 10, std::int64_t{1} << 20, std::int64_t{1} << 24}) {
    if (keys > keys_max) continue;
    benchmark->Args({keys, 16});
    // 16 million values of 1 KiB would want 16 GiB a store.
    if (keys <= 1 << 20) benchmark->Args({keys, kValueBytesMax});
  }
}

template <class Store>
void register_store(const std::string& name, std::int64_t keys_max) {
  register_shapes("get_hit/" + name, get<Store>, keys_max);
  register_shapes("get_batch/" + name, get_batch<Store>, keys_max);
  if constexpr (std::is_same_v<Store, RawStore>) {
    register_shapes("get_miss/raw_load", raw_load, keys_max);
  } else {
    register_shapes("get_miss/" + name, get_miss<Store>, keys_max);
  }
  register_shapes("put_hit/" + name, put_hit<Store>, keys_max);
  register_shapes("put_miss/" + name, put_miss<Store>, keys_max);
}

/// Takes `--keys_max=N` out of the arguments: larger tables are left out.
std::int64_t take_keys_max(int& argc, char** argv) {
  constexpr std::string_view kFlag = "--keys_max=";
  std::int64_t keys_max = 1 << 20;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, kFlag.size()) == kFlag) {
      keys_max = std::atoll(argv[i] + kFlag.size());
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return keys_max;
}

}  // namespace
}  // namespace tidelock::bench

int main(int argc, char** argv) {
  using namespace tidelock::bench;
  const std::int64_t keys_max = take_keys_max(argc, argv);
  register_store<TidelockStore>("tidelock", keys_max);
  register_store<RawStore>("raw_memcpy", keys_max);
  register_store<StdStore>("std_unordered_map", keys_max);
  return run(argc, argv, {.link = "none", .needs_io_uring = false});
}
