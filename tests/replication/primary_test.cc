#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "stream_rig.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// A waiter that notes when it was called.
struct Noted : AckWaiter {
  Noted(std::vector<std::uint64_t>& its_order, Lsn its_lsn, AckLevel its_level, Instant its_deadline)
      : order(&its_order) {
    lsn = its_lsn;
    level = its_level;
    deadline = its_deadline;
    done = [](AckWaiter& base, Status status) {
      auto& self = static_cast<Noted&>(base);
      self.order->push_back(self.lsn.value);
      self.succeeded = status.has_value();
      self.code = status ? std::error_code() : status.error().code();
      ++self.calls;
    };
  }
  std::vector<std::uint64_t>* order;
  bool succeeded = false;
  std::error_code code;
  int calls = 0;
};

ControlFrame ack(std::uint64_t received, std::uint64_t applied) {
  ControlFrame frame;
  frame.history = kHistory;
  frame.epoch = kEpoch;
  frame.received_lsn = {received};
  frame.applied_lsn = {applied};
  return frame;
}

PrimaryOptions small_log() {
  PrimaryOptions options;
  options.log_bytes = 64 * 1024;
  return options;
}

}  // namespace

TEST_CASE("replication/primary: what one turn appends leaves as one batch, in order") {
  StreamRig rig;
  REQUIRE(rig.connect());
  rig.settle();
  rig.spawn([&] {
    for (int i = 0; i < 100; ++i) rig.put("key" + std::to_string(i), "value");
  });
  rig.settle();
  CHECK(rig.primary->stats().batches == 1);
  CHECK(rig.replica->stats().batches == 1);
  CHECK(rig.replica->applied_lsn() == Lsn{100});
  REQUIRE(rig.applier.lsns.size() == 100);
  for (std::uint64_t i = 0; i < 100; ++i) CHECK(rig.applier.lsns[i] == i + 1);
}

TEST_CASE("replication/primary: a batch may run over the log's end and is still one") {
  StreamRig rig(small_log());
  REQUIRE(rig.connect());
  const std::string value(1000, 'v');
  for (int lap = 0; lap < 60; ++lap) {
    const std::uint64_t batches = rig.primary->stats().batches;
    for (int i = 0; i < 10; ++i) rig.put("k" + std::to_string(i), value + std::to_string(lap));
    rig.settle();
    CHECK(rig.primary->stats().batches == batches + 1);
    CHECK(rig.applier.map["k9"] == value + std::to_string(lap));
  }
}

// The levels, one delivery at a time, the replica played by hand.
TEST_CASE("replication/primary: each ack level waits for its own step and for nothing else") {
  StreamRig rig;
  const auto far = rig.connect_by_hand();
  std::vector<std::uint64_t> order;
  const Lsn lsn = rig.put("k", "v");
  Noted local(order, lsn, AckLevel::local, rig.in(seconds(5)));
  Noted received(order, lsn, AckLevel::received, rig.in(seconds(5)));
  Noted applied(order, lsn, AckLevel::applied, rig.in(seconds(5)));

  // 1. Appended. Expect: local is reached at once, without a turn.
  rig.primary->add_waiter(local);
  rig.primary->add_waiter(received);
  rig.primary->add_waiter(applied);
  CHECK(local.calls == 1);
  // 2. The batch leaves. Expect: a completed send acknowledges nothing.
  rig.turn_primary();
  REQUIRE(far->receive());
  rig.turn_primary();
  CHECK(received.calls == 0);
  // 3. The replica has checked it. Expect: received, not applied.
  REQUIRE(far->send_control(ack(1, 0)));
  rig.turn_primary();
  CHECK(received.calls == 1);
  CHECK(applied.calls == 0);
  CHECK(rig.primary->commit_lsn() == Lsn{0});
  // 4. The replica has applied it. Expect: applied, committed, and the commit LSN leaves in that turn.
  REQUIRE(far->send_control(ack(1, 1)));
  rig.turn_primary();
  CHECK(applied.calls == 1);
  CHECK(rig.primary->commit_lsn() == Lsn{1});
  const auto control = far->receive_control();
  REQUIRE(control);
  CHECK(control->commit_lsn == Lsn{1});
  CHECK((local.succeeded && received.succeeded && applied.succeeded));
  rig.primary->close("done");
}

TEST_CASE("replication/primary: waiters are woken in the order of their LSN, however they were added") {
  StreamRig rig;
  const auto far = rig.connect_by_hand();
  for (int i = 0; i < 8; ++i) rig.put("k", "v");
  std::vector<std::uint64_t> order;
  std::vector<std::unique_ptr<Noted>> waiters;
  for (const std::uint64_t lsn : {3U, 1U, 8U, 2U, 5U, 5U, 4U, 7U, 6U}) {
    waiters.push_back(std::make_unique<Noted>(order, Lsn{lsn}, AckLevel::applied, rig.in(seconds(5))));
    rig.primary->add_waiter(*waiters.back());
  }
  rig.turn_primary();
  REQUIRE(far->send_control(ack(8, 4)));
  rig.turn_primary();
  CHECK(order == std::vector<std::uint64_t>{1, 2, 3, 4});
  REQUIRE(far->send_control(ack(8, 8)));
  rig.turn_primary();
  CHECK(order == std::vector<std::uint64_t>{1, 2, 3, 4, 5, 5, 6, 7, 8});
  rig.primary->close("done");
}

TEST_CASE("replication/primary: fibers wait first in, first out") {
  StreamRig rig;
  REQUIRE(rig.connect());
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) {
    rig.spawn([&rig, &order, i] {
      const Lsn lsn = rig.put("k" + std::to_string(i), "v");
      CHECK(rig.primary->wait(lsn, AckLevel::applied, rig.in(seconds(5))));
      order.push_back(i);
    });
  }
  rig.settle();
  REQUIRE(order.size() == 20);
  for (int i = 0; i < 20; ++i) CHECK(order[static_cast<std::size_t>(i)] == i);
}

TEST_CASE("replication/primary: a deadline that passes is outcome_unknown, for fibers and for waiters") {
  StreamRig rig;
  const auto far = rig.connect_by_hand();
  std::vector<std::uint64_t> order;
  rig.put("a", "v");
  rig.put("b", "v");
  Noted late(order, Lsn{1}, AckLevel::applied, rig.in(milliseconds(300)));
  Noted early(order, Lsn{2}, AckLevel::applied, rig.in(milliseconds(100)));  // deadlines need not ascend
  rig.primary->add_waiter(late);
  rig.primary->add_waiter(early);
  Status outcome;
  bool cancelled_outcome = false;
  rig.spawn([&] { outcome = rig.primary->wait(Lsn{1}, AckLevel::received, rig.in(milliseconds(200))); });
  auto cancelled = rig.primary_side.reactor->spawn("cancelled", [&] {
    cancelled_outcome =
        rig.primary->wait(Lsn{1}, AckLevel::applied, rig.in(seconds(9))).error() == ReactorErrc::cancelled;
  });
  REQUIRE(cancelled);
  rig.turns(2);
  cancelled->cancel();
  rig.run_for(milliseconds(150));
  CHECK(cancelled_outcome);
  CHECK(early.calls == 1);
  CHECK(late.calls == 0);
  CHECK(early.code == make_error_code(ReplicationErrc::outcome_unknown));
  rig.run_for(milliseconds(200));
  CHECK(late.calls == 1);
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error() == ReplicationErrc::outcome_unknown);
  CHECK(rig.primary->stats().outcome_unknown == 3);
  cancelled->detach();
  rig.primary->close("done");
}

TEST_CASE("replication/primary: a lost link leaves waiters to their deadline, a new one still answers them") {
  StreamRig rig;
  REQUIRE(rig.connect());
  rig.settle();
  rig.wire->hold_controls = true;
  std::vector<std::uint64_t> order;
  Noted waiter(order, rig.put("k", "v"), AckLevel::applied, rig.in(seconds(60)));
  rig.primary->add_waiter(waiter);
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{1});
  rig.replica->close("on purpose");
  rig.settle();
  CHECK(rig.primary->replicas() == 0);
  REQUIRE(rig.primary_lost.size() == 1);
  CHECK(waiter.calls == 0);
  REQUIRE(rig.connect());  // it resumes after LSN 1, so it has applied it
  rig.settle();
  CHECK(waiter.calls == 1);
  CHECK(waiter.succeeded);
}

TEST_CASE("replication/primary: acknowledgements that cannot be true close the link") {
  StreamRig rig;
  const auto far = rig.connect_by_hand();
  rig.put("k", "v");
  ControlFrame frame = ack(0, 0);
  SUBCASE("of what was never sent") { frame = ack(2, 0); }
  SUBCASE("applied before it was received") { frame = ack(0, 1); }
  SUBCASE("of an older epoch") { frame.epoch = {2, 9}; }
  SUBCASE("of a newer epoch") { frame.epoch = {4, 0}; }
  rig.turn_primary();
  REQUIRE(far->send_control(frame));
  rig.turn_primary();
  CHECK(rig.primary->replicas() == 0);
  CHECK(rig.primary_lost.size() == 1);
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::received));
  CHECK(rig.primary->stats().links_lost == 1);
}

TEST_CASE("replication/primary: what is appended but not yet sent cannot be acknowledged") {
  StreamRig rig;
  LoopbackOptions narrow;
  narrow.slots = 1;
  const auto far = rig.connect_by_hand(narrow);
  rig.put("a", "v");
  rig.turn_primary();
  rig.put("b", "v");
  rig.turn_primary();  // the only slot is taken
  REQUIRE(far->send_control(ack(2, 2)));
  rig.turn_primary();
  CHECK(rig.primary->replicas() == 0);
}

TEST_CASE("replication/primary: acknowledgements are cumulative, an older one takes nothing back") {
  StreamRig rig;
  const auto far = rig.connect_by_hand();
  for (int i = 0; i < 3; ++i) rig.put("k", "v");
  rig.turn_primary();
  REQUIRE(far->send_control(ack(3, 3)));
  rig.turn_primary();
  REQUIRE(far->send_control(ack(1, 1)));
  rig.turn_primary();
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.primary->reached(Lsn{3}, AckLevel::applied));
  rig.primary->close("done");
}

TEST_CASE("replication/primary: a replica resumes inside the log; behind it or ahead of it is a gap") {
  StreamRig rig(small_log());
  REQUIRE(rig.connect());
  for (int i = 0; i < 5; ++i) rig.put("k" + std::to_string(i), "v");
  rig.settle();
  rig.replica->close("on purpose");
  rig.settle();
  for (int i = 5; i < 9; ++i) rig.put("k" + std::to_string(i), "v");
  REQUIRE(rig.connect());
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{9});
  CHECK(rig.applier.map.size() == 9);
  CHECK(rig.applier.lsns.size() == 9);  // nothing twice
  rig.replica->close("on purpose");
  rig.settle();

  const std::string value(4000, 'v');
  for (int i = 0; i < 40; ++i) rig.put("k", value);
  const Status behind = rig.connect();
  REQUIRE_FALSE(behind);
  CHECK(behind.error() == ReplicationErrc::gap);
  CHECK(rig.wire->closed_by_primary.find("log_bytes") != std::string::npos);
  CHECK(rig.primary->replicas() == 0);

  auto link = std::make_unique<LoopbackLink>(rig.wire, NodeRole::primary, rig.primary_side.clock);
  CHECK(rig.primary->attach(std::move(link), Lsn{1000}).error() == ReplicationErrc::gap);
}

TEST_CASE("replication/primary: a link with batches too small for an entry is refused") {
  StreamRig rig;
  LoopbackOptions options;
  options.batch_bytes_max = 16 * 1024;
  const Status attached = rig.connect(options);
  REQUIRE_FALSE(attached);
  CHECK(attached.error() == ReplicationErrc::bad_length);
}

TEST_CASE("replication/primary: heartbeats keep an idle link up, silence ends it") {
  StreamRig rig;
  REQUIRE(rig.connect());
  rig.run_for(seconds(30));
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.replica->connected());
  const auto heartbeats = rig.wire;

  // The replica stops turning.
  for (int i = 0; i < 299; ++i) {
    rig.advance(milliseconds(10));
    rig.turn_primary();
  }
  CHECK(rig.primary->replicas() == 1);
  for (int i = 0; i < 30; ++i) {
    rig.advance(milliseconds(10));
    rig.turn_primary();
  }
  CHECK(rig.primary->replicas() == 0);
  REQUIRE(rig.primary_lost.size() == 1);
  CHECK(rig.primary_lost[0].find("said nothing for 3000 ms") != std::string::npos);
  rig.settle();
  CHECK_FALSE(rig.replica->connected());
  CHECK(rig.replica_lost.size() == 1);
}

TEST_CASE("replication/primary: a frozen replica holds writers up for link_timeout and no longer") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  REQUIRE(rig.connect(options));
  rig.settle();
  const std::string value(8000, 'v');
  int written = 0;
  rig.spawn([&] {
    for (int i = 0; i < 50; ++i) {
      REQUIRE(rig.primary->wait_for_room(entry_bytes(EntryKind::put, 1, value.size()), rig.in(seconds(60))));
      rig.put("k", value);
      ++written;
    }
  });
  const Instant start = rig.primary_side.clock.now();
  while (written < 50 && rig.primary_side.clock.now() - start < seconds(10)) {
    rig.turn_primary();
    rig.advance(milliseconds(10));
  }
  CHECK(written == 50);
  const Duration took = rig.primary_side.clock.now() - start;
  CHECK(took >= seconds(3));
  CHECK(took <= milliseconds(3300));
  CHECK(rig.primary->replicas() == 0);
  CHECK(rig.primary->stats().log_full_waits >= 1);
}

TEST_CASE("replication/primary: a replica that breathes but takes nothing is dropped too") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  const auto far = rig.connect_by_hand(options);
  rig.put("k", "v");
  for (int i = 0; i < 400 && rig.primary->replicas() > 0; ++i) {
    if (i % 5 == 0) static_cast<void>(far->send_control(ack(0, 0)));
    rig.advance(milliseconds(10));
    rig.turn_primary();
  }
  CHECK(rig.primary->replicas() == 0);
  REQUIRE(rig.primary_lost.size() == 1);
  CHECK(rig.primary_lost[0].find("took nothing for 3000 ms") != std::string::npos);
}

TEST_CASE("replication/primary: a primary that stood still itself does not blame its replica") {
  StreamRig rig;
  LoopbackOptions options;
  options.slots = 1;
  REQUIRE(rig.connect(options));
  rig.put("a", "v");
  rig.turn_primary();
  rig.put("b", "v");
  rig.turn_primary();  // no slot: b waits
  rig.replica_side.clock.advance(seconds(2));
  rig.turns(0);
  rig.turn_replica();
  rig.replica_side.clock.advance(seconds(2));
  rig.primary_side.clock.advance(seconds(60));
  rig.turns(3);
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.replica->applied_lsn() == Lsn{2});
}

TEST_CASE("replication/primary: without replicas nothing waits, however small the log") {
  StreamRig rig(small_log());
  const std::string value(30'000, 'v');
  for (int i = 0; i < 1000; ++i) rig.put("k", value);
  CHECK(rig.primary->last_lsn() == Lsn{1000});
}

TEST_CASE("replication/primary: close says goodbye after what is pending, and answers every waiter") {
  StreamRig rig;
  REQUIRE(rig.connect());
  rig.settle();
  std::vector<std::uint64_t> order;
  Noted waiter(order, rig.put("k", "v"), AckLevel::applied, rig.in(seconds(60)));
  rig.primary->add_waiter(waiter);
  rig.primary->close("maintenance");
  CHECK(waiter.calls == 1);
  CHECK(waiter.code == make_error_code(ReplicationErrc::outcome_unknown));
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{1});
  REQUIRE(rig.replica_lost.size() == 1);
  CHECK(rig.primary_lost.empty());
}

TEST_CASE("replication/primary: who waits for an acknowledgement after close hears at once") {
  StreamRig rig;
  REQUIRE(rig.connect());
  rig.settle();
  const Lsn acknowledged = rig.put("k", "v");
  rig.settle();
  rig.primary->close("maintenance");
  rig.settle();
  const Lsn lsn = rig.put("k", "w");
  std::vector<std::uint64_t> order;
  Noted waiter(order, lsn, AckLevel::applied, rig.in(seconds(60)));
  rig.primary->add_waiter(waiter);
  CHECK(waiter.calls == 1);
  CHECK(waiter.code == make_error_code(ReplicationErrc::outcome_unknown));
  bool answered = false;
  rig.spawn([&] {
    CHECK(rig.primary->wait(acknowledged, AckLevel::applied, rig.in(seconds(60))).has_value());
    const Status status = rig.primary->wait(lsn, AckLevel::received, rig.in(seconds(60)));
    CHECK(status.error() == ReplicationErrc::outcome_unknown);
    answered = true;
  });
  rig.settle();
  CHECK(answered);
  CHECK(rig.primary->stats().outcome_unknown == 2);
}

TEST_CASE("replication/primary: times that make no sense are refused with both") {
  Rig side;
  PrimaryOptions options;
  options.log_bytes = 64 * 1024;
  options.heartbeat = seconds(5);
  const auto primary = Primary::create(*side.reactor, options);
  REQUIRE_FALSE(primary);
  CHECK(primary.error().message().find("5000 ms") != std::string::npos);
  CHECK(primary.error().message().find("3000 ms") != std::string::npos);
}

TEST_CASE("replication/primary: the log keeps what a closed link may still read until it is drained") {
  StreamRig rig(small_log());
  LoopbackOptions options;
  options.completes_on_release = true;
  const auto far = rig.connect_by_hand(options);
  rig.wire->polls_to_drain = 1'000'000;
  const std::string value(6000, 'v');
  while (rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(value))) rig.turn_primary();
  // 1. The replica goes. Expect: it counts no more and is reported at once, but there is no room.
  far->close("gone");
  rig.turn_primary();
  CHECK(rig.primary->replicas() == 0);
  CHECK(rig.primary->stats().replicas == 0);
  CHECK(rig.primary_lost.size() == 1);
  for (int i = 0; i < 5; ++i) rig.turn_primary();
  CHECK(rig.primary->log().begin() == 0);
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(value)).error() ==
        ReplicationErrc::log_full);
  // 2. It is drained. Expect: room, and nothing that is told twice.
  rig.wire->polls_to_drain = 1;
  rig.turn_primary();
  CHECK(rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes(value)));
  CHECK(rig.primary_lost.size() == 1);
}

TEST_CASE("replication/primary: its backlog is what the connected replica furthest behind has not applied") {
  StreamRig rig;
  CHECK(rig.primary->backlog() == 0);
  REQUIRE(rig.connect());
  const auto slow = rig.connect_by_hand();
  for (int i = 0; i < 3; ++i) rig.put("k", "v");
  rig.settle();
  CHECK(rig.replica->applied_lsn() == Lsn{3});
  CHECK(rig.primary->backlog() == 3);
  REQUIRE(slow->send_control(ack(2, 1)));
  rig.turns(2);
  CHECK(rig.primary->backlog() == 2);
  slow->close("gone");
  rig.turns(2);
  CHECK(rig.primary->backlog() == 0);
}
