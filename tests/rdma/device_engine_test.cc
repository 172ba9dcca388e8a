// Engines over real verbs, when a replica is killed, a link is cut, and when the ring turns over many times.
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "child_process.h"
#include "device_rig.h"
#include "lab.h"
#include "verbs_engine.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr const char* kReplica = "rdma/child: a replica that is to be killed";

VerbsPlaces places() {
  const auto primary = choose_rdma_place({passive_device(), ""});
  const auto replica = choose_rdma_place({active_device(), ""});
  REQUIRE((primary && replica));
  return {primary->address, replica->address, primary->device, replica->device};
}

std::string key(int i) { return "key" + std::to_string(i); }
/// Printable, so that it goes through a pipe as a line.
std::string value(int i) { return std::to_string(i) + std::string(static_cast<std::size_t>(i % 700), 'v'); }

std::string text_of(const Digest& digest) {
  return std::to_string(digest.low) + " " + std::to_string(digest.high) + " " + std::to_string(digest.keys);
}

/// Writes keys one after the other at the primary, whoever is there to follow.
class Load {
 public:
  explicit Load(Engine& engine) : engine_(engine), thread_([this] { run(); }) {}
  ~Load() { stop(); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  /// Of which each was acknowledged as local.
  [[nodiscard]] int written() const { return written_; }
  bool await(int count) {
    return eventually([&] { return written_ >= count || failed_; }) && !failed_;
  }
  void stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    // Slow enough that the log holds everything.
    for (int i = 0; !stopped_ && i < 20'000; ++i) {
      if (!engine_.put(key(i), value(i), {AckLevel::local, kPatience})) {
        failed_ = true;
        return;
      }
      written_ = i + 1;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Engine& engine_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> failed_{false};
  std::atomic<int> written_{0};
  std::thread thread_;
};

constexpr std::uint64_t kLogOfAll = 32 << 20;

}  // namespace

TEST_CASE("rdma/child: a replica that is to be killed" * doctest::skip(not_a_child())) {
  Parent parent;
  auto options = verbs_replica(places(), 1);
  options.log_bytes = kLogOfAll;
  auto replica = open(options);
  Parent::tell("follows");
  for (std::string line; !(line = parent.hear()).empty();) {
    if (line.starts_with("lsn ")) {
      const std::uint64_t lsn = std::strtoull(line.c_str() + 4, nullptr, 10);
      eventually([&] { return replica->visible_lsn({0}).value >= lsn; });
      const auto digest = replica->digest({0}, kPatience);
      Parent::tell(digest ? text_of(digest->first) : "no digest");
    } else if (line.starts_with("get ")) {
      std::string found;
      Parent::tell(replica->get(line.substr(4), found) ? found : "not found");
    } else {
      break;
    }
  }
  REQUIRE(replica->close(kPatience));
}

TEST_CASE("rdma/engine: a replica is killed under load, and another one catches up from the log") {
  auto options = verbs_primary(places(), 1);
  options.log_bytes = kLogOfAll;
  auto primary = open(options);
  Load load(*primary);
  {
    ChildProcess first(kReplica, "replica");
    REQUIRE(first.hear() == "follows");
    REQUIRE(load.await(load.written() + 200));
    first.kill();
  }
  REQUIRE(load.await(load.written() + 200));
  ChildProcess second(kReplica, "replica");
  REQUIRE(second.hear() == "follows");
  REQUIRE(load.await(load.written() + 200));
  load.stop();

  second.tell("lsn " + std::to_string(primary->visible_lsn({0}).value));
  const auto digest = primary->digest({0}, kPatience);
  REQUIRE(digest);
  CHECK(second.hear() == text_of(digest->first));
  for (int i = 0; i < load.written(); i += 37) {
    CAPTURE(i);
    second.tell("get " + key(i));
    CHECK(second.hear() == value(i));
  }
  second.tell("end");
  CHECK(second.finish() == 0);
  CHECK(has_event(*primary, "lost"));
  REQUIRE(primary->close(kPatience));
}

namespace {

/// A link ends under load by lab-link's action `end`, and comes back by `mend`.
void check_comes_back(const char* end, const char* mend) {
  auto of_primary = verbs_primary(places(), 1);
  auto of_replica = verbs_replica(places(), 1);
  of_primary.log_bytes = of_replica.log_bytes = kLogOfAll;
  of_primary.link_timeout = of_replica.link_timeout = seconds(5);
  auto primary = open(of_primary);
  auto replica = open(of_replica);
  const std::uint32_t generation = replica->links().at(0).generation;

  // Writes until told to stop; notes which were acknowledged as applied. What is in between may fail.
  std::atomic<bool> stop{false};
  std::atomic<std::size_t> applied_count{0};
  std::vector<int> applied;
  std::thread writer([&] {
    for (int i = 0; !stop && i < 100'000; ++i) {
      if (primary->put(key(i), value(i), {AckLevel::applied, seconds(1)})) {
        applied.push_back(i);
        applied_count = applied.size();
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  const auto applied_more = [&] {
    const std::size_t before = applied_count;
    return eventually([&] { return applied_count >= before + 100; });
  };
  CHECK(applied_more());
  {
    const LabLink link(mend);
    lab_link(end);
    // Expect: both ends notice by themselves
    CHECK(eventually([&] { return primary->link_count() == 0 && replica->link_count() == 0; }));
  }
  CHECK(eventually([&] { return replica->link_count() == 1; }));
  CHECK(applied_more());
  stop = true;
  writer.join();

  CHECK(replica->links().at(0).generation > generation);
  check_equal(*primary, *replica);
  for (const int i : applied) {
    std::string found;
    const auto got = replica->get(key(i), found);
    if (!got || found != value(i)) FAIL_CHECK("acknowledged as applied, and missing: ", key(i));
  }
  REQUIRE(replica->close(kPatience));
  REQUIRE(primary->close(kPatience));
}

}  // namespace

TEST_CASE(
    "rdma/engine: a link is cut under load and heals, or goes down and comes up: the replica comes back by "
    "itself, and nothing is missing") {
  if (!in_lab("cut links")) return;
  SUBCASE("packets are lost") { check_comes_back("cut", "heal"); }
  SUBCASE("the ports go down") { check_comes_back("down", "up"); }
}

TEST_CASE("rdma/engine: the ring turns over many times, and what arrives is what was sent") {
  const char* asked = std::getenv("TIDELOCK_TEST_MIB");
  const int mib = asked != nullptr ? std::atoi(asked) : 32;
  auto of_primary = verbs_primary(places(), 1);
  auto of_replica = verbs_replica(places(), 1);
  of_primary.log_bytes = of_replica.log_bytes = 4 << 20;
  of_primary.ring_bytes = of_replica.ring_bytes = 1 << 20;
  auto primary = open(of_primary);
  auto replica = open(of_replica);
  // Of many lengths, so that batches meet the ring's end in many ways. The log makes the writer wait.
  const std::string source = pattern(200'000, 3);
  std::size_t bytes = 0;
  int count = 0;
  for (; bytes < static_cast<std::size_t>(mib) << 20; ++count) {
    const auto varied = static_cast<std::size_t>(count) * 7919;
    const std::string text = source.substr(varied % 100'000, 20'000 + varied % 80'000);
    const auto put = primary->put(key(count % 40), text, {AckLevel::local, kPatience});
    if (!put) FAIL(put.error().message());
    bytes += text.size();
  }
  MESSAGE(count, " values, ", bytes >> 20, " MiB");
  check_equal(*primary, *replica);
  CHECK(replica->links().at(0).bytes_in >= bytes);
  REQUIRE(replica->close(kPatience));
  REQUIRE(primary->close(kPatience));
}
