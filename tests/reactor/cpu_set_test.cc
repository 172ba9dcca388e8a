#include <algorithm>
#include <sched.h>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <tidelock/reactor/cpu_set.h>
#include <tidelock/reactor/errc.h>

using namespace tidelock;
using Cpus = std::vector<std::uint32_t>;

TEST_CASE("reactor/cpu_set: CPU lists are read, sorted and freed of repetitions") {
  CHECK(*parse_cpu_list("0") == Cpus{0});
  CHECK(*parse_cpu_list("0-3,8") == Cpus{0, 1, 2, 3, 8});
  CHECK(*parse_cpu_list("8,2-3,3-4") == Cpus{2, 3, 4, 8});
  CHECK(*parse_cpu_list("5-5") == Cpus{5});
  CHECK(*parse_cpu_list("65535") == Cpus{65'535});
}

TEST_CASE("reactor/cpu_set: a list that does not parse names the piece") {
  const auto check = [](const char* text, const std::string& piece) {
    CAPTURE(text);
    auto list = parse_cpu_list(text);
    REQUIRE(!list);
    CHECK(list.error().code().value() == EINVAL);
    CHECK(list.error().message().find("'" + piece + "' in the CPU list") != std::string::npos);
  };
  check("", "");
  check("0,", "");
  check(",0", "");
  check("0,x", "x");
  check("1-", "1-");
  check("-1", "-1");
  check("1-2-3", "1-2-3");
  check("4-2", "4-2");
  check("0, 1", " 1");
  check("1.5", "1.5");
  check("0x3", "0x3");
  check("+1", "+1");
  check("65536", "65536");
  check("0-4294967295", "0-4294967295");
  check("99999999999999999999", "99999999999999999999");
}

TEST_CASE("reactor/cpu_set: formatting is the inverse of parsing") {
  CHECK(format_cpu_list({}).empty());
  for (const char* text : {"0", "0-1", "0-3,8", "1,3,5", "0-2,4-5,7"})
    CHECK(format_cpu_list(*parse_cpu_list(text)) == text);
}

TEST_CASE("reactor/cpu_set: the usable CPUs are those of the affinity mask") {
  const Cpus cpus = usable_cpus();
  REQUIRE(!cpus.empty());
  CHECK(std::is_sorted(cpus.begin(), cpus.end()));
  Cpus pinned;
  std::thread([&] {
    if (pin_this_thread(cpus.back())) pinned = usable_cpus();
  }).join();
  CHECK(pinned == Cpus{cpus.back()});
  CHECK(usable_cpus() == cpus);
}

TEST_CASE("reactor/cpu_set: a pinned thread runs where it was told") {
  for (const std::uint32_t cpu : usable_cpus()) {
    int ran_on = -1;
    std::thread([&] {
      if (pin_this_thread(cpu)) ran_on = ::sched_getcpu();
    }).join();
    CHECK(ran_on == static_cast<int>(cpu));
  }
}

TEST_CASE("reactor/cpu_set: a CPU that is not there is refused with those that are") {
  for (const std::uint32_t cpu : {60'000U, 4'000'000'000U}) {
    const Status refused = pin_this_thread(cpu);
    REQUIRE(!refused);
    CHECK(refused.error() == ReactorErrc::bad_cpu_set);
    CHECK(refused.error().message().find(format_cpu_list(usable_cpus())) != std::string::npos);
  }
}

TEST_CASE("reactor/cpu_set: spreading keeps every CPU once") {
  CHECK(spread_over_cores({}).empty());
  const Cpus cpus = usable_cpus();
  Cpus spread = spread_over_cores(cpus);
  CHECK(spread.front() == cpus.front());
  std::sort(spread.begin(), spread.end());
  CHECK(spread == cpus);
  // CPUs whose topology nobody knows keep their order.
  CHECK(spread_over_cores({60'002, 60'001}) == Cpus{60'002, 60'001});
}
