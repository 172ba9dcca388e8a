#include <cfenv>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/reactor.h>

#include "fiber_switch.h"
#include "null_io.h"
#include "stack_pool.h"

using namespace tidelock;
using tidelock::test::kNever;
using tidelock::test::Rig;

namespace {

/// Runs `body` in a child and tells how it ended; `said` takes what it wrote to stderr.
int fork_status(const std::function<void()>& body, std::string* said = nullptr) {
  int pipe_ends[2];
  REQUIRE(::pipe(pipe_ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    // doctest's and the sanitizers' handlers would turn the signal into an exit.
    for (const int number : {SIGSEGV, SIGABRT, SIGBUS}) ::signal(number, SIG_DFL);
    ::dup2(pipe_ends[1], STDERR_FILENO);
    body();
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  char buffer[512];
  for (ssize_t got = 0; (got = ::read(pipe_ends[0], buffer, sizeof buffer)) > 0;) {
    if (said != nullptr) said->append(buffer, static_cast<std::size_t>(got));
  }
  ::close(pipe_ends[0]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

[[gnu::noinline]] int descend(int depth) {
  volatile char frame[1024];
  frame[0] = static_cast<char>(depth);
  if (depth > 0) return descend(depth - 1) + frame[0];
  return frame[0];
}

}  // namespace

TEST_CASE("reactor/fiber: a result is joined") {
  Rig rig;
  rig.run_fiber([&] {
    auto handle = rig.reactor->spawn("adder", [] { return std::string("done"); });
    REQUIRE(handle);
    CHECK(handle->valid());
    CHECK_FALSE(handle->finished());
    const auto result = handle->join(kNever);
    REQUIRE(result);
    CHECK(*result == "done");
    CHECK_FALSE(handle->valid());
  });
}

TEST_CASE("reactor/fiber: a finished fiber's result waits in its handle") {
  Rig rig;
  auto moved = std::make_unique<int>(5);
  auto handle =
      rig.reactor->spawn("owner", [moved = std::move(moved)]() mutable { return std::move(moved); });
  REQUIRE(handle);
  rig.run();
  CHECK(handle->finished());
  CHECK(rig.reactor->idle());
  const auto result = handle->join(kNever);  // nothing to wait for, so the loop may take it
  REQUIRE(result);
  CHECK(**result == 5);
}

TEST_CASE("reactor/fiber: closure and result are destroyed with the fiber, joined or dropped") {
  Rig rig;
  const auto witness = std::make_shared<int>(1);
  {
    auto joined = rig.reactor->spawn("joined", [witness] { return witness; });
    auto finished = rig.reactor->spawn("finished", [witness] { return witness; });
    REQUIRE(joined);
    REQUIRE(finished);
    REQUIRE(rig.reactor->spawn_detached("dropped", [witness] { return witness; }));
    rig.run();
    CHECK(witness.use_count() == 5);  // two closures and two results; the detached one is gone
    CHECK(joined->join(kNever));
  }
  CHECK(witness.use_count() == 1);
}

TEST_CASE("reactor/fiber: ready fibers run first in, first out, and yield goes to the back") {
  Rig rig;
  std::string order;
  for (const char name : {'a', 'b', 'c'}) {
    REQUIRE(rig.reactor->spawn_detached("letter", [&order, name] {
      for (int i = 0; i < 3; ++i) {
        order += name;
        CHECK(this_fiber::yield() == Wakeup::notified);
      }
    }));
  }
  rig.run();
  CHECK(order == "abcabcabc");
}

TEST_CASE("reactor/fiber: a turn ends although fibers yield for ever") {
  Rig rig;
  bool stop = false;
  int spins = 0;
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rig.reactor->spawn_detached("spinner", [&] {
      while (!stop) {
        ++spins;
        this_fiber::yield();
      }
    }));
  }
  CHECK(rig.reactor->turn() == Instant{0});
  CHECK(spins >= 3);
  CHECK(spins <= 64);
  stop = true;
}

TEST_CASE("reactor/fiber: many fibers share a few stacks, one after the other") {
  Rig rig;
  std::set<std::uintptr_t> places;
  for (int i = 0; i < 10'000; ++i) {
    auto handle = rig.reactor->spawn("short", [&places] {
      // Not a local's address: AddressSanitizer may keep locals elsewhere.
      places.insert(reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0)) / (32 * 1024));
      return 1;
    });
    REQUIRE(handle);
    rig.run();
    REQUIRE(handle->join(kNever).has_value());
  }
  CHECK(places.size() <= 2);
  CHECK(rig.reactor->stats().fibers_spawned.load() == 10'000);
  CHECK(rig.reactor->stats().fibers_live.load() == 0);
}

TEST_CASE("reactor/fiber: when all stacks are in use spawn says so, and works again after one ended") {
  ReactorOptions options = Rig::small();
  options.max_fibers = 3;
  Rig rig(options);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(rig.reactor->spawn_detached("sleeper", [] { this_fiber::sleep_for(seconds(1)); }));
  }
  CHECK(rig.reactor->spawn_detached("one too many", [] {}).error() == ReactorErrc::out_of_fibers);
  rig.run_for(seconds(2));
  CHECK(rig.reactor->spawn_detached("later", [] {}));
}

TEST_CASE("reactor/fiber: a large closure and an over-aligned one find their place") {
  Rig rig;
  struct Large {
    std::byte bytes[3900];
  };
  struct alignas(512) Aligned {
    std::byte bytes[512];
  };
  rig.run_fiber([&] {
    Large large{};
    large.bytes[3899] = std::byte{7};
    auto first = rig.reactor->spawn("large", [large] { return large.bytes[3899]; });
    auto second = rig.reactor->spawn("aligned", [aligned = Aligned{}] {
      return reinterpret_cast<std::uintptr_t>(&aligned) % alignof(Aligned);
    });
    REQUIRE(first);
    REQUIRE(second);
    CHECK(*first->join(kNever) == std::byte{7});
    CHECK(*second->join(kNever) == 0);
  });
}

TEST_CASE("reactor/fiber: sleep ends at its time, not before, and moves nobody else's") {
  Rig rig;
  std::string order;
  const Instant start = rig.clock.now();
  const auto sleeper = [&](char name, std::int64_t ms) {
    REQUIRE(rig.reactor->spawn_detached("sleeper", [&order, &rig, start, name, ms] {
      CHECK(this_fiber::sleep_for(milliseconds(ms)) == Wakeup::deadline);
      CHECK(rig.reactor->now() == start + milliseconds(ms));
      order += name;
    }));
  };
  sleeper('c', 30);
  sleeper('a', 10);
  sleeper('b', 20);
  CHECK(rig.run() == start + milliseconds(10));
  rig.run_until(start + milliseconds(15));
  CHECK(order == "a");
  rig.run_until(start + milliseconds(50));
  CHECK(order == "abc");
}

TEST_CASE("reactor/fiber: a sleep until a time that has passed returns at once") {
  Rig rig;
  rig.run_fiber([&] {
    const auto switches = rig.reactor->stats().turns.load();
    CHECK(this_fiber::sleep_until(rig.reactor->now()) == Wakeup::deadline);
    CHECK(this_fiber::sleep_for(milliseconds(-5)) == Wakeup::deadline);
    CHECK(rig.reactor->stats().turns.load() == switches);
  });
}

TEST_CASE("reactor/fiber: join obeys its deadline and may be called again") {
  Rig rig;
  rig.run_fiber([&] {
    auto handle = rig.reactor->spawn("slow", [] {
      this_fiber::sleep_for(milliseconds(20));
      return 3;
    });
    REQUIRE(handle);
    CHECK(handle->join(rig.reactor->now() + milliseconds(5)).error() == ReactorErrc::deadline_exceeded);
    CHECK(handle->valid());
    CHECK(*handle->join(rig.reactor->now() + milliseconds(50)) == 3);
  });
}

TEST_CASE("reactor/fiber: cancel ends a sleep, and a cancelled fiber does not suspend again") {
  Rig rig;
  int stage = 0;
  auto handle = rig.reactor->spawn("sleeper", [&] {
    CHECK(this_fiber::sleep_until(kNever) == Wakeup::cancelled);
    stage = 1;
    CHECK(this_fiber::cancelled());
    CHECK(this_fiber::sleep_for(seconds(1)) == Wakeup::cancelled);
    WaitQueue queue;
    CHECK(queue.wait(kNever) == Wakeup::cancelled);
    CHECK(this_fiber::yield() == Wakeup::cancelled);
    stage = 2;
  });
  REQUIRE(handle);
  CHECK(rig.run() == kNever);
  CHECK(stage == 0);
  handle->cancel();
  CHECK(rig.run() == kNever);
  CHECK(stage == 2);
  CHECK(handle->join(kNever));
}

TEST_CASE("reactor/fiber: a fiber cancelled before it ran starts all the same") {
  Rig rig;
  auto handle = rig.reactor->spawn("early", [] { return this_fiber::sleep_for(seconds(1)); });
  REQUIRE(handle);
  handle->cancel();
  rig.run();
  CHECK(*handle->join(kNever) == Wakeup::cancelled);
}

TEST_CASE("reactor/fiber: a cancelled joiner keeps a valid handle") {
  Rig rig;
  auto inner = rig.reactor->spawn("inner", [] { this_fiber::sleep_for(milliseconds(10)); });
  REQUIRE(inner);
  auto outer = rig.reactor->spawn("outer", [&] { return inner->join(kNever).error().code(); });
  REQUIRE(outer);
  rig.run();
  outer->cancel();
  rig.run();
  CHECK(*outer->join(kNever) == make_error_code(ReactorErrc::cancelled));
  CHECK(inner->valid());
  rig.run_for(milliseconds(20));
  CHECK(inner->join(kNever));
}

TEST_CASE("reactor/fiber: notified before cancelled, or before the deadline, stays notified") {
  Rig rig;
  WaitQueue queue;
  Wakeup first{}, second{};
  const Instant deadline = rig.clock.now() + milliseconds(1);
  auto a = rig.reactor->spawn("a", [&] { first = queue.wait(kNever); });
  auto b = rig.reactor->spawn("b", [&] { second = queue.wait(deadline); });
  REQUIRE(a);
  REQUIRE(b);
  rig.run();
  CHECK(queue.notify_one());
  a->cancel();
  CHECK(queue.notify_one());
  rig.clock.advance(milliseconds(5));
  CHECK_FALSE(queue.notify_one());
  first = second = Wakeup::deadline;
  rig.run();
  CHECK(first == Wakeup::notified);
  CHECK(second == Wakeup::notified);
}

TEST_CASE("reactor/fiber: a queue's waiters are served in order, and leave it from the middle") {
  Rig rig;
  WaitQueue queue;
  std::string order;
  std::vector<JoinHandle<void>> handles;
  for (const char name : {'a', 'b', 'c', 'd'}) {
    auto handle = rig.reactor->spawn(
        "waiter", [&queue, &order, name] { order += queue.wait(kNever) == Wakeup::notified ? name : '-'; });
    REQUIRE(handle);
    handles.push_back(*std::move(handle));
  }
  rig.run();
  handles[1].cancel();
  rig.run();
  CHECK(queue.notify_one());
  rig.run();
  CHECK(order == "-a");
  CHECK(queue.notify_all() == 2);
  CHECK(queue.empty());
  rig.run();
  CHECK(order == "-acd");
}

TEST_CASE("reactor/fiber: what is being handled in a catch block belongs to its fiber") {
  Rig rig;
  std::string seen;
  for (const char* name : {"one", "two", "three"}) {
    REQUIRE(rig.reactor->spawn_detached("thrower", [&seen, name] {
      try {
        try {
          throw std::runtime_error(name);
        } catch (const std::runtime_error&) {
          this_fiber::yield();  // the others throw and catch meanwhile
          try {
            throw std::logic_error("inner");
          } catch (const std::logic_error&) {
            this_fiber::yield();
          }
          this_fiber::yield();
          throw;
        }
      } catch (const std::exception& error) {
        seen += error.what();
        seen += ' ';
      }
      CHECK(std::current_exception() == nullptr);
    }));
  }
  rig.run();
  CHECK(seen == "one two three ");
  CHECK(std::uncaught_exceptions() == 0);
}

TEST_CASE("reactor/fiber: a fiber may suspend while an exception unwinds it") {
  Rig rig;
  int uncaught_elsewhere = -1;
  struct YieldsInDestructor {
    ~YieldsInDestructor() {
      CHECK(std::uncaught_exceptions() == 1);
      this_fiber::yield();
      CHECK(std::uncaught_exceptions() == 1);
    }
  };
  bool caught = false;
  REQUIRE(rig.reactor->spawn_detached("unwound", [&] {
    try {
      const YieldsInDestructor guard;
      throw std::runtime_error("x");
    } catch (const std::runtime_error&) {
      caught = true;
    }
  }));
  REQUIRE(rig.reactor->spawn_detached("other", [&] { uncaught_elsewhere = std::uncaught_exceptions(); }));
  rig.run();
  CHECK(caught);
  CHECK(uncaught_elsewhere == 0);
}

TEST_CASE("reactor/fiber: a fiber's rounding mode is its own") {
  Rig rig;
  int elsewhere = -1;
  REQUIRE(rig.reactor->spawn_detached("upward", [] {
    std::fesetround(FE_UPWARD);
    volatile double third = 1.0;
    third = third / 3.0;  // inexact: leaves a sticky flag behind, which must not touch the mode
    this_fiber::yield();
    CHECK(std::fegetround() == FE_UPWARD);
    std::fesetround(FE_TONEAREST);
  }));
  REQUIRE(rig.reactor->spawn_detached("other", [&] { elsewhere = std::fegetround(); }));
  rig.run();
  CHECK(elsewhere == FE_TONEAREST);
  CHECK(std::fegetround() == FE_TONEAREST);
}

TEST_CASE("reactor/fiber: this_fiber knows whether and as whom it runs") {
  Rig rig;
  CHECK_FALSE(this_fiber::exists());
  rig.run_fiber([] {
    CHECK(this_fiber::exists());
    CHECK(std::string(this_fiber::name()) == "test");
    CHECK_FALSE(this_fiber::cancelled());
  });
  CHECK_FALSE(this_fiber::exists());
}

TEST_CASE("reactor/fiber: the deepest stack use is seen when the stack is given back") {
  Rig rig;
  rig.run_fiber([] {});
  const std::uint64_t shallow = rig.reactor->stats().stack_bytes_peak.load();
  rig.run_fiber([] { descend(30); });
  const std::uint64_t deep = rig.reactor->stats().stack_bytes_peak.load();
  CHECK(shallow < 16 * 1024);
  CHECK(deep >= 30 * 1024);
  CHECK(deep <= 64 * 1024);
}

TEST_CASE("reactor/fiber: the byte below a stack cannot be written, the lowest byte can") {
  const auto write_at = [](std::ptrdiff_t offset) {
    return fork_status([offset] {
      auto pool = StackPool::create(16 * 1024, 4, 2);
      REQUIRE(pool);
      Stack* const stack = (*pool)->take();
      *static_cast<volatile std::byte*>(stack->low + offset) = std::byte{1};
    });
  };
  const int lowest = write_at(0);
  CHECK(WIFEXITED(lowest));
  const int below = write_at(-1);
  REQUIRE(WIFSIGNALED(below));
  CHECK(WTERMSIG(below) == SIGSEGV);
}

TEST_CASE("reactor/fiber: a stack that the kernel refused is not asked for again before one was given back") {
  if (kAddressSanitizer || kThreadSanitizer) return;  // their shadow needs mappings, too
  const int status = fork_status([] {
    auto pool = StackPool::create(16 * 1024, 4, 0);
    REQUIRE(pool);
    Stack* const first = (*pool)->take();
    const bool could = (*pool)->can_take();
    rlimit limit{};
    ::getrlimit(RLIMIT_AS, &limit);
    const rlimit none{1, limit.rlim_max};
    ::setrlimit(RLIMIT_AS, &none);
    const bool refused = (*pool)->take() == nullptr;
    const bool can_when_refused = (*pool)->can_take();
    (*pool)->give_back(*first);
    const bool can_again = (*pool)->can_take();
    ::setrlimit(RLIMIT_AS, &limit);
    ::_exit(could && refused && !can_when_refused && can_again ? 0 : 1);
  });
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("reactor/fiber: a stack that overflows hits its guard page") {
  const int status = fork_status([] {
    ReactorOptions options;
    options.stack_bytes = 16 * 1024;
    options.prepared_fibers = 1;
    Rig rig(options);
    (void)rig.reactor->spawn_detached("deep", [] { descend(1'000); });
    rig.reactor->turn();
  });
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
}

TEST_CASE("reactor/fiber: an exception that leaves a fiber ends the process and names the fiber") {
  std::string said;
  const int status = fork_status(
      [] {
        Rig rig;
        (void)rig.reactor->spawn_detached("careless", [] { throw std::runtime_error("lost"); });
        rig.reactor->turn();
      },
      &said);
  REQUIRE(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  CHECK(said.find("'careless'") != std::string::npos);
}

TEST_CASE("reactor/fiber: joining oneself, and waiting outside of a fiber, are programmer errors") {
  std::string said;
  const int self = fork_status(
      [] {
        Rig rig;
        JoinHandle<void> handle;
        auto made = rig.reactor->spawn("narcissus", [&] { (void)handle.join(kNever); });
        handle = *std::move(made);
        rig.reactor->turn();
      },
      &said);
  CHECK(WIFSIGNALED(self));
  CHECK(said.find("cannot join itself") != std::string::npos);
  const int outside = fork_status(
      [] {
        WaitQueue queue;
        queue.wait(kNever);
      },
      &said);
  CHECK(WIFSIGNALED(outside));
  CHECK(said.find("outside of a fiber") != std::string::npos);
}
