#include <array>
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <string>
#include <thread>
#include <utility>

#include <sys/eventfd.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/operation.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>

#include "operation_pool.h"
#include "ring_fixture.h"

using namespace ring_test;

namespace {

/// The real backend with the polls that pass counted.
class CountingIo final : public IoBackend {
 public:
  explicit CountingIo(UringBackend& ring) : ring_(ring) {}
  Result<IoToken> submit(const IoRequest& request, IoCompletion& completion) override {
    if (request.kind == IoRequest::Kind::poll_multishot) ++polls;
    return ring_.submit(request, completion);
  }
  void cancel(IoToken token) override { ring_.cancel(token); }
  std::uint32_t poll(std::uint32_t budget) override { return ring_.poll(budget); }
  void flush() override { ring_.flush(); }
  [[nodiscard]] bool has_work() const override { return ring_.has_work(); }
  [[nodiscard]] std::uint32_t in_flight() const override { return ring_.in_flight(); }
  std::uint32_t polls = 0;

 private:
  UringBackend& ring_;
};

/// A reactor on a real ring, driven by the test's own thread.
class Loop {
 public:
  explicit Loop(const UringOptions& ring_options = {.entries = 8}, std::uint32_t operations = 64)
      : ring_(make_ring(ring_options)), io_(*ring_) {
    auto reactor = Reactor::create({.max_operations = operations}, clock_, io_, random_);
    if (!reactor) FAIL(reactor.error().message());
    reactor_ = std::move(*reactor);
  }
  ~Loop() {
    reactor_->cancel_all();
    CHECK(turn_until([&] { return reactor_->idle(); }));
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  template <class Predicate>
  bool turn_until(Predicate&& done) {
    const Instant patience = clock_.now() + seconds(30);
    while (!done()) {
      if (clock_.now() > patience) return false;
      if (reactor_->turn() > clock_.now() && !reactor_->has_work()) ring_->wait(milliseconds(1));
    }
    return true;
  }
  /// Runs `body` in a fiber until it has ended.
  template <class Body>
  void run(Body body) {
    bool ended = false;
    REQUIRE(reactor_->spawn_detached("test", [&] {
      body();
      ended = true;
    }));
    REQUIRE(turn_until([&] { return ended; }));
  }
  [[nodiscard]] Instant in(Duration duration) { return clock_.now() + duration; }
  Reactor& reactor() { return *reactor_; }
  UringBackend& ring() { return *ring_; }
  CountingIo& io() { return io_; }

 private:
  SystemClock clock_;
  std::unique_ptr<UringBackend> ring_;
  CountingIo io_;
  Random random_{1};
  std::unique_ptr<Reactor> reactor_;
};

constexpr Duration kLong = seconds(60);

struct Drain {
  static void handle(void* context, std::uint32_t events) {
    auto* self = static_cast<Drain*>(context);
    ++self->calls;
    self->events |= events;
    std::uint64_t value = 0;
    while (::read(self->fd, &value, sizeof value) == sizeof value) self->sum += value;
  }
  int fd = -1;
  std::uint64_t sum = 0;
  std::uint64_t calls = 0;
  std::uint32_t events = 0;
};

}  // namespace

TEST_CASE("reactor/operation: nop, poll, read and write from a fiber") {
  Loop loop;
  Pipe pipe;
  loop.run([&] {
    CHECK(io::nop(loop.in(kLong)));
    auto written = io::write(pipe.write_end(), as_bytes("tides"), loop.in(kLong));
    REQUIRE(written);
    CHECK(*written == 5);
    auto events = io::poll(pipe.read_end(), POLLIN, loop.in(kLong));
    REQUIRE(events);
    CHECK((*events & POLLIN) != 0);
    std::array<std::byte, 32> into{};
    auto read = io::read(pipe.read_end(), into, loop.in(kLong));
    REQUIRE(read);
    CHECK(as_text(Bytes(into).first(*read)) == "tides");
    pipe.close_write();
    auto end = io::read(pipe.read_end(), into, loop.in(kLong));
    REQUIRE(end);
    CHECK(*end == 0);
  });
}

TEST_CASE("reactor/operation: a read or write moves at most what a slot holds") {
  Loop loop;
  Pipe pipe;
  loop.run([&] {
    std::vector<std::byte> large(3 * OperationPool::kBufferBytes, std::byte{7});
    auto written = io::write(pipe.write_end(), large, loop.in(kLong));
    REQUIRE(written);
    CHECK(*written == OperationPool::kBufferBytes);
    std::vector<std::byte> into(large.size());
    auto read = io::read(pipe.read_end(), into, loop.in(kLong));
    REQUIRE(read);
    CHECK(*read == OperationPool::kBufferBytes);
    CHECK(into[OperationPool::kBufferBytes - 1] == std::byte{7});
    CHECK(into[OperationPool::kBufferBytes] == std::byte{0});
  });
}

TEST_CASE("reactor/operation: a failing descriptor gives its errno and its number") {
  Loop loop;
  loop.run([&] {
    std::array<std::byte, 8> into{};
    auto read = io::read(-1, into, loop.in(kLong));
    REQUIRE(!read);
    CHECK(read.error().code() == std::error_code(EBADF, std::generic_category()));
    CHECK(read.error().message().find("-1") != std::string::npos);
  });
}

TEST_CASE("reactor/operation: off a reactor there is no I/O") {
  std::array<std::byte, 8> into{};
  auto read = io::read(0, into, Instant::never());
  REQUIRE(!read);
  CHECK(read.error() == ReactorErrc::not_on_reactor);
}

TEST_CASE("reactor/operation: a deadline that has passed starts nothing") {
  Loop loop;
  Pipe pipe;
  loop.run([&] {
    auto written = io::write(pipe.write_end(), as_bytes("x"), Instant{1});
    REQUIRE(!written);
    CHECK(written.error() == ReactorErrc::deadline_exceeded);
    CHECK(loop.reactor().operations().idle());
  });
}

TEST_CASE("reactor/operation: after a deadline the data that comes later touches nothing and is not lost") {
  Loop loop;
  Pipe pipe;
  loop.run([&] {
    // On the heap, so that AddressSanitizer sees a kernel's late store in a slot that points here.
    auto into = std::make_unique<std::array<std::byte, 64>>();
    auto read = io::read(pipe.read_end(), *into, loop.in(milliseconds(5)));
    REQUIRE(!read);
    CHECK(read.error() == ReactorErrc::deadline_exceeded);
  });
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().idle(); }));
  REQUIRE(::write(pipe.write_end(), "late", 4) == 4);
  loop.run([&] {
    std::array<std::byte, 64> into{};
    auto read = io::read(pipe.read_end(), into, loop.in(kLong));
    REQUIRE(read);
    CHECK(as_text(Bytes(into).first(*read)) == "late");
  });
}

TEST_CASE("reactor/operation: a fiber that is cancelled leaves its operation to the slot") {
  Loop loop;
  Pipe pipe;
  bool refused = false;
  auto handle = loop.reactor().spawn("reader", [&] {
    std::array<std::byte, 64> into{};
    auto read = io::read(pipe.read_end(), into, Instant::never());
    const bool first = !read && read.error() == ReactorErrc::cancelled;
    auto again = io::read(pipe.read_end(), into, Instant::never());
    refused = first && !again && again.error() == ReactorErrc::cancelled;
  });
  REQUIRE(handle);
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().in_use() == 1; }));
  loop.reactor().turn();
  handle->cancel();
  REQUIRE(loop.turn_until([&] { return handle->finished(); }));
  CHECK(refused);
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().idle(); }));
}

TEST_CASE("reactor/operation: with every slot in flight an operation is refused") {
  Loop loop({.entries = 8}, 1);
  Pipe pipe;
  REQUIRE(loop.reactor().spawn_detached("reader", [&] {
    std::array<std::byte, 8> into{};
    auto read = io::read(pipe.read_end(), into, Instant::never());
    CHECK((read && *read == 1));
  }));
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().in_use() == 1; }));
  loop.run([&] {
    const Status refused = io::nop(loop.in(kLong));
    REQUIRE(!refused);
    CHECK(refused.error() == ReactorErrc::out_of_operations);
  });
  REQUIRE(::write(pipe.write_end(), "x", 1) == 1);
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().idle(); }));
  loop.run([&] { CHECK(io::nop(loop.in(kLong))); });
}

TEST_CASE("reactor/operation: many fibers share a ring of eight entries") {
  Loop loop({.entries = 8}, 64);
  int ended = 0;
  for (int fiber = 0; fiber < 60; ++fiber) {
    REQUIRE(loop.reactor().spawn_detached("worker", [&] {
      Pipe pipe;
      for (int round = 0; round < 20; ++round) {
        std::array<std::byte, 8> into{};
        CHECK(io::nop(loop.in(kLong)));
        CHECK(io::write(pipe.write_end(), as_bytes("abc"), loop.in(kLong)));
        auto read = io::read(pipe.read_end(), into, loop.in(kLong));
        CHECK((read && *read == 3));
      }
      ++ended;
    }));
  }
  REQUIRE(loop.turn_until([&] { return ended == 60; }));
}

TEST_CASE("reactor/operation: a watch loses no readiness over ten thousand events from another thread") {
  constexpr std::uint64_t kEvents = 10'000;
  Loop loop;
  Drain drain;
  drain.fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  REQUIRE(drain.fd >= 0);
  FdWatch watch;
  REQUIRE(watch.start(loop.reactor(), drain.fd, POLLIN, &Drain::handle, &drain));
  std::thread writer([fd = drain.fd] {
    const std::uint64_t one = 1;
    for (std::uint64_t i = 0; i < kEvents; ++i) {
      if (::write(fd, &one, sizeof one) != sizeof one) return;
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  CHECK(loop.turn_until([&] { return drain.sum == kEvents; }));
  writer.join();
  CHECK(drain.sum == kEvents);
  watch.stop();
  CHECK(!watch.active());
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().idle(); }));
  ::close(drain.fd);
}

TEST_CASE("reactor/operation: a watch that the kernel ended, as when its CQ is full, is armed again") {
  Loop loop({.entries = 8, .max_operations = 256});
  Drain drain;
  drain.fd = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  REQUIRE(drain.fd >= 0);
  FdWatch watch;
  REQUIRE(watch.start(loop.reactor(), drain.fd, POLLIN, &Drain::handle, &drain));
  Counter nops;
  constexpr std::uint32_t kRounds = 20;
  for (std::uint32_t round = 1; round <= kRounds; ++round) {
    loop.reactor().turn();
    for (int i = 0; i < 100; ++i) REQUIRE(loop.ring().submit({.kind = IoRequest::Kind::nop}, nops));
    loop.ring().flush();
    const std::uint64_t one = 1;
    REQUIRE(::write(drain.fd, &one, sizeof one) == sizeof one);
    REQUIRE(loop.turn_until([&] { return drain.sum == round && nops.completed == round * 100; }));
  }
  CHECK(loop.io().polls > 1);
  CHECK(loop.ring().stats().cq_overflows > 0);
  watch.stop();
  REQUIRE(loop.turn_until([&] { return loop.reactor().operations().idle(); }));
  ::close(drain.fd);
}

TEST_CASE("reactor/operation: a watch may be stopped and destroyed from its own handler") {
  struct Once {
    static void handle(void* context, std::uint32_t) {
      auto* self = static_cast<Once*>(context);
      ++self->calls;
      self->watch.reset();
    }
    std::unique_ptr<FdWatch> watch = std::make_unique<FdWatch>();
    int calls = 0;
  };
  Loop loop;
  Pipe pipe;
  Once once;
  REQUIRE(once.watch->start(loop.reactor(), pipe.read_end(), POLLIN, &Once::handle, &once));
  REQUIRE(::write(pipe.write_end(), "x", 1) == 1);
  REQUIRE(loop.turn_until([&] { return once.calls == 1 && loop.reactor().operations().idle(); }));
  REQUIRE(::write(pipe.write_end(), "y", 1) == 1);
  for (int i = 0; i < 10; ++i) loop.reactor().turn();
  CHECK(once.calls == 1);
}

TEST_CASE("reactor/operation: a watch on a bad descriptor says POLLERR once") {
  Loop loop;
  Drain drain;
  FdWatch watch;
  REQUIRE(watch.start(loop.reactor(), 1 << 20, POLLIN, &Drain::handle, &drain));
  REQUIRE(loop.turn_until([&] { return drain.calls > 0; }));
  for (int i = 0; i < 10; ++i) loop.reactor().turn();
  CHECK(drain.calls == 1);
  CHECK((drain.events & POLLERR) != 0);
  watch.stop();
  CHECK(loop.reactor().operations().idle());
}
