#include "table.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/engine/errc.h>

#include "arena.h"
#include "engine/heap_count.h"
#include "sanitized.h"

using namespace tidelock;
using tidelock::test::heap_allocations;
using tidelock::test::kSanitized;

namespace {

constexpr std::uint64_t kSeed = 42;

std::uint64_t hash_of(const std::string& key) { return hash_key(kSeed, as_bytes(key)); }

std::unique_ptr<Table> open(std::uint64_t memory_bytes_max = 0) {
  auto table = Table::create({.memory_bytes_max = memory_bytes_max, .huge_pages = true});
  REQUIRE(table);
  return std::move(*table);
}

void put(Table& table, std::uint64_t hash, const std::string& key, const std::string& value,
         std::uint64_t lsn) {
  REQUIRE(table.reserve(hash, as_bytes(key), value.size()));
  table.put(hash, as_bytes(key), as_bytes(value), {lsn});
}
void put(Table& table, const std::string& key, const std::string& value, std::uint64_t lsn) {
  put(table, hash_of(key), key, value, lsn);
}

/// The value, or "<absent>".
std::string get(const Table& table, std::uint64_t hash, const std::string& key,
                std::uint64_t* lsn = nullptr) {
  Table::Found found;
  if (!table.find(hash, as_bytes(key), found)) return "<absent>";
  if (lsn != nullptr) *lsn = found.lsn.value;
  return std::string(as_text(found.value));
}
std::string get(const Table& table, const std::string& key) { return get(table, hash_of(key), key); }

using Records = std::multimap<std::string, std::pair<std::string, std::uint64_t>>;

Records scan_all(const Table& table, std::size_t bytes_max) {
  Records records;
  std::uint64_t position = 0;
  do {
    position = table.scan(
        position, bytes_max,
        [](void* context, Bytes key, Bytes value, Lsn lsn) {
          static_cast<Records*>(context)->emplace(as_text(key),
                                                  std::pair(std::string(as_text(value)), lsn.value));
        },
        &records);
  } while (position != 0);
  return records;
}

/// Order-independent: a sum over records.
std::pair<std::uint64_t, std::uint64_t> digest(const Table& table) {
  std::pair<std::uint64_t, std::uint64_t> sum{0, 0};
  std::uint64_t position = 0;
  do {
    position = table.scan(
        position, 64 * 1024,
        [](void* context, Bytes key, Bytes value, Lsn lsn) {
          auto* total = static_cast<std::pair<std::uint64_t, std::uint64_t>*>(context);
          total->first += hash_key(hash_key(lsn.value, key), value);
          ++total->second;
        },
        &sum);
  } while (position != 0);
  return sum;
}

std::string random_bytes(std::mt19937_64& random, std::size_t bytes) {
  std::string text(bytes, '\0');
  std::uint64_t word = random();
  for (std::size_t i = 0; i < bytes; ++i) {
    if (i % 64 == 0) word = random();
    text[i] = static_cast<char>(word >> (i % 8 * 8));
  }
  return text;
}

std::size_t random_value_bytes(std::mt19937_64& random) {
  switch (random() % 64) {
    case 0:
      return random() % 200'000;
    case 1:
    case 2:
    case 3:
      return random() % 5000;
    case 4:
    case 5:
    case 6:
    case 7:
      return random() % 400;
    default:
      return random() % 120;
  }
}

/// Keys of 1 B to 64 KiB, long ones rarely.
std::string model_key(std::uint64_t number) {
  std::mt19937_64 random(number);
  const std::size_t bytes = number % 97 == 0 ? 1 + random() % 65'536 : number < 200 ? 1 : 1 + random() % 60;
  return random_bytes(random, bytes);
}

using Model = std::unordered_map<std::string, std::pair<std::string, std::uint64_t>>;

void model_step(Table& table, Model& model, std::mt19937_64& random, const std::string& key,
                std::uint64_t hash, std::uint64_t lsn) {
  const std::uint64_t dice = random() % 10;
  if (dice < 4) {
    const std::string value = random_bytes(random, random_value_bytes(random));
    if (dice == 0) {
      auto assembly =
          table.assemble(static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size()));
      REQUIRE(assembly);
      assembly->write(0, as_bytes(key));
      assembly->write(key.size(), as_bytes(value));
      REQUIRE(table.commit(std::move(*assembly), hash, {lsn}));
    } else {
      put(table, hash, key, value, lsn);
    }
    model[key] = {value, lsn};
  } else if (dice < 6) {
    REQUIRE(table.erase(hash, as_bytes(key)) == (model.erase(key) == 1));
  } else {
    std::uint64_t found = 0;
    const auto wanted = model.find(key);
    const std::string value = get(table, hash, key, &found);
    REQUIRE(value == (wanted == model.end() ? "<absent>" : wanted->second.first));
    if (wanted != model.end()) REQUIRE(found == wanted->second.second);
  }
}

Table::Assembly assembled(Table& table, const std::string& key, const std::string& value) {
  auto assembly =
      table.assemble(static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size()));
  REQUIRE(assembly);
  assembly->write(0, as_bytes(key));
  assembly->write(key.size(), as_bytes(value));
  return *std::move(assembly);
}

bool put_newer(Table& table, const std::string& key, const std::string& value, std::uint64_t lsn,
               std::uint64_t mask = ~0ULL) {
  const auto done = table.put_newer(hash_of(key) & mask, as_bytes(key), as_bytes(value), {lsn});
  REQUIRE(done);
  return *done;
}

/// A table that is written to, and another that a walk over it and its writes fill together, each at its own
/// pace: what the walk saw may come before the writes that made it, but not after later ones.
class CopyModel {
 public:
  CopyModel(std::uint64_t seed, std::uint64_t mask) : random_(seed), mask_(mask) {
    for (int i = 0; i < 200; ++i) keys_.push_back("key " + std::to_string(i));
  }

  void run() {
    for (int i = 0; i < 400; ++i) write();
    writes_.clear();  // before the walk began, and no longer at hand
    for (bool walked = false; !walked || !large_.empty();) {
      for (std::uint64_t i = random_() % 8; i > 0; --i) write();
      for (std::uint64_t i = random_() % 8; i > 0 && !writes_.empty(); --i) apply_oldest();
      if (!large_.empty() && random_() % 2 == 0) {
        continue_large();
      } else if (!walked) {
        walked = !walk();
      }
    }
    while (!writes_.empty()) apply_oldest();
    CHECK(copy_->keys() == source_->keys());
    CHECK(digest(*copy_) == digest(*source_));
    CHECK(copy_->pins() == 0);
  }
  std::uint64_t yielded = 0;  ///< of the copy's: something newer was there
  std::uint64_t voided = 0;   ///< large values that were replaced while they travelled

 private:
  struct Write {
    std::string key, value;
    std::uint64_t lsn;
    bool is_put;
  };
  struct Large {
    std::string key;
    std::uint64_t lsn;
    Table::Assembly assembly;
    Table::Pin pin;
    std::size_t at = 0;
  };
  static constexpr std::size_t kLarge = 66'000;

  [[nodiscard]] std::uint64_t hash(const std::string& key) const { return hash_of(key) & mask_; }

  void write() {
    Write next{keys_[random_() % keys_.size()], {}, ++lsn_, random_() % 3 != 0};
    if (next.is_put) {
      const std::size_t bytes = random_() % 20 == 0 ? kLarge + random_() % kLarge : random_() % 300;
      next.value = random_bytes(random_, bytes);
      put(*source_, hash(next.key), next.key, next.value, next.lsn);
    } else {
      source_->erase(hash(next.key), as_bytes(next.key));
    }
    writes_.push_back(std::move(next));
  }

  void apply_oldest() {
    const Write next = std::move(writes_.front());
    writes_.pop_front();
    if (!next.is_put) {
      copy_->erase_older(hash(next.key), as_bytes(next.key), {next.lsn});
      return;
    }
    const auto done =
        next.value.size() > kLarge
            ? copy_->commit_newer(assembled(*copy_, next.key, next.value), hash(next.key), {next.lsn})
            : copy_->put_newer(hash(next.key), as_bytes(next.key), as_bytes(next.value), {next.lsn});
    REQUIRE(done);
    if (!*done) ++yielded;
  }

  /// False: that was the last step.
  bool walk() {
    position_ = source_->scan(
        position_, 2000,
        [](void* context, Bytes key, Bytes value, Lsn lsn) {
          static_cast<CopyModel*>(context)->take(key, value, lsn);
        },
        this);
    return position_ != 0;
  }

  void take(Bytes key, Bytes value, Lsn lsn) {
    if (value.size() <= kLarge) {
      REQUIRE(copy_->put_newer(hash(std::string(as_text(key))), key, value, lsn));
      return;
    }
    Large large{std::string(as_text(key)), lsn.value, {}, {}};
    auto assembly =
        copy_->assemble(static_cast<std::uint32_t>(key.size()), static_cast<std::uint32_t>(value.size()));
    REQUIRE(assembly);
    large.assembly = *std::move(assembly);
    large.assembly.write(0, key);
    large.pin = source_->pin(hash(large.key), key);
    large_.push_back(std::move(large));
  }

  /// A piece of the oldest; in the turn of its last one it is looked for whether it is still what is there.
  void continue_large() {
    Large& large = large_.front();
    const Bytes value = large.pin.value();
    const std::size_t piece = std::min<std::size_t>(30'000, value.size() - large.at);
    large.assembly.write(large.key.size() + large.at, value.subspan(large.at, piece));
    large.at += piece;
    if (large.at < value.size()) return;
    std::uint64_t lsn = 0;
    get(*source_, hash(large.key), large.key, &lsn);
    if (lsn == large.lsn) {
      REQUIRE(copy_->commit_newer(std::move(large.assembly), hash(large.key), {large.lsn}));
    } else {
      ++voided;
    }
    large_.pop_front();
  }

  std::mt19937_64 random_;
  std::uint64_t mask_;
  std::unique_ptr<Table> source_ = open();
  std::unique_ptr<Table> copy_ = open();
  std::vector<std::string> keys_;
  std::deque<Write> writes_;  ///< that the copy has not seen
  std::deque<Large> large_;   ///< that the walk came upon
  std::uint64_t lsn_ = 0;
  std::uint64_t position_ = 0;
};

}  // namespace

TEST_SUITE("engine/table") {
  TEST_CASE("engine/table: shards divide the hashes evenly and in range") {
    for (const std::uint32_t shards : {1U, 2U, 3U, 7U, 256U}) {
      std::vector<int> hits(shards);
      for (std::uint64_t i = 0; i < 20'000; ++i) {
        const ShardId shard = shard_of_hash(hash_of("key" + std::to_string(i)), shards);
        REQUIRE(shard.value < shards);
        ++hits[shard.value];
      }
      const auto [least, most] = std::minmax_element(hits.begin(), hits.end());
      CHECK(*least * 3 > *most);
    }
    CHECK(hash_key(1, as_bytes("a")) != hash_key(2, as_bytes("a")));
  }

  TEST_CASE("engine/table: a record is found with its value and LSN, replaced and erased") {
    auto table = open();
    CHECK(get(*table, "a") == "<absent>");
    put(*table, "a", "1", 7);
    std::uint64_t lsn = 0;
    CHECK(get(*table, hash_of("a"), "a", &lsn) == "1");
    CHECK(lsn == 7);
    put(*table, "a", "", 8);
    CHECK(get(*table, hash_of("a"), "a", &lsn).empty());
    CHECK(lsn == 8);
    CHECK(table->keys() == 1);
    CHECK(table->erase(hash_of("a"), as_bytes("a")));
    CHECK_FALSE(table->erase(hash_of("a"), as_bytes("a")));
    CHECK(get(*table, "a") == "<absent>");
    CHECK(table->keys() == 0);
  }

  TEST_CASE("engine/table: a value changes between cells, slabs and extents in any order") {
    auto table = open();
    const std::array<std::size_t, 9> sizes = {0, 10, 38, 60, 100, 130, 5000, 70'000, 300'000};
    const std::string key = "some key";
    std::uint64_t lsn = 0;
    for (const std::size_t from : sizes) {
      for (const std::size_t to : sizes) {
        put(*table, key, std::string(from, 'f'), ++lsn);
        put(*table, key, std::string(to, 't'), ++lsn);
        std::uint64_t found = 0;
        REQUIRE(get(*table, hash_of(key), key, &found) == std::string(to, 't'));
        REQUIRE(found == lsn);
        REQUIRE(table->keys() == 1);
      }
    }
  }

  TEST_CASE("engine/table: agrees with a map over random puts, gets and erases of all sizes") {
    // Which bits of a key's hash count. All, as in production; or so few that hashes collide and records are
    // chained.
    const std::array<std::pair<std::uint64_t, std::uint64_t>, 3> rounds = {
        {{~0ULL, 200'000}, {0xff00'0000'0003'0000, 50'000}, {0x0000'0000'0070'0000, 50'000}}};
    for (const auto& [mask, operations] : rounds) {
      CAPTURE(mask);
      auto table = open();
      std::mt19937_64 random(7);
      Model model;
      std::vector<std::string> keys;
      for (std::uint64_t i = 0; i < operations / 30; ++i) keys.push_back(model_key(i));
      std::uint64_t chained_max = 0;
      for (std::uint64_t lsn = 1; lsn <= operations; ++lsn) {
        const std::string& key = keys[random() % keys.size()];
        model_step(*table, model, random, key, hash_of(key) & mask, lsn);
        chained_max = std::max(chained_max, table->chained());
        if (table->has_deferred()) table->free_some(64 << 10);
      }
      CHECK(table->keys() == model.size());
      CHECK(table->moved_bytes_max() <= 16384);
      CHECK((chained_max > 100) == (mask != ~0ULL));
      const Records records = scan_all(*table, 5000);
      CHECK(records.size() == model.size());
      for (const auto& [key, value] : records) REQUIRE(model.at(key) == value);
      for (const auto& [key, value] : model) REQUIRE(table->erase(hash_of(key) & mask, as_bytes(key)));
      CHECK(table->keys() == 0);
      CHECK(table->chained() == 0);
    }
  }

  TEST_CASE("engine/table: no put moves more than 16 KiB, and even hashes are never chained") {
    for (const std::size_t value_bytes : {16, 80}) {
      auto table = open();
      std::uint64_t chained_max = 0;
      const std::uint64_t keys = value_bytes == 16 ? 1'000'000 : 300'000;
      for (std::uint64_t i = 0; i < keys; ++i) {
        const std::string key = "key:" + std::to_string(i);
        const std::string value(value_bytes, 'v');
        put(*table, key, value, i + 1);
        chained_max = std::max(chained_max, table->chained());
      }
      CHECK(table->keys() == keys);
      CHECK(table->moved_bytes_max() > 4096);
      CHECK(table->moved_bytes_max() <= 16384);
      CHECK(chained_max < 100);
      MESSAGE("values of " << value_bytes << " B: " << table->memory_bytes() / keys
                           << " B a key, moved at most " << table->moved_bytes_max() << " B, chained at most "
                           << chained_max);
    }
  }

  TEST_CASE("engine/table: keys with one and the same hash all work") {
    auto table = open();
    const std::uint64_t hash = 0x0123'4567'89ab'cdef;
    std::map<std::string, std::string> model;
    std::mt19937_64 random(3);
    for (std::uint64_t i = 0; i < 4000; ++i) {
      const std::string key = "same" + std::to_string(random() % 400);
      if (random() % 3 == 0) {
        REQUIRE(table->erase(hash, as_bytes(key)) == (model.erase(key) == 1));
      } else {
        model[key] = std::string(random() % 200, static_cast<char>('a' + i % 26));
        put(*table, hash, key, model[key], i);
      }
    }
    CHECK(table->chained() > 0);
    CHECK(table->keys() == model.size());
    for (const auto& [key, value] : model) REQUIRE(get(*table, hash, key) == value);
    CHECK(scan_all(*table, 0).size() == model.size());
    // No segments are made that could not divide such keys: 400 of up to 200 bytes, in their size classes.
    CHECK(table->memory_bytes() < 400'000);
    CHECK(table->moved_bytes_max() <= 16384);
    for (const auto& [key, value] : model) REQUIRE(table->erase(hash, as_bytes(key)));
    CHECK(table->chained() == 0);
    CHECK(table->keys() == 0);
  }

  TEST_CASE("engine/table: hashes chosen to share a prefix or a bucket cost bounded memory and all work") {
    // What the attacker fixes; the other bits are random.
    const std::array<std::uint64_t, 4> fixed = {0xffff'ffff'ffff'0000, 0x0000'0000'000f'0000,
                                                0xffff'ffff'f000'0000, 0xffff'fff0'000f'0000};
    for (const std::uint64_t mask : fixed) {
      CAPTURE(mask);
      auto table = open();
      std::mt19937_64 random(11);
      const std::uint64_t pattern = random();
      std::vector<std::uint64_t> hashes;
      for (std::uint64_t i = 0; i < 3000; ++i) {
        hashes.push_back((random() & ~mask) | (pattern & mask));
        put(*table, hashes.back(), "k" + std::to_string(i), "value" + std::to_string(i), i + 1);
      }
      for (std::uint64_t i = 0; i < 3000; ++i) {
        REQUIRE(get(*table, hashes[i], "k" + std::to_string(i)) == "value" + std::to_string(i));
      }
      CHECK(scan_all(*table, 64 * 1024).size() == 3000);
      CHECK(table->memory_bytes() < (4U << 20));
      CHECK(table->moved_bytes_max() <= 16384);
    }
  }

  TEST_CASE("engine/table: a scan visits what is there throughout, across splits and erases") {
    auto table = open();
    std::mt19937_64 random(5);
    std::set<std::string> lasting;
    for (int i = 0; i < 3000; ++i) {
      const std::string key = "lasting" + std::to_string(i);
      lasting.insert(key);
      put(*table, key, std::string(random() % 90, 'v'), 1);
    }
    std::set<std::string> seen;
    std::uint64_t position = 0;
    std::uint64_t next_key = 0;
    int pages = 0;
    do {
      position = table->scan(
          position, 4096,
          [](void* context, Bytes key, Bytes, Lsn) {
            static_cast<std::set<std::string>*>(context)->emplace(as_text(key));
          },
          &seen);
      ++pages;
      for (int i = 0; i < 500 && pages < 60; ++i) put(*table, "later" + std::to_string(next_key++), "v", 2);
      for (int i = 0; i < 100; ++i) {
        const std::string key = "later" + std::to_string(random() % next_key);
        table->erase(hash_of(key), as_bytes(key));
      }
      // Replacing moves records between cells, but never across a position.
      const std::string key = "lasting" + std::to_string(random() % 3000);
      put(*table, key, std::string(random() % 300, 'w'), 3);
    } while (position != 0);
    CHECK(pages > 20);
    CHECK(std::includes(seen.begin(), seen.end(), lasting.begin(), lasting.end()));
  }

  TEST_CASE("engine/table: a step of a scan costs at most what was asked for, or is one record") {
    auto table = open();
    std::mt19937_64 random(8);
    std::set<std::string> keys;
    for (int i = 0; i < 500; ++i) {
      const std::string key = "k" + std::to_string(i);
      keys.insert(key);
      put(*table, key, std::string(random() % 10 == 0 ? 20'000 : random() % 1000, 'v'), 1);
    }
    struct Step {
      std::size_t records = 0, bytes = 0;
      std::set<std::string>* left = nullptr;
    };
    for (const std::size_t bytes_max : {0, 500, 10'000, 65'536}) {
      CAPTURE(bytes_max);
      std::set<std::string> left = keys;
      std::uint64_t position = 0;
      do {
        Step step{0, 0, &left};
        position = table->scan(
            position, bytes_max,
            [](void* context, Bytes key, Bytes value, Lsn) {
              Step& into = *static_cast<Step*>(context);
              ++into.records;
              into.bytes += 24 + key.size() + value.size();
              CHECK(into.left->erase(std::string(as_text(key))) == 1);  // each once
            },
            &step);
        CHECK((step.bytes <= bytes_max || step.records == 1));
      } while (position != 0);
      CHECK(left.empty());
    }
  }

  TEST_CASE("engine/table: the content, not its order of arrival, decides what scans show") {
    auto forward = open();
    auto backward = open();
    for (std::uint64_t i = 0; i < 20'000; ++i) {
      put(*forward, "k" + std::to_string(i), std::string(i % 150, 'v'), i + 1);
    }
    for (std::uint64_t i = 20'000; i-- > 0;) {
      put(*backward, "k" + std::to_string(i), "an older value", 1);
      put(*backward, "k" + std::to_string(i), std::string(i % 150, 'v'), i + 1);
    }
    CHECK(digest(*forward) == digest(*backward));
    put(*backward, "k5", std::string(5, 'w'), 6);
    CHECK(digest(*forward) != digest(*backward));
  }

  TEST_CASE("engine/table: at the memory limit puts fail, everything else goes on") {
    auto table = open(1 << 20);
    std::uint64_t stored = 0;
    for (;; ++stored) {
      const std::string key = "k" + std::to_string(stored);
      const Status status = table->reserve(hash_of(key), as_bytes(key), 300);
      if (!status) {
        CHECK(status.error() == EngineErrc::out_of_memory);
        CHECK(status.error().message().find("1048576") != std::string::npos);
        break;
      }
      table->put(hash_of(key), as_bytes(key), as_bytes(std::string(300, 'v')), {stored + 1});
      REQUIRE(stored < 10'000);
    }
    CHECK(stored > 1000);
    CHECK(table->memory_bytes() <= (1U << 20));
    CHECK(table->memory_bytes() > (1U << 20) - 32'768);
    CHECK(table->keys() == stored);
    put(*table, "k1", std::string(300, 'w'), stored + 2);
    CHECK(get(*table, "k1") == std::string(300, 'w'));
    CHECK(get(*table, "k" + std::to_string(stored)) == "<absent>");
    CHECK_FALSE(table->assemble(10, 10'000));
    CHECK(table->erase(hash_of("k2"), as_bytes("k2")));
    put(*table, "k2", std::string(300, 'x'), stored + 3);
    CHECK(get(*table, "k2") == std::string(300, 'x'));
  }

  TEST_CASE("engine/table: a reserve without its put takes no memory") {
    auto table = open();
    const std::string key = "k";
    REQUIRE(table->reserve(hash_of(key), as_bytes(key), 1 << 20));
    REQUIRE(table->reserve(hash_of(key), as_bytes(key), 10));
    while (table->has_deferred()) table->free_some(64 << 10);
    const std::uint64_t before = table->memory_bytes();
    for (int i = 0; i < 100; ++i) {
      REQUIRE(table->reserve(hash_of(key), as_bytes(key), 1 << 20));
      REQUIRE(table->reserve(hash_of(key), as_bytes(key), 3000));
      while (table->has_deferred()) table->free_some(64 << 10);
    }
    CHECK(table->memory_bytes() < before + 10'000);
    CHECK(table->keys() == 0);
  }

  TEST_CASE("engine/table: an assembled put is invisible until it is committed") {
    auto table = open();
    for (const std::uint32_t value_bytes : {0U, 20U, 3000U, 65'536U, 5'000'000U}) {
      CAPTURE(value_bytes);
      std::mt19937_64 random(value_bytes);
      const std::string key = "assembled";
      const std::string whole = key + random_bytes(random, value_bytes);
      put(*table, key, "older", 1);
      auto assembly = table->assemble(static_cast<std::uint32_t>(key.size()), value_bytes);
      REQUIRE(assembly);
      REQUIRE(assembly->active());
      for (std::size_t offset = 0; offset < whole.size(); offset += 32'768) {
        assembly->write(offset, as_bytes(std::string_view(whole).substr(offset, 32'768)));
      }
      CHECK(as_text(assembly->key()) == key);
      CHECK(get(*table, key) == "older");
      Table::Assembly moved = std::move(*assembly);
      CHECK_FALSE(assembly->active());
      REQUIRE(table->commit(std::move(moved), hash_of(key), {9}));
      CHECK_FALSE(moved.active());
      std::uint64_t lsn = 0;
      CHECK(get(*table, hash_of(key), key, &lsn) == whole.substr(key.size()));
      CHECK(lsn == 9);
      put(*table, key, "newer", 10);
      CHECK(get(*table, key) == "newer");
      CHECK(table->keys() == 1);
    }
  }

  TEST_CASE("engine/table: a prepared commit needs no memory, and loses nothing to what comes between") {
    auto table = open(1 << 20);
    std::uint64_t lsn = 0;
    auto assembly = table->assemble(3, 1000);
    REQUIRE(assembly);
    assembly->write(0, as_bytes("big"));
    assembly->write(3, as_bytes(std::string(1000, 'b')));
    REQUIRE(table->prepare(*assembly, hash_of("big")));
    // Another write takes the preparation away, not the assembly's memory.
    put(*table, "other", std::string(1000, 'o'), ++lsn);
    table->erase(hash_of("none"), as_bytes("none"));
    for (;; ++lsn) {
      const std::string key = "fill" + std::to_string(lsn);
      if (!table->reserve(hash_of(key), as_bytes(key), 100)) break;
      table->put(hash_of(key), as_bytes(key), as_bytes(std::string(100, 'f')), {lsn});
    }
    REQUIRE(table->prepare(*assembly, hash_of("big")));
    REQUIRE(table->commit(std::move(*assembly), hash_of("big"), {++lsn}));
    CHECK(get(*table, "big") == std::string(1000, 'b'));
    CHECK(get(*table, "other") == std::string(1000, 'o'));
    {
      REQUIRE(table->erase(hash_of("other"), as_bytes("other")));
      auto dropped = table->assemble(5, 998);
      REQUIRE(dropped);
      dropped->write(0, as_bytes("other"));
      REQUIRE(table->prepare(*dropped, hash_of("other")));
    }
    put(*table, "other", std::string(998, 'p'), ++lsn);
    CHECK(get(*table, "other") == std::string(998, 'p'));
  }

  TEST_CASE("engine/table: a dropped assembly gives its memory back") {
    auto table = open();
    const std::uint64_t before = table->memory_bytes();
    for (int i = 0; i < 20; ++i) {
      auto assembly = table->assemble(5, 10 << 20);
      REQUIRE(assembly);
      assembly->write(0, as_bytes("key.."));
      Table::Assembly kept;
      kept = std::move(*assembly);
      kept = Table::Assembly();
      CHECK(table->has_deferred());
      while (table->has_deferred()) table->free_some(1 << 20);
    }
    CHECK(table->memory_bytes() == before);
    CHECK(table->keys() == 0);
  }

  TEST_CASE("engine/table: a pinned value survives its replacement, erasure and every later split") {
    auto table = open();
    const std::string first(100'000, '1');
    const std::string second(100'000, '2');
    put(*table, "big", first, 1);
    {
      Table::Pin pin = table->pin(hash_of("big"), as_bytes("big"));
      put(*table, "big", second, 2);
      CHECK(as_text(pin.value()) == first);
      CHECK(get(*table, "big") == second);
      Table::Pin other = table->pin(hash_of("big"), as_bytes("big"));
      Table::Pin moved = std::move(other);
      CHECK(table->erase(hash_of("big"), as_bytes("big")));
      for (int i = 0; i < 5000; ++i) put(*table, "k" + std::to_string(i), "v", 3);
      for (int i = 0; i < 20; ++i) put(*table, "big", std::string(100'000, '3'), 4);
      CHECK(as_text(pin.value()) == first);
      CHECK(as_text(moved.value()) == second);
      pin = std::move(moved);
      CHECK(as_text(pin.value()) == second);
    }
    CHECK(get(*table, "big") == std::string(100'000, '3'));
    const std::uint64_t before = table->memory_bytes();
    for (int i = 0; i < 100; ++i) {
      Table::Pin pin = table->pin(hash_of("big"), as_bytes("big"));
      put(*table, "big", std::string(100'000, '4'), 5);
    }
    CHECK(table->memory_bytes() < before + 1'000'000);
  }

  TEST_CASE(
      "engine/table: by LSN an older put comes to nothing after a newer one, and so does the same twice") {
    // In a cell, in two, in a slab, in an extent; each over each.
    const std::array<std::size_t, 4> sizes = {10, 90, 3000, 70'000};
    for (const std::size_t newer : sizes) {
      for (const std::size_t older : sizes) {
        auto table = open();
        std::uint64_t lsn = 0;
        CHECK(put_newer(*table, "k", std::string(newer, 'n'), 5));
        CHECK_FALSE(put_newer(*table, "k", std::string(older, 'o'), 4));
        CHECK_FALSE(put_newer(*table, "k", std::string(older, 's'), 5));
        CHECK(get(*table, hash_of("k"), "k", &lsn) == std::string(newer, 'n'));
        CHECK(lsn == 5);
        CHECK(put_newer(*table, "k", std::string(older, 'p'), 6));
        CHECK(get(*table, hash_of("k"), "k", &lsn) == std::string(older, 'p'));
        CHECK(lsn == 6);
        CHECK(table->keys() == 1);
      }
    }
  }

  TEST_CASE("engine/table: by LSN an erase removes only what is older") {
    auto table = open();
    CHECK_FALSE(table->erase_older(hash_of("k"), as_bytes("k"), {9}));
    put(*table, "k", "v", 5);
    CHECK_FALSE(table->erase_older(hash_of("k"), as_bytes("k"), {4}));
    CHECK_FALSE(table->erase_older(hash_of("k"), as_bytes("k"), {5}));
    CHECK(get(*table, "k") == "v");
    CHECK(table->erase_older(hash_of("k"), as_bytes("k"), {6}));
    CHECK(get(*table, "k") == "<absent>");
    CHECK(table->keys() == 0);
  }

  TEST_CASE(
      "engine/table: by LSN an assembled put loses to a newer one that came meanwhile, and is dropped") {
    auto table = open();
    const std::string large(100'000, 'l');
    auto assembly = assembled(*table, "k", large);
    put(*table, "k", "live", 8);
    const std::uint64_t before = table->memory_bytes();
    auto done = table->commit_newer(std::move(assembly), hash_of("k"), {7});
    REQUIRE(done);
    CHECK_FALSE(*done);
    CHECK(get(*table, "k") == "live");
    done = table->commit_newer(assembled(*table, "k", large), hash_of("k"), {8});
    REQUIRE(done);
    CHECK_FALSE(*done);
    CHECK(table->memory_bytes() == before);  // the next took the dropped one's memory
    std::uint64_t lsn = 0;
    done = table->commit_newer(assembled(*table, "k", large), hash_of("k"), {9});
    REQUIRE(done);
    CHECK(*done);
    CHECK(get(*table, hash_of("k"), "k", &lsn) == large);
    CHECK(lsn == 9);
    CHECK(table->keys() == 1);
  }

  TEST_CASE("engine/table: what yields by LSN takes no memory, also at the limit") {
    auto table = open(1 << 20);
    std::uint64_t lsn = 1;
    for (;; ++lsn) {
      const std::string key = "k" + std::to_string(lsn);
      const auto done = table->put_newer(hash_of(key), as_bytes(key), as_bytes(std::string(300, 'v')), {lsn});
      if (done) continue;
      CHECK(done.error() == EngineErrc::out_of_memory);
      break;
    }
    CHECK_FALSE(put_newer(*table, "k1", std::string(20'000, 'o'), 1));
    CHECK(table->keys() == lsn - 1);
  }

  TEST_CASE("engine/table: a walk by hash and the writes since make a copy, whatever overtakes what") {
    std::uint64_t yielded = 0, voided = 0;
    for (const std::uint64_t mask : {~0ULL, 0x0000'0000'0070'0000ULL}) {
      for (std::uint64_t seed = 1; seed <= (kSanitized ? 3 : 10); ++seed) {
        CAPTURE(mask);
        CAPTURE(seed);
        CopyModel model(seed, mask);
        model.run();
        yielded += model.yielded;
        voided += model.voided;
      }
    }
    CHECK(yielded > 5);
    CHECK(voided > 0);
  }

  TEST_CASE("engine/table: a retired table goes in slices, and not before its last pin") {
    constexpr std::size_t kSliceBytes = 256 << 10;
    auto table = Table::create({.memory_bytes_max = 0, .huge_pages = true, .number = 7});
    REQUIRE(table);
    Table& retired = **table;
    CHECK(retired.number() == 7);
    for (int i = 0; i < 40'000; ++i) put(retired, "k" + std::to_string(i), std::string(90, 'v'), 1);
    for (int i = 0; i < 20; ++i) put(retired, "large" + std::to_string(i), std::string(1 << 20, 'l'), 1);
    for (int i = 0; i < 5; ++i) put(retired, "large" + std::to_string(i), "freed", 2);
    const std::uint64_t whole = retired.memory_bytes();
    {
      const Table::Pin first = retired.pin(hash_of("large7"), as_bytes("large7"));
      {
        const Table::Pin second = retired.pin(hash_of("large8"), as_bytes("large8"));
        CHECK(retired.pins() == 2);
        CHECK_FALSE(retired.dismantle(kSliceBytes));
      }
      CHECK(retired.pins() == 1);
      CHECK_FALSE(retired.dismantle(kSliceBytes));
      CHECK(retired.memory_bytes() == whole);
      CHECK(as_text(first.value()) == std::string(1 << 20, 'l'));
    }
    CHECK(retired.pins() == 0);
    std::uint64_t left = whole;
    std::size_t slices = 0;
    for (bool done = false; !done; ++slices) {
      REQUIRE(slices < 1000);
      done = retired.dismantle(kSliceBytes);
      // A chunk goes whole.
      REQUIRE(retired.memory_bytes() <= left);
      REQUIRE(left - retired.memory_bytes() <= kSliceBytes + Arena::kChunkBytes);
      left = retired.memory_bytes();
    }
    CHECK(left == 0);
    CHECK(slices > (16U << 20) / kSliceBytes);
  }

  TEST_CASE("engine/table: overwriting in steady state takes nothing from the heap") {
    auto table = open();
    std::vector<std::string> keys;
    for (int i = 0; i < 5000; ++i) keys.push_back("key" + std::to_string(i));
    const std::array<std::string, 6> values = {std::string(10, 'a'),     std::string(60, 'b'),
                                               std::string(150, 'c'),    std::string(900, 'd'),
                                               std::string(20'000, 'e'), std::string(20, 'f')};
    std::mt19937_64 random(2);
    const auto churn = [&] {
      for (std::uint64_t i = 0; i < 20'000; ++i) {
        const std::string& key = keys[random() % keys.size()];
        const std::string& value = values[random() % (i % 50 == 0 ? 6 : 4)];
        const std::uint64_t hash = hash_of(key);
        if (!table->reserve(hash, as_bytes(key), value.size())) std::abort();
        table->put(hash, as_bytes(key), as_bytes(value), {i});
        if (i % 3 == 0) table->erase(hash, as_bytes(keys[random() % keys.size()]));
      }
    };
    churn();
    const std::uint64_t before = heap_allocations();
    churn();
    CHECK(heap_allocations() == before);
    CHECK(heap_allocations() > 0);
  }

  TEST_CASE("engine/table: prefetch touches nothing that is not there") {
    auto table = open();
    for (int i = 0; i < 10'000; ++i) {
      table->prefetch(hash_of(std::to_string(i)));
      put(*table, std::to_string(i), "v", 1);
    }
    CHECK(table->keys() == 10'000);
  }
}
