/// A table that takes snapshots and gives them, with the LSN of each record, for tests to look into.
/// Thread:   one
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <tidelock/replication/replica.h>
#include <tidelock/replication/snapshot_source.h>
#include <tidelock/replication/snapshot_target.h>

namespace tidelock::test {

class ShadowApplier final : public Applier, public SnapshotTarget {
 public:
  struct Record {
    std::string value;
    std::uint64_t lsn = 0;
    friend bool operator==(const Record&, const Record&) = default;
  };
  using Map = std::map<std::string, Record>;

  Status apply(std::span<const EntryView> entries) override {
    for (const EntryView& entry : entries) {
      if (entries_left == 0) return Error(ReplicationErrc::log_full, "the table has no memory");
      --entries_left;
      take(map, live_, entry);
    }
    return {};
  }
  void abandon_fragments() override { live_.clear(); }

  Status begin_shadow() override {
    CHECK_FALSE(shadow.has_value());
    if (refuse) return Error(ReplicationErrc::log_full, "no memory for a shadow");
    shadow.emplace();
    shadow_live_.clear();
    shadow_record_.clear();
    return {};
  }
  Status apply_live(std::span<const EntryView> entries) override { return fill(shadow_live_, entries); }
  Status add_records(std::span<const EntryView> entries) override { return fill(shadow_record_, entries); }
  void void_record() override {
    ++voided;
    shadow_record_.clear();
  }
  void swap_shadow(Lsn lsn) override {
    REQUIRE(shadow.has_value());
    map = *std::exchange(shadow, std::nullopt);
    live_ = std::exchange(shadow_live_, {});
    swapped_at.push_back(lsn.value);
  }
  void drop_shadow() override {
    ++dropped;
    shadow.reset();
    shadow_live_.clear();
    shadow_record_.clear();
  }

  Map map;                    ///< what is served
  std::optional<Map> shadow;  ///< what a snapshot fills
  std::vector<std::uint64_t> swapped_at;
  int dropped = 0;
  int voided = 0;
  bool refuse = false;
  std::size_t entries_left = ~std::size_t{0};  ///< that apply() takes
  std::size_t records_max = ~std::size_t{0};   ///< of the shadow: beyond it, it has no memory

 private:
  Status fill(std::string& assembly, std::span<const EntryView> entries) {
    for (const EntryView& entry : entries) {
      take(*shadow, assembly, entry);
      if (shadow->size() > records_max) return Error(ReplicationErrc::log_full, "the shadow has no memory");
    }
    return {};
  }
  static void take(Map& into, std::string& assembly, const EntryView& entry) {
    const auto put = [&](const std::string& key, const std::string& value) {
      Record& record = into[key];
      if (record.lsn < entry.lsn.value) record = {value, entry.lsn.value};
    };
    switch (entry.kind) {
      case EntryKind::put:
        return put(std::string(as_text(entry.key)), std::string(as_text(entry.value)));
      case EntryKind::erase: {
        const auto found = into.find(std::string(as_text(entry.key)));
        if (found != into.end() && found->second.lsn < entry.lsn.value) into.erase(found);
        return;
      }
      case EntryKind::noop:
        return;
      case EntryKind::fragment:
        if (entry.offset == 0) assembly.clear();
        CHECK(entry.offset == assembly.size());
        assembly += as_text(entry.value);
        if (!entry.last_fragment()) return;
        put(assembly.substr(0, entry.key_bytes), assembly.substr(entry.key_bytes));
        assembly.clear();
    }
  }

  std::string live_, shadow_live_, shadow_record_;
};

/// Sends that table: it is to be small enough for one range.
class ShadowSource final : public SnapshotSource {
 public:
  explicit ShadowSource(const ShadowApplier& table) : table_(table) {}
  std::uint64_t walk(std::uint64_t, std::size_t, Visit visit, void* context) const override {
    for (const auto& [key, record] : table_.map)
      visit(context, {as_bytes(key), as_bytes(record.value), {record.lsn}});
    return 0;
  }
  bool find(Bytes, Record&) const override { return false; }

 private:
  const ShadowApplier& table_;
};

}  // namespace tidelock::test
