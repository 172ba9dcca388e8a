// What `tidelock doctor` reads, and what it makes of the kernel, io_uring, limits and memory.
#include <cerrno>
#include <limits>
#include <string>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "doctor_memory.h"
#include "doctor_report.h"
#include "doctor_uring.h"
#include "planted_tree.h"

using namespace tidelock::tools;
using tidelock::test::find;
using tidelock::test::has;
using tidelock::test::PlantedTree;

namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

DoctorNeeds two_shards() {
  DoctorNeeds needs;
  needs.shards = 2;
  return needs;
}

MemorySituation limits(std::uint64_t memlock_soft, std::uint64_t memlock_hard) {
  MemorySituation situation;
  situation.limits.memlock_bytes = {memlock_soft, memlock_hard};
  situation.limits.descriptors = {1024, 4096};
  return situation;
}

Check memory_check(const PlantedTree& tree, const std::string& name, const MemorySituation& situation,
                   const DoctorNeeds& needs = two_shards()) {
  return find(check_memory(tree.files(), situation, needs), name);
}
Check memory_check(const PlantedTree& tree, const std::string& name) {
  return memory_check(tree, name, limits(kUnlimited, kUnlimited));
}

}  // namespace

TEST_SUITE_BEGIN("tools/doctor");

TEST_CASE("files: numbers, lines and fields come out as they are, and nothing else") {
  const PlantedTree tree({{"n", "42\n"},
                          {"negative", "-1\n"},
                          {"huge", "99999999999999999999\n"},
                          {"word", "4 2\n"},
                          {"empty", ""},
                          {"bytes", "a\xff\x1b[2Jb\nsecond"},
                          {"fields", "A:\t1 kB\nB: 2\n"}});
  const SystemFiles files = tree.files();
  CHECK(files.number("n") == 42U);
  for (const char* bad : {"negative", "huge", "word", "empty", "missing", ""}) {
    CAPTURE(bad);
    CHECK(!files.number(bad));
  }
  CHECK(files.line("bytes") == "a??[2Jb");
  CHECK(!files.line("empty"));
  CHECK(files.field("fields", "A") == "1 kB");
  CHECK(files.field("fields", "B") == "2");
  CHECK(!files.field("fields", "C"));
  CHECK(files.names("missing").empty());
  CHECK(!files.exists("missing"));
}

TEST_CASE("files: a folder, a pipe, an endless line and a link to itself give nothing or little") {
  const PlantedTree tree({{"folder/file", "x"}});
  tree.plant("endless", std::string(1 << 20, '9'));
  REQUIRE(::mkfifo(tree.at("pipe").c_str(), 0600) == 0);
  std::filesystem::create_symlink("loop", tree.at("loop"));
  const SystemFiles files = tree.files();
  CHECK(!files.text("folder"));
  CHECK(!files.text("pipe"));
  CHECK(!files.text("loop"));
  CHECK(!files.number("endless"));
  CHECK(files.line("endless")->size() == 200);
  CHECK(files.names("endless").empty());
}

TEST_CASE("kernel: by its release") {
  const auto status = [](const char* release) {
    const PlantedTree tree({{"proc/sys/kernel/osrelease", release}});
    return find(check_kernel(tree.files()), "kernel").status;
  };
  CHECK(status("6.1.0-28-amd64\n") == CheckStatus::ok);
  CHECK(status("5.15.0\n") == CheckStatus::warning);
  CHECK(status("5.10.0-8-amd64\n") == CheckStatus::error);
  CHECK(status("4.19\n") == CheckStatus::error);
  CHECK(status("10.0\n") == CheckStatus::ok);
  for (const char* absurd :
       {"", "\n", "six", "6", "6.x", "999999999999999999999.1", "100.1", ".", "\xff\xfe"}) {
    CAPTURE(absurd);
    CHECK(status(absurd) == CheckStatus::unknown);
  }
  CHECK(find(check_kernel(PlantedTree().files()), "kernel").status == CheckStatus::unknown);
}

TEST_CASE("io_uring: all there, some missing, none") {
  const PlantedTree tree({{"proc/sys/kernel/io_uring_disabled", "0\n"}});
  UringProbe probe;
  probe.rings = 2;
  probe.features = {true, true, true, true, true, true};
  for (const Check& check : check_uring(tree.files(), probe, 2)) {
    CAPTURE(check.name);
    CHECK(check.status == CheckStatus::ok);
    CHECK(check.fix.empty());
  }
  probe.features.host_msg_ring = false;
  const Check host = find(check_uring(tree.files(), probe, 2), "io_uring SEND_MSG_RING");
  CHECK(host.status == CheckStatus::warning);
  CHECK(has(host.value, "6.13"));
  CHECK(!host.fix.empty());
}

TEST_CASE("io_uring: what refuses it decides the command") {
  const auto refused = [](const char* error) {
    UringProbe probe;
    probe.error = error;
    const Checks checks = check_uring(PlantedTree().files(), probe, 1);
    CHECK(find(checks, "io_uring MSG_RING").status == CheckStatus::unknown);
    const Check check = find(checks, "io_uring");
    CHECK(check.status == CheckStatus::error);
    CHECK(has(check.value, error));
    return check.fix;
  };
  CHECK(has(refused("kernel.io_uring_disabled is 2: run sysctl"), "sysctl -w kernel.io_uring_disabled=0"));
  CHECK(
      has(refused("io_uring_setup is not permitted: allow it in the seccomp profile"), "seccomp=unconfined"));
  CHECK(has(refused("no memory for the ring: raise the memlock limit"), "--memlock"));
  CHECK(has(refused("no descriptor for the ring: raise the nofile limit"), "ulimit -n"));
  CHECK(has(refused("the kernel has no io_uring_setup"), "apt-get"));
}

TEST_CASE("memlock: the limit against rings, and against all that verbs registers") {
  const PlantedTree tree({{"proc/self/status", "CapEff:\t0000000000000000\n"}});
  const DoctorNeeds needs = two_shards();
  const std::uint64_t rings = locked_bytes(needs, false);
  const std::uint64_t all = locked_bytes(needs, true);
  CHECK(rings < 128 << 10);
  CHECK(all >= rings + 2 * (needs.log_bytes + needs.ring_bytes));

  CHECK(memory_check(tree, "memlock limit", limits(rings, rings)).status == CheckStatus::ok);
  MemorySituation low = limits(rings - 1, rings);
  Check check = memory_check(tree, "memlock limit", low);
  CHECK(check.status == CheckStatus::warning);  // the rings could be made: this kernel does not charge them
  CHECK(has(check.fix, "ulimit -l"));
  low.rings_work = false;
  CHECK(memory_check(tree, "memlock limit", low).status == CheckStatus::error);
  low.limits.memlock_bytes = {0, 0};
  CHECK(has(memory_check(tree, "memlock limit", low).fix, "prlimit"));

  MemorySituation devices = limits(all - 1, kUnlimited);
  devices.rdma_present = true;
  CHECK(memory_check(tree, "memlock limit", devices).status == CheckStatus::warning);
  DoctorNeeds verbs = needs;
  verbs.link = DoctorLink::verbs;
  check = memory_check(tree, "memlock limit", devices, verbs);
  CHECK(check.status == CheckStatus::error);
  CHECK(check.fix == "ulimit -l unlimited");
  CHECK(memory_check(tree, "memlock limit", limits(all, all), verbs).status == CheckStatus::ok);
}

TEST_CASE("memlock: CAP_IPC_LOCK lifts the limit, but not one of a user namespace") {
  const MemorySituation none = limits(0, 0);
  PlantedTree tree({{"proc/self/status", "Name:\tx\nCapEff:\t0000000000004000\n"}});
  CHECK(memory_check(tree, "memlock limit", none).status == CheckStatus::ok);
  tree.plant("proc/self/uid_map", "         0          0 4294967295\n");
  CHECK(memory_check(tree, "memlock limit", none).status == CheckStatus::ok);
  tree.plant("proc/self/uid_map", "         0       1000          1\n");
  CHECK(memory_check(tree, "memlock limit", none).status != CheckStatus::ok);
  tree.plant("proc/self/status", "CapEff:\tno such thing\n");
  CHECK(memory_check(tree, "memlock limit", none).status != CheckStatus::ok);
}

TEST_CASE("huge pages: transparent ones by always or madvise") {
  const auto status = [](const char* text) {
    const PlantedTree tree({{"sys/kernel/mm/transparent_hugepage/enabled", text}});
    return memory_check(tree, "transparent huge pages").status;
  };
  CHECK(status("[always] madvise never\n") == CheckStatus::ok);
  CHECK(status("always [madvise] never\n") == CheckStatus::ok);
  CHECK(status("always madvise [never]\n") == CheckStatus::warning);
  CHECK(status("always madvise never\n") == CheckStatus::unknown);
  CHECK(memory_check(PlantedTree(), "transparent huge pages").status == CheckStatus::unknown);
  const PlantedTree tree({{"proc/meminfo", "HugePages_Free:       3\nHugepagesize:       2048 kB\n"}});
  CHECK(has(memory_check(tree, "reserved huge pages").value, "3, of 2048 kB"));
  const PlantedTree absurd({{"proc/meminfo", "HugePages_Free:  many\n"}});
  CHECK(memory_check(absurd, "reserved huge pages").status == CheckStatus::unknown);
}

TEST_CASE("mappings and descriptors: against fibers and shards") {
  PlantedTree tree({{"proc/sys/vm/max_map_count", "65530\n"}});
  const MemorySituation situation = limits(kUnlimited, kUnlimited);
  CHECK(memory_check(tree, "vm.max_map_count").status == CheckStatus::ok);
  DoctorNeeds many = two_shards();
  many.max_fibers = 65'536;
  const Check maps = memory_check(tree, "vm.max_map_count", situation, many);
  CHECK(maps.status == CheckStatus::warning);
  CHECK(maps.fix == "sudo sysctl -w vm.max_map_count=524288");
  tree.plant("proc/sys/vm/max_map_count", "-5\n");
  CHECK(memory_check(tree, "vm.max_map_count").status == CheckStatus::unknown);

  CHECK(memory_check(tree, "open files limit").status == CheckStatus::ok);
  DoctorNeeds wide = two_shards();
  wide.shards = 128;
  const Check raised = memory_check(tree, "open files limit", situation, wide);
  CHECK(raised.status == CheckStatus::error);
  CHECK(has(raised.fix, "ulimit -n"));
  MemorySituation few = situation;
  few.limits.descriptors = {10, 10};
  CHECK(has(memory_check(tree, "open files limit", few).fix, "prlimit"));
}

TEST_CASE("report: counts, exit status, and text that holds every line") {
  DoctorReport report;
  report.host = "host";
  CHECK(exit_code_of(report.checks) == 0);
  report.checks.push_back(good("a", "1", "because"));
  CHECK(exit_code_of(report.checks) == 0);
  report.checks.push_back(unknown("b", "?", "because"));
  CHECK(exit_code_of(report.checks) == 1);
  report.checks.push_back({"c", CheckStatus::warning, "slow", "because", "hurry"});
  CHECK(exit_code_of(report.checks) == 1);
  report.checks.push_back({"d", CheckStatus::error, "none", "because", "get some"});
  CHECK(exit_code_of(report.checks) == 2);
  const auto json = to_json(report);
  CHECK(json["checks"].size() == 4);
  CHECK(json["checks"][3]["status"] == "error");
  CHECK(json["checks"][3]["fix"] == "get some");
  for (const char* name : {"ok", "warnings", "errors", "unknown"}) CHECK(json[name] == 1);
  const std::string text = to_text(report);
  for (const char* part : {"hurry", "get some", "1 ok, 1 warning, 1 error, 1 unknown", "host: host"})
    CHECK_MESSAGE(has(text, part), part);
}

TEST_SUITE_END();
