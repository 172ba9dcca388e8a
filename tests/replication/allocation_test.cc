// Counts what goes through operator new, in this whole program.
#include <cstdint>
#include <cstdlib>
#include <new>

#include <doctest/doctest.h>

#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>

#include "loopback_link.h"
#include "reactor/null_io.h"

namespace {
std::uint64_t allocations = 0;  // the program has one thread
}  // namespace

// Kept out of line: inlined, gcc takes the pair for a malloc that is freed by operator delete.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

using namespace tidelock;
using namespace tidelock::test;

namespace {

struct NullApplier final : Applier {
  Status apply(std::span<const EntryView> entries) override {
    applied += entries.size();
    return {};
  }
  void abandon_fragments() override {}
  std::uint64_t applied = 0;
};

struct CountedWaiter : AckWaiter {
  int calls = 0;
};

}  // namespace

TEST_CASE(
    "replication/allocation: append, batch, apply, acknowledge and wait allocate nothing in steady state") {
  Rig primary_side;
  Rig replica_side;
  NullApplier applier;
  PrimaryOptions primary_options;
  primary_options.log_bytes = 64 * 1024;
  primary_options.history = {1};
  primary_options.epoch = {1, 1};
  auto primary = *Primary::create(*primary_side.reactor, primary_options);
  auto replica = *Replica::create(*replica_side.reactor, applier, ReplicaOptions{});
  const auto wire = std::make_shared<LoopbackWire>(FrameContext{{1}, {1}, {0}}, LoopbackOptions{});
  REQUIRE(replica->attach(std::make_unique<LoopbackLink>(wire, NodeRole::replica, replica_side.clock), {1},
                          {1, 1}));
  REQUIRE(
      primary->attach(std::make_unique<LoopbackLink>(wire, NodeRole::primary, primary_side.clock), 2, Lsn{}));

  constexpr int kWarmup = 200;
  constexpr int kRounds = 2000;
  bool stop = false;
  std::uint64_t fiber_puts = 0;
  REQUIRE(primary_side.reactor->spawn_detached("writer", [&] {
    while (!stop) {
      if (!primary->wait_for_room(200, primary_side.clock.now() + seconds(5))) break;
      const auto lsn =
          primary->try_append(EntryKind::put, as_bytes("key"), as_bytes("a value of some length"));
      if (!lsn || !primary->wait(*lsn, AckLevel::applied, primary_side.clock.now() + seconds(5))) break;
      ++fiber_puts;
    }
  }));
  CountedWaiter waiter;
  waiter.done = [](AckWaiter& base, Status status) {
    static_cast<CountedWaiter&>(base).calls += status ? 1 : 0;
  };
  std::uint64_t before = 0;
  std::uint64_t during = 0;
  for (int round = 0; round < kWarmup + kRounds; ++round) {
    if (round == kWarmup) before = allocations;
    for (int i = 0; i < 8; ++i) {
      const auto lsn = primary->try_append(EntryKind::put, as_bytes("k"), as_bytes("value"));
      if (lsn) waiter.lsn = *lsn;
    }
    waiter.deadline = primary_side.clock.now() + seconds(5);
    primary->add_waiter(waiter);
    for (int i = 0; i < 3; ++i) {
      primary_side.clock.advance(milliseconds(1));
      replica_side.clock.advance(milliseconds(1));
      primary_side.reactor->turn();
      replica_side.reactor->turn();
    }
    during = allocations - before;
  }
  stop = true;
  primary_side.run();
  replica_side.run();
  primary_side.run();
  CHECK(during == 0);
  CHECK(waiter.calls == kWarmup + kRounds);
  CHECK(fiber_puts > kRounds / 2);
  CHECK(applier.applied > 8 * kRounds);
  primary->close("done");
  primary_side.end();
  replica_side.end();
}
