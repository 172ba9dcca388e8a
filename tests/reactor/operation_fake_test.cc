// Completions in an order of the test's choosing, which no kernel would give on demand.
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/operation.h>
#include <tidelock/reactor/random.h>
#include <tidelock/reactor/reactor.h>

#include "operation_pool.h"

using namespace tidelock;

namespace {

class FakeIo final : public IoBackend {
 public:
  struct Staged {
    IoRequest request;
    IoCompletion* completion;
    bool cancelled = false;
  };
  Result<IoToken> submit(const IoRequest& request, IoCompletion& completion) override {
    if (refuse) return ReactorErrc::out_of_operations;
    staged.push_back({request, &completion});
    return IoToken{static_cast<std::uint32_t>(staged.size() - 1), 1};
  }
  void cancel(IoToken token) override { staged[token.slot].cancelled = true; }
  std::uint32_t poll(std::uint32_t) override { return 0; }
  void flush() override {}
  [[nodiscard]] bool has_work() const override { return false; }
  [[nodiscard]] std::uint32_t in_flight() const override { return 0; }

  void complete(std::size_t index, std::int32_t result, bool more = false) {
    staged[index].completion->on_completion(result, more);
  }
  std::vector<Staged> staged;
  bool refuse = false;
};

struct Fixture {
  explicit Fixture(std::uint32_t operations = 4) {
    auto created = Reactor::create({.max_operations = operations}, clock, io, random);
    REQUIRE(created);
    reactor = std::move(*created);
  }
  void advance(Duration by) {
    clock.advance(by);
    reactor->turn();
    reactor->turn();
  }
  ManualClock clock;
  FakeIo io;
  Random random{1};
  std::unique_ptr<Reactor> reactor;
};

struct Events {
  static void record(void* context, std::uint32_t events) {
    static_cast<Events*>(context)->seen.push_back(events);
  }
  std::vector<std::uint32_t> seen;
};

}  // namespace

TEST_CASE("reactor/operation: only the completion frees a slot whose fiber has left at its deadline") {
  Fixture fixture(1);
  std::vector<Status> outcomes;
  const auto read = [&] {
    std::array<std::byte, 16> into{};
    auto result = io::read(9, into, fixture.reactor->now() + milliseconds(10));
    outcomes.push_back(result ? Status() : Status(result.error()));
  };
  REQUIRE(fixture.reactor->spawn_detached("first", read));
  fixture.reactor->turn();
  fixture.advance(milliseconds(11));
  // Expect: detached, cancelled at the kernel, and the slot still taken
  REQUIRE(outcomes.size() == 1);
  CHECK(outcomes[0].error() == ReactorErrc::deadline_exceeded);
  CHECK(fixture.io.staged.at(0).cancelled);
  CHECK(!fixture.reactor->operations().idle());
  REQUIRE(fixture.reactor->spawn_detached("second", read));
  fixture.reactor->turn();
  REQUIRE(outcomes.size() == 2);
  CHECK(outcomes[1].error() == ReactorErrc::out_of_operations);
  // Expect: the late store goes to the slot's buffer, then the slot is free
  std::memset(fixture.io.staged[0].request.buffer, 0xab, 16);
  fixture.io.complete(0, 16);
  CHECK(fixture.reactor->operations().idle());
  REQUIRE(fixture.reactor->spawn_detached("third", read));
  fixture.reactor->turn();
  REQUIRE(fixture.io.staged.size() == 2);
  fixture.io.complete(1, 3);
  fixture.reactor->turn();
  REQUIRE(outcomes.size() == 3);
  CHECK(outcomes[2]);
}

TEST_CASE("reactor/operation: a completion that comes together with the cancellation is reported") {
  Fixture fixture;
  std::int64_t result = -1;
  auto handle = fixture.reactor->spawn("writer", [&] {
    auto written = io::write(9, as_bytes("abc"), Instant::never());
    if (written) result = *written;
  });
  REQUIRE(handle);
  fixture.reactor->turn();
  REQUIRE(fixture.io.staged.size() == 1);
  CHECK(std::memcmp(fixture.io.staged[0].request.buffer, "abc", 3) == 0);
  SUBCASE("cancelled first") {
    handle->cancel();
    fixture.io.complete(0, 3);
  }
  SUBCASE("completed first") {
    fixture.io.complete(0, 3);
    handle->cancel();
  }
  fixture.reactor->turn();
  CHECK(handle->finished());
  CHECK(result == 3);
  CHECK(fixture.reactor->operations().idle());
}

TEST_CASE(
    "reactor/operation: a watch is armed again after each end, with a pause if the kernel has no memory") {
  Fixture fixture;
  Events events;
  FdWatch watch;
  REQUIRE(watch.start(*fixture.reactor, 9, POLLIN, &Events::record, &events));
  fixture.io.complete(0, POLLIN, true);
  CHECK(fixture.io.staged.size() == 1);
  // Expect: the last of a multishot poll arms the next one at once
  fixture.io.complete(0, POLLIN, false);
  CHECK(fixture.io.staged.size() == 2);
  // Expect: an interrupted poll, too, without a word to the handler
  fixture.io.complete(1, -EINTR, false);
  CHECK(fixture.io.staged.size() == 3);
  // Expect: no memory waits for the timer
  fixture.io.complete(2, -ENOMEM, false);
  CHECK(fixture.io.staged.size() == 3);
  fixture.advance(milliseconds(2));
  CHECK(fixture.io.staged.size() == 4);
  // Expect: a backend that has no slot is asked again later, as often as it takes
  fixture.io.refuse = true;
  fixture.io.complete(3, POLLIN, false);
  fixture.advance(milliseconds(2));
  fixture.advance(milliseconds(2));
  CHECK(fixture.io.staged.size() == 4);
  fixture.io.refuse = false;
  fixture.advance(milliseconds(2));
  CHECK(fixture.io.staged.size() == 5);
  CHECK(events.seen == std::vector<std::uint32_t>{POLLIN, POLLIN, POLLIN});
  watch.stop();
  CHECK(fixture.io.staged[4].cancelled);
  CHECK(!fixture.reactor->operations().idle());
  fixture.io.complete(4, -ECANCELED, false);
  CHECK(fixture.reactor->operations().idle());
}

TEST_CASE("reactor/operation: a stopped watch calls nobody, whatever the kernel still sends") {
  Fixture fixture;
  Events events;
  auto watch = std::make_unique<FdWatch>();
  REQUIRE(watch->start(*fixture.reactor, 9, POLLIN, &Events::record, &events));
  watch.reset();
  fixture.io.complete(0, POLLIN, true);
  CHECK(!fixture.reactor->operations().idle());
  fixture.io.complete(0, POLLIN, false);
  CHECK(events.seen.empty());
  CHECK(fixture.io.staged.size() == 1);
  CHECK(fixture.reactor->operations().idle());
}

TEST_CASE("reactor/operation: a handler may end its own watch, with or without more events to come") {
  struct Ending {
    static void end(void* context, std::uint32_t) {
      auto* self = static_cast<Ending*>(context);
      ++self->calls;
      self->watch.stop();
    }
    FdWatch watch;
    int calls = 0;
  };
  Fixture fixture;
  Ending ending;
  REQUIRE(ending.watch.start(*fixture.reactor, 9, POLLIN, &Ending::end, &ending));
  SUBCASE("this was the last event") { fixture.io.complete(0, POLLIN, false); }
  SUBCASE("the kernel still holds the poll") {
    fixture.io.complete(0, POLLIN, true);
    CHECK(fixture.io.staged[0].cancelled);
    CHECK(!fixture.reactor->operations().idle());
    fixture.io.complete(0, -ECANCELED, false);
  }
  CHECK(ending.calls == 1);
  CHECK(fixture.io.staged.size() == 1);
  CHECK(fixture.reactor->operations().idle());
}

TEST_CASE("reactor/operation: a watch that waits for its retry can be stopped") {
  Fixture fixture;
  Events events;
  FdWatch watch;
  REQUIRE(watch.start(*fixture.reactor, 9, POLLIN, &Events::record, &events));
  fixture.io.complete(0, -ENOMEM, false);
  watch.stop();
  CHECK(fixture.reactor->operations().idle());
  fixture.advance(milliseconds(5));
  CHECK(fixture.io.staged.size() == 1);
}

TEST_CASE("reactor/operation: a watch that the backend refuses is not active") {
  Fixture fixture;
  fixture.io.refuse = true;
  FdWatch watch;
  const Status refused = watch.start(*fixture.reactor, 9, POLLIN, nullptr, nullptr);
  REQUIRE(!refused);
  CHECK(refused.error() == ReactorErrc::out_of_operations);
  CHECK(!watch.active());
  CHECK(fixture.reactor->operations().idle());
}
