// Bugs that tests plant into production's code, by its own policies. Each is found by the checker that is
// there for it; without it the same seed passes.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "planted_bugs.h"
#include "run.h"

using namespace tidelock;
using namespace tidelock::sim;

namespace {

constexpr std::uint64_t kPlantedSeedsMost = 500;

RunResult run_planted(std::uint64_t seed, const Planted& planted) {
  RunOptions options;
  options.seed = seed;
  options.planted = planted;
  return run_seed(options);
}

bool failed_by(const RunResult& result, const std::string& checker) {
  return std::any_of(result.failures.begin(), result.failures.end(),
                     [&](const Failure& failure) { return failure.checker == checker; });
}

/// The first seed in which `checker` finds it.
void find(const Planted& planted, const std::string& checker) {
  std::uint64_t found = 0;
  for (std::uint64_t seed = 1; found == 0 && seed <= kPlantedSeedsMost; ++seed) {
    if (failed_by(run_planted(seed, planted), checker)) found = seed;
  }
  REQUIRE_MESSAGE(found > 0, "not found by " << checker << " in " << kPlantedSeedsMost << " seeds");
  MESSAGE("found by " << checker << " with seed " << found);
  CHECK(run_planted(found, {}).failures.empty());
}

void find(const ApplyPolicy& policy, const std::string& checker) {
  Planted planted;
  planted.apply = &policy;
  find(planted, checker);
}

void find(const AckPolicy& policy, const std::string& checker) {
  Planted planted;
  planted.ack = &policy;
  find(planted, checker);
}

void find(const TablePolicy& policy, const std::string& checker) {
  Planted planted;
  planted.table = &policy;
  find(planted, checker);
}

}  // namespace

TEST_CASE("sim/planted: ack before apply: a receipt is out before its write is visible") {
  struct : ApplyPolicy {
    std::uint32_t turns_acknowledged_early() const override { return 1; }
  } policy;
  find(policy, "no_older_read");
}

TEST_CASE("sim/planted: ack before check: a batch counts as received, and is damaged") {
  const AcknowledgesUnchecked policy{};
  find(policy, "acked");
}

TEST_CASE("sim/planted: resume off by one: a replica claims one write more than it has") {
  const ResumesOffByOne policy{};
  find(policy, "applied_once");
  find(policy, "refused");  // where there was no further write: it claims what nobody wrote
}

TEST_CASE("sim/planted: a notification that overtakes its data is believed") {
  struct : ApplyPolicy {
    bool believes_notification() const override { return true; }
  } policy;
  find(policy, "no_older_read");
}

TEST_CASE("sim/planted: a reader is woken by the LSN before its own") {
  struct : ApplyPolicy {
    Lsn wakes_to(Lsn applied) const override { return applied.next(); }
  } policy;
  find(policy, "no_older_read");
}

TEST_CASE("sim/planted: a reader whose LSN is there is not woken") {
  struct : ApplyPolicy {
    Lsn wakes_to(Lsn applied) const override { return {applied.value - 1}; }
  } policy;
  find(policy, "waits");
}

TEST_CASE("sim/planted: a fragment is dropped") {
  struct : ApplyPolicy {
    void alter(std::vector<EntryView>& entries) const override {
      std::erase_if(entries, [](const EntryView& entry) {
        return entry.kind == EntryKind::fragment && entry.offset > 0 && !entry.last_fragment();
      });
    }
  } policy;
  find(policy, "applied_once");
}

TEST_CASE("sim/planted: a value loses its end, down to the word that names its write") {
  struct : ApplyPolicy {
    void alter(std::vector<EntryView>& entries) const override {
      for (EntryView& entry : entries) {
        if (entry.kind == EntryKind::put && entry.value.size() > 8) entry.value = entry.value.first(8);
      }
    }
  } policy;
  find(policy, "log_prefix");
}

TEST_CASE("sim/planted: an erase is not applied") {
  struct : ApplyPolicy {
    void alter(std::vector<EntryView>& entries) const override {
      std::erase_if(entries, [](const EntryView& entry) { return entry.kind == EntryKind::erase; });
    }
  } policy;
  find(policy, "applied_once");
}

TEST_CASE("sim/planted: a writer is woken by the LSN before its own") {
  struct : AckPolicy {
    Lsn wakes_to(Lsn reached) const override { return reached.next(); }
  } policy;
  find(policy, "acked");
}

TEST_CASE("sim/planted: a writer whose LSN is acknowledged is not woken") {
  struct : AckPolicy {
    Lsn wakes_to(Lsn reached) const override { return {reached.value == 0 ? 0 : reached.value - 1}; }
  } policy;
  find(policy, "waits");
}

TEST_CASE("sim/planted: an unknown outcome is called a failure") {
  struct : AckPolicy {
    ReplicationErrc expired() const override { return ReplicationErrc::log_full; }
  } policy;
  find(policy, "linearizable");
}

TEST_CASE("sim/planted: what was sent counts as applied") {
  struct : AckPolicy {
    bool counts_sent() const override { return true; }
  } policy;
  find(policy, "acked");
  find(policy, "one_commit");
}

TEST_CASE("sim/planted: log bytes are used again once they are acknowledged, and a link still reads them") {
  const ReleasesOnAck policy{};
  find(policy, "link_contract");
}

TEST_CASE("sim/planted: log bytes are used again once their link is closed, and it still reads them") {
  const ForgetsClosedLinks policy{};
  find(policy, "link_contract");
}

TEST_CASE("sim/planted: a core goes to sleep without a second look at its links") {
  Planted planted;
  planted.looks_before_sleep = false;
  find(planted, "lost_wakeup");
}

TEST_CASE("sim/planted: data before hello: a link is on the primary's core before its peer was answered") {
  Planted planted;
  planted.attaches_before_answer = true;
  find(planted, "link_contract");
}

TEST_CASE("sim/planted: old epoch accepted: a frame of an epoch that is over is taken") {
  struct : ApplyPolicy {
    bool accepts_old_epoch() const override { return true; }
  } policy;
  find(policy, "intact");
  find(policy, "log_prefix");
}

TEST_CASE("sim/planted: snapshot skips moved: a snapshot walks places, and an erase moves a record") {
  struct : TablePolicy {
    bool walks_places() const override { return true; }
  } policy;
  find(policy, "snapshot");
}

TEST_CASE("sim/planted: void ignored: a record that is gone is sent to its end, and stands there for good") {
  const FindsWhatWas policy{};
  find(policy, "snapshot");
}

TEST_CASE("sim/planted: an erase does not reach the shadow of a snapshot") {
  struct : TablePolicy {
    bool keeps_erased() const override { return true; }
  } policy;
  find(policy, "snapshot");
}

TEST_CASE("sim/planted: swap before complete: readers see a snapshot before it is whole") {
  struct : TablePolicy {
    bool serves_shadow() const override { return true; }
  } policy;
  find(policy, "no_older_read");
}

TEST_CASE("sim/planted: syncing counts: who gets a snapshot is taken for one that has everything") {
  struct : AckPolicy {
    bool counts_syncing() const override { return true; }
  } policy;
  find(policy, "below_c");
}
