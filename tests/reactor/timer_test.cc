#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/random.h>
#include <tidelock/reactor/timer.h>

using namespace tidelock;

namespace {

struct Probe : Timer {
  Probe() : Timer([](Timer& timer) { static_cast<Probe&>(timer).fire(); }) {}
  void fire() {
    ++fired;
    if (order != nullptr) order->push_back(this);
    if (victim != nullptr) victim->disarm();
    if (again != nullptr) again->arm(*this, again_at);
  }
  int fired = 0;
  std::vector<Probe*>* order = nullptr;
  Timer* victim = nullptr;
  Timers* again = nullptr;
  Instant again_at{};
};

}  // namespace

TEST_CASE("reactor/timer: timers fire in the order of their deadlines, none early") {
  Timers timers(4);
  std::vector<Probe*> order;
  Probe a, b, c;
  for (Probe* probe : {&a, &b, &c}) probe->order = &order;
  timers.arm(a, {30});
  timers.arm(b, {10});
  timers.arm(c, {20});
  CHECK(timers.next_deadline() == Instant{10});
  CHECK(timers.fire({9}, 64) == 0);
  CHECK(timers.fire({20}, 64) == 2);
  CHECK(order == std::vector<Probe*>{&b, &c});
  CHECK(timers.next_deadline() == Instant{30});
  CHECK(a.armed());
  CHECK_FALSE(b.armed());
}

TEST_CASE("reactor/timer: the budget bounds a round, the rest stays due") {
  Timers timers(4);
  std::vector<Probe> probes(10);
  for (Probe& probe : probes) timers.arm(probe, {5});
  CHECK(timers.fire({5}, 4) == 4);
  CHECK(timers.size() == 6);
  CHECK(timers.fire({5}, 64) == 6);
  CHECK(timers.next_deadline() == Instant::never());
}

TEST_CASE("reactor/timer: a callback may disarm another timer that is due") {
  Timers timers(4);
  Probe first, second;
  timers.arm(first, {1});
  timers.arm(second, {2});
  first.victim = &second;
  CHECK(timers.fire({9}, 64) == 1);
  CHECK(second.fired == 0);
}

TEST_CASE("reactor/timer: a callback may arm its own timer again") {
  Timers timers(4);
  Probe probe;
  probe.again = &timers;
  probe.again_at = {7};
  timers.arm(probe, {1});
  CHECK(timers.fire({6}, 64) == 1);
  CHECK(probe.armed());
  // Armed for a time that has passed, it fires once more a turn at most as often as the budget says.
  CHECK(timers.fire({8}, 5) == 5);
}

TEST_CASE("reactor/timer: a destroyed timer does not fire, nor does one outlive its heap armed") {
  Probe survivor;
  {
    Timers timers(1);
    {
      Probe probe;
      timers.arm(probe, {1});
    }
    CHECK(timers.size() == 0);
    timers.arm(survivor, {2});
  }
  CHECK_FALSE(survivor.armed());
  survivor.disarm();
}

TEST_CASE("reactor/timer: random arming, moving and disarming agrees with a multimap") {
  Random random(11);
  Timers timers(8);
  std::vector<Probe> probes(300);
  std::multimap<std::int64_t, Probe*> model;
  const auto forget = [&](Probe* probe) {
    for (auto it = model.begin(); it != model.end(); ++it) {
      if (it->second == probe) {
        model.erase(it);
        return;
      }
    }
  };
  std::int64_t now = 0;
  for (int step = 0; step < 20'000; ++step) {
    Probe& probe = probes[random.below(probes.size())];
    const std::uint64_t dice = random.below(10);
    if (dice < 6) {
      const auto deadline = now + static_cast<std::int64_t>(random.below(1'000));
      forget(&probe);
      timers.arm(probe, {deadline});
      model.emplace(deadline, &probe);
    } else if (dice < 8) {
      forget(&probe);
      probe.disarm();
    } else {
      now += static_cast<std::int64_t>(random.below(200));
      std::vector<Probe*> order;
      for (Probe& each : probes) each.order = &order;
      timers.fire({now}, 1'000'000);
      for (std::size_t i = 0; i < order.size(); ++i) {
        REQUIRE(order[i]->deadline().ns <= now);
        if (i > 0) REQUIRE(order[i - 1]->deadline() <= order[i]->deadline());
        forget(order[i]);
      }
      REQUIRE((model.empty() || model.begin()->first > now));
    }
    REQUIRE(timers.size() == model.size());
    REQUIRE(timers.next_deadline() == (model.empty() ? Instant::never() : Instant{model.begin()->first}));
  }
}
