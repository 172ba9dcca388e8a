// What `tidelock doctor` makes of CPUs, quotas and clocks.
#include "doctor_cpu.h"

#include <string>

#include <doctest/doctest.h>

#include "planted_tree.h"

using namespace tidelock::tools;
using tidelock::test::find;
using tidelock::test::has;
using tidelock::test::PlantedTree;

namespace {

Check cpu_check(const PlantedTree& tree, const std::string& name, const std::vector<std::uint32_t>& usable,
                std::uint32_t shards) {
  DoctorNeeds needs;
  needs.shards = shards;
  return find(check_cpus(tree.files(), usable, needs), name);
}

Check clock_check(const PlantedTree& tree, const std::string& name) {
  return find(check_clock(tree.files()), name);
}

}  // namespace

TEST_SUITE_BEGIN("tools/doctor");

TEST_CASE("cpus: how many shards fit, and whether they spin") {
  const PlantedTree tree;
  const Check four = cpu_check(tree, "cpus", {0, 1, 2, 3}, 2);
  CHECK(four.status == CheckStatus::ok);
  CHECK(has(four.value, "4 usable (0-3); room for 4 shards of one node, 2 of two; 2 reactors would spin"));
  CHECK(has(cpu_check(tree, "cpus", {0, 1, 2, 3}, 3).value, "a second node"));
  const Check one = cpu_check(tree, "cpus", {5}, 1);
  CHECK(one.status == CheckStatus::warning);
  CHECK(has(one.value, "not spin"));
  const Check too_many = cpu_check(tree, "cpus", {0, 1}, 3);
  CHECK(too_many.status == CheckStatus::error);
  CHECK(has(too_many.fix, "--shards 2"));
  CHECK(cpu_check(tree, "cpus", {}, 1).status == CheckStatus::unknown);
}

TEST_CASE("cpu quota: the least of all control groups around this process, in both versions") {
  PlantedTree tree;
  CHECK(cpu_check(tree, "cpu quota", {0}, 1).status == CheckStatus::unknown);
  tree.plant("proc/self/cgroup", "0::/a/b\n");
  tree.plant("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  CHECK(cpu_check(tree, "cpu quota", {0}, 1).value == "none");
  tree.plant("sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  CHECK(cgroup_quota(tree.files()).cpus == 4.0);
  tree.plant("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  CHECK(cgroup_quota(tree.files()).cpus == 1.5);
  CHECK(cpu_check(tree, "cpu quota", {0, 1}, 1).status == CheckStatus::ok);
  const Check low = cpu_check(tree, "cpu quota", {0, 1}, 2);
  CHECK(low.status == CheckStatus::warning);
  CHECK(has(low.fix, "--cpus 2"));
  tree.plant("sys/fs/cgroup/cpu.max", "50000 100000\n");
  CHECK(cgroup_quota(tree.files()).cpus == 0.5);

  const PlantedTree old({{"proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n"},
                         {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n"},
                         {"sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"},
                         {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n"},
                         {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}});
  CHECK(cgroup_quota(old.files()).cpus == 3.0);
  CHECK(cgroup_quota(old.files()).known);
}

TEST_CASE("cpu quota: none where the groups are to be seen, unknown where they are not") {
  const auto status = [](const PlantedTree& tree) { return cpu_check(tree, "cpu quota", {0}, 1).status; };
  const char* const groups = "proc/self/cgroup";
  const char* const mark = "sys/fs/cgroup/cgroup.controllers";
  const char* const in_a = "sys/fs/cgroup/a/cgroup.procs";
  const char* const in_old = "sys/fs/cgroup/cpu/a/tasks";
  // No limit can be set at the root, nor where the controller is off: there is no file.
  CHECK(status({{groups, "0::/\n"}, {mark, "cpu"}}) == CheckStatus::ok);
  CHECK(status({{groups, "0::/a\n"}, {mark, "cpu"}, {in_a, ""}}) == CheckStatus::ok);
  CHECK(status({{groups, "2:cpu:/a\n0::/b\n"}, {in_old, ""}}) == CheckStatus::ok);
  // Nothing is mounted; the group is not where it is said to be; it is outside what this namespace sees.
  CHECK(status({{groups, "0::/a\n"}}) == CheckStatus::unknown);
  CHECK(status({{groups, "2:cpu:/a\n"}, {mark, ""}, {in_a, ""}}) == CheckStatus::unknown);
  CHECK(status({{groups, "0::/b\n"}, {mark, "cpu"}, {in_a, ""}}) == CheckStatus::unknown);
  CHECK(status({{groups, "0::/../a\n"}, {mark, "cpu"}, {in_a, ""}}) == CheckStatus::unknown);
  CHECK(status({{groups, ""}, {mark, "cpu"}}) == CheckStatus::unknown);
  // What is there makes no sense, and might have been a limit.
  CHECK(status({{groups, "0::/a\n"}, {mark, "cpu"}, {"sys/fs/cgroup/a/cpu.max", "?"}}) ==
        CheckStatus::unknown);
  // A limit that is too low is one, whatever else there may be.
  CHECK(status({{groups, "0::/a/b\n"},
                {mark, "cpu"},
                {"sys/fs/cgroup/a/cpu.max", "1 2"},
                {"sys/fs/cgroup/a/b/cpu.max", "?"}}) == CheckStatus::warning);
}

TEST_CASE("cpu quota: absurd files limit nothing, and nobody knows what they should") {
  for (const char* group :
       {"", "\n", "0::", "0::a", "0::/../..", "::::", "0::/a/", "x:cpu:/\n", "0::/\n0::/a\n"}) {
    for (const char* quota : {"", "0 0", "max", "1 0", "-1 5", "1 2 3", "99999999999999999999 1", "\xff"}) {
      CAPTURE(group);
      CAPTURE(quota);
      const PlantedTree tree({{"proc/self/cgroup", group},
                              {"sys/fs/cgroup/cpu.max", quota},
                              {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota},
                              {"sys/fs/cgroup/a/cpu.max", quota}});
      CHECK(!cgroup_quota(tree.files()).cpus);
      CHECK_FALSE(cgroup_quota(tree.files()).known);
    }
  }
}

TEST_CASE("isolated cpus: none, ours, and those that we may not use") {
  PlantedTree tree;
  CHECK(cpu_check(tree, "isolated cpus", {0, 1}, 1).status == CheckStatus::unknown);
  tree.plant("sys/devices/system/cpu/isolated", "\n");
  CHECK(cpu_check(tree, "isolated cpus", {0, 1}, 1).value == "none");
  tree.plant("sys/devices/system/cpu/isolated", "1-3\n");
  CHECK(has(cpu_check(tree, "isolated cpus", {0, 1}, 1).value, "usable here: 1"));
  const Check others = cpu_check(tree, "isolated cpus", {0}, 1);
  CHECK(others.status == CheckStatus::warning);
  CHECK(others.fix == "taskset -c 1-3 tidelock ...");
  tree.plant("sys/devices/system/cpu/isolated", "0-4294967295\n");
  CHECK(cpu_check(tree, "isolated cpus", {0}, 1).status == CheckStatus::unknown);
}

TEST_CASE("hyper-threads: shards against cores") {
  PlantedTree tree;
  for (int cpu = 0; cpu < 4; ++cpu) {
    tree.plant("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
               cpu % 2 == 0 ? "0,2\n" : "1,3\n");
  }
  const Check fits = cpu_check(tree, "hyper-threads", {0, 1, 2, 3}, 2);
  CHECK(fits.status == CheckStatus::ok);
  CHECK(fits.value == "4 CPUs on 2 cores");
  CHECK(cpu_check(tree, "hyper-threads", {0, 1, 2, 3}, 3).status == CheckStatus::warning);
  CHECK(cpu_check(tree, "hyper-threads", {0, 4}, 1).status == CheckStatus::unknown);
  CHECK(cpu_check(tree, "hyper-threads", {}, 1).status == CheckStatus::unknown);
  tree.plant("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "7-\n");
  CHECK(cpu_check(tree, "hyper-threads", {0}, 1).status == CheckStatus::unknown);
}

TEST_CASE("clock: the source, and a TSC that can be one") {
  PlantedTree tree;
  CHECK(clock_check(tree, "clocksource").status == CheckStatus::unknown);
  CHECK(clock_check(tree, "invariant tsc").status == CheckStatus::unknown);
  const std::string folder = "sys/devices/system/clocksource/clocksource0/";
  tree.plant(folder + "current_clocksource", "kvm-clock\n");
  CHECK(clock_check(tree, "clocksource").status == CheckStatus::ok);
  tree.plant(folder + "current_clocksource", "hpet\n");
  CHECK(has(clock_check(tree, "clocksource").fix, "dmesg"));
  tree.plant(folder + "available_clocksource", "tsc hpet acpi_pm \n");
  const Check slow = clock_check(tree, "clocksource");
  CHECK(slow.status == CheckStatus::warning);
  CHECK(has(slow.fix, "echo tsc | sudo tee /sys/"));

  tree.plant("proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n");
  CHECK(clock_check(tree, "invariant tsc").status == CheckStatus::ok);
  tree.plant("proc/cpuinfo", "flags : fpu tsc constant_tsc\n");
  CHECK(clock_check(tree, "invariant tsc").value == "no nonstop_tsc");
  tree.plant("proc/cpuinfo", "flags : fpu\n");
  CHECK(clock_check(tree, "invariant tsc").status == CheckStatus::warning);
}

TEST_SUITE_END();
