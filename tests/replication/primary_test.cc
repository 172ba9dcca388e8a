#include <algorithm>
#include <optional>
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

ControlFrame ack(std::uint64_t received, std::uint64_t applied) { return acknowledgement(received, applied); }

PrimaryOptions with_c(std::optional<std::uint32_t> c) {
  PrimaryOptions options = StreamRig::one_mebibyte();
  options.c = c;
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
  SUBCASE("with what only a primary says") { frame.lead = true; }
  SUBCASE("with an echo, although nothing was stamped") { frame.set_echo(1); }
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
  CHECK(rig.primary->attach(std::move(link), kReplicaNode, Lsn{1000}).error() == ReplicationErrc::gap);
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
  const Lsn lsn = rig.put("k", "w");
  rig.primary->close("maintenance");
  rig.settle();
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

TEST_CASE(
    "replication/primary: what a hello says of a replica counts for nothing, what it says itself does") {
  StreamRig rig;
  for (int i = 0; i < 3; ++i) rig.put("k", "v");
  const auto far = rig.connect_by_hand({}, Lsn{2});
  rig.turns(3);
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::received));
  CHECK(rig.primary->commit_lsn() == Lsn{0});
  CHECK(rig.primary->backlog() == 1);
  REQUIRE(far->send_control(ack(2, 2)));
  rig.turns(1);
  CHECK(rig.primary->reached(Lsn{2}, AckLevel::applied));
  CHECK(rig.primary->commit_lsn() == Lsn{2});
}

TEST_CASE("replication/primary: a replica that resumes is counted in the first turn, without a new write") {
  StreamRig rig(with_c(1));
  REQUIRE(rig.connect());
  for (int i = 0; i < 3; ++i) rig.put("k", "v");
  rig.turn_primary();
  rig.turn_replica();  // it acknowledges, and the link is cut before that arrives
  rig.wire->hold_controls = true;
  rig.near->close("cut");
  rig.turns(2);
  CHECK(rig.primary->commit_lsn() == Lsn{0});
  REQUIRE(rig.connect());
  rig.turns(2);
  CHECK(rig.primary->commit_lsn() == Lsn{3});
}

TEST_CASE("replication/primary: one node that is attached twice counts once") {
  StreamRig rig;
  const auto first = rig.connect_by_hand({}, {}, 7);
  const auto second = rig.connect_by_hand({}, {}, 7);
  const auto other = rig.connect_by_hand({}, {}, 8);
  CHECK(rig.primary->replicas() == 3);
  CHECK(rig.primary->nodes() == 2);
  std::vector<std::uint64_t> order;
  Noted two(order, rig.put("k", "v"), AckLevel::applied, rig.in(seconds(60)));
  two.replicas = 2;
  rig.primary->add_waiter(two);
  rig.turns(1);
  REQUIRE(first->send_control(ack(1, 1)));
  REQUIRE(second->send_control(ack(1, 1)));
  rig.turns(2);
  CHECK(two.calls == 0);
  CHECK(rig.primary->reached(Lsn{1}, AckLevel::applied, 1));
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::applied, 2));
  REQUIRE(other->send_control(ack(1, 1)));
  rig.turns(1);
  CHECK(two.succeeded);
  first->close("gone");
  rig.turns(1);
  CHECK(rig.primary->nodes() == 2);
  second->close("gone");
  rig.turns(1);
  CHECK(rig.primary->nodes() == 1);
}

TEST_CASE("replication/primary: with c a node that is attached is busy until its old link is gone") {
  StreamRig rig(with_c(1));
  REQUIRE(rig.connect());
  rig.settle();
  CHECK(rig.primary->attached(kReplicaNode));
  auto again =
      std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{99}, ShardId{}}, LoopbackOptions{});
  const auto attach = [&] {
    return rig.primary->attach(
        std::make_unique<LoopbackLink>(again, NodeRole::primary, rig.primary_side.clock), kReplicaNode, {});
  };
  const Status refused = attach();
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == ReplicationErrc::peer_busy);
  CHECK(again->closed_by_primary.find("node 2") != std::string::npos);
  CHECK(rig.primary->replicas() == 1);
  CHECK(rig.replica->connected());
  rig.replica->close("on purpose");
  rig.settle();
  CHECK_FALSE(rig.primary->attached(kReplicaNode));
  again =
      std::make_shared<LoopbackWire>(FrameContext{kHistory, Generation{100}, ShardId{}}, LoopbackOptions{});
  CHECK(attach());
}

TEST_CASE("replication/primary: the commit LSN is the c-th greatest that was applied, and never falls") {
  StreamRig rig(with_c(2));
  const auto a = rig.connect_by_hand();
  const auto b = rig.connect_by_hand();
  const auto c = rig.connect_by_hand();
  for (int i = 0; i < 5; ++i) rig.put("k", "v");
  rig.turns(1);
  CHECK(rig.primary->commit_lsn() == Lsn{0});
  REQUIRE(a->send_control(ack(5, 5)));
  rig.turns(1);
  CHECK(rig.primary->commit_lsn() == Lsn{0});
  REQUIRE(b->send_control(ack(5, 3)));
  REQUIRE(c->send_control(ack(1, 1)));
  rig.turns(1);
  CHECK(rig.primary->commit_lsn() == Lsn{3});
  CHECK(rig.primary->stats().commit_lsn == 3);
  CHECK(rig.primary->stats().applied_lsn == 5);
  // Every replica hears of it in that turn.
  for (const auto* link : {a.get(), b.get(), c.get()}) {
    const auto control = const_cast<LoopbackLink*>(link)->receive_control();
    REQUIRE(control);
    CHECK(control->commit_lsn == Lsn{3});
  }
  // The one that is ahead goes. Expect: what was committed stays so, and only two that are left commit more.
  a->close("gone");
  rig.turns(1);
  CHECK(rig.primary->commit_lsn() == Lsn{3});
  REQUIRE(b->send_control(ack(5, 5)));
  rig.turns(1);
  CHECK(rig.primary->commit_lsn() == Lsn{3});
  REQUIRE(c->send_control(ack(5, 4)));
  rig.turns(1);
  CHECK(rig.primary->commit_lsn() == Lsn{4});
}

TEST_CASE("replication/primary: with c = 0 what is appended is committed, and nothing is refused") {
  StreamRig rig(with_c(0));
  rig.put("k", "v");
  CHECK(rig.primary->commit_lsn() == Lsn{1});
  const auto far = rig.connect_by_hand();
  rig.put("k", "v");
  rig.turns(1);
  const auto batch = far->receive();
  REQUIRE(batch);
  CHECK(batch->header.commit_lsn == Lsn{2});
  CHECK(rig.primary->commit_lsn() == Lsn{2});
  // Who wants to know what a replica has still waits for one.
  CHECK(rig.primary->replicas_needed() == 1);
  CHECK_FALSE(rig.primary->reached(Lsn{1}, AckLevel::applied));
}

TEST_CASE("replication/primary: a write waits for as many replicas as it asks for, c if it does not say") {
  StreamRig rig(with_c(2));
  std::vector<std::unique_ptr<LoopbackLink>> links;
  for (int i = 0; i < 3; ++i) links.push_back(rig.connect_by_hand());
  const Lsn lsn = rig.put("k", "v");
  std::vector<std::uint64_t> order;
  std::vector<std::unique_ptr<Noted>> received;
  std::vector<std::unique_ptr<Noted>> applied;
  for (std::uint32_t replicas = 0; replicas <= 3; ++replicas) {
    for (const AckLevel level : {AckLevel::received, AckLevel::applied}) {
      auto& waiters = level == AckLevel::received ? received : applied;
      waiters.push_back(std::make_unique<Noted>(order, lsn, level, rig.in(seconds(60))));
      waiters.back()->replicas = replicas;
      rig.primary->add_waiter(*waiters.back());
    }
  }
  int woken = 0;
  rig.spawn([&] {
    CHECK(rig.primary->wait(lsn, AckLevel::applied, rig.in(seconds(60)), 3));
    woken = 3;
  });
  rig.turns(1);
  const auto reached = [](const std::vector<std::unique_ptr<Noted>>& waiters) {
    std::vector<std::uint32_t> done;
    for (const auto& waiter : waiters) {
      if (waiter->succeeded) done.push_back(waiter->replicas);
    }
    return done;
  };
  using Counts = std::vector<std::uint32_t>;
  // 1. One has it. Expect: who asked for one goes on, at its level.
  REQUIRE(links[0]->send_control(ack(1, 1)));
  rig.turns(1);
  CHECK(reached(received) == Counts{1});
  CHECK(reached(applied) == Counts{1});
  // 2. A second one has checked it. Expect: c are two.
  REQUIRE(links[1]->send_control(ack(1, 0)));
  rig.turns(1);
  CHECK(reached(received) == Counts{0, 1, 2});
  CHECK(reached(applied) == Counts{1});
  // 3. The third has applied it. Expect: two have, three have received it.
  REQUIRE(links[2]->send_control(ack(1, 1)));
  rig.turns(1);
  CHECK(reached(received) == Counts{0, 1, 2, 3});
  CHECK(reached(applied) == Counts{0, 1, 2});
  CHECK(woken == 0);
  // 4. All have.
  REQUIRE(links[1]->send_control(ack(1, 1)));
  rig.turns(2);
  CHECK(reached(applied) == Counts{0, 1, 2, 3});
  CHECK(woken == 3);
  // 5. Who comes later for a number that nobody has asked for yet.
  CHECK_FALSE(rig.primary->reached(lsn, AckLevel::applied, 4));
  Noted late(order, lsn, AckLevel::applied, rig.in(milliseconds(10)));
  late.replicas = 4;
  rig.primary->add_waiter(late);
  CHECK(late.calls == 0);
  rig.run_for(milliseconds(50));
  CHECK(late.code == make_error_code(ReplicationErrc::outcome_unknown));
}

TEST_CASE("replication/primary: once nobody waits for many replicas any more turns cost what they did") {
  struct Counting final : AckPolicy {
    [[nodiscard]] Lsn wakes_to(Lsn reached) const override {
      ++looks;
      return reached;
    }
    mutable int looks = 0;
  } counting;
  PrimaryOptions options = small_log();
  options.policy = &counting;
  StreamRig rig(options);
  const auto far = rig.connect_by_hand();
  std::vector<std::uint64_t> order;
  const auto looks_of_a_turn = [&] {
    const Lsn lsn = rig.put("k", "v");
    Noted one(order, lsn, AckLevel::applied, rig.in(seconds(60)));
    rig.primary->add_waiter(one);
    rig.turn_primary();
    counting.looks = 0;
    REQUIRE(far->send_control(ack(lsn.value, lsn.value)));
    rig.turn_primary();
    CHECK(one.succeeded);
    return counting.looks;
  };
  const int before = looks_of_a_turn();
  Noted many(order, rig.primary->last_lsn(), AckLevel::applied, rig.in(milliseconds(10)));
  many.replicas = kAckReplicasMax;
  rig.primary->add_waiter(many);
  CHECK(looks_of_a_turn() <= before + 2);  // one more level, and none of those between
  rig.run_for(milliseconds(50));
  CHECK(many.calls == 1);
  CHECK(looks_of_a_turn() == before);
}

TEST_CASE("replication/primary: fewer than c are refused, whatever is written, and nothing is") {
  StreamRig rig(with_c(2));
  const auto refused = [&] {
    const auto put = rig.primary->try_append(EntryKind::put, as_bytes("k"), as_bytes("v"));
    REQUIRE_FALSE(put);
    CHECK(put.error() == ReplicationErrc::no_replica);
    int ended = 0;
    rig.spawn([&] {
      CHECK(rig.primary->wait_for_room(100, rig.in(seconds(60))).error() == ReplicationErrc::no_replica);
      const std::string value(200'000, 'v');
      CHECK(rig.primary->append_fragments(as_bytes("k"), as_bytes(value), rig.in(seconds(60))).error() ==
            ReplicationErrc::no_replica);
      ++ended;
    });
    rig.turns(2);
    CHECK(ended == 1);
    return put.error().message();
  };
  CHECK(refused().find("0 of the 2") != std::string::npos);
  const auto a = rig.connect_by_hand();
  CHECK(refused().find("1 of the 2") != std::string::npos);
  CHECK(rig.primary->last_lsn() == Lsn{0});
  const auto b = rig.connect_by_hand();
  rig.put("k", "v");
  b->close("gone");
  rig.turns(1);
  refused();
  CHECK(rig.primary->last_lsn() == Lsn{1});
  a->close("gone");
}

TEST_CASE("replication/primary: a replica is told of commits that it has, not of each one beyond") {
  StreamRig rig(with_c(1));
  const auto fast = rig.connect_by_hand();
  LoopbackOptions narrow;
  narrow.slots = 1;
  const auto slow = rig.connect_by_hand(narrow);
  const auto frames_to_slow = [&] {
    std::uint64_t frames = 0;
    rig.primary->each_link([&](const Link& link) { frames = link.counters().control_out; });
    return frames;
  };
  const std::uint64_t before = frames_to_slow();
  for (std::uint64_t lsn = 1; lsn <= 10; ++lsn) {
    rig.put("k", "v");
    rig.turns(1);
    REQUIRE(fast->receive());
    fast->release();
    REQUIRE(fast->send_control(ack(lsn, lsn)));
    rig.turns(1);
    CHECK(rig.primary->commit_lsn() == Lsn{lsn});
  }
  // It has the first; the others lie before the commit LSN that their batch will bring.
  CHECK(frames_to_slow() == before + 1);
  REQUIRE(slow->receive());
  slow->release();
  rig.turns(2);
  const auto batch = slow->receive();
  REQUIRE(batch);
  CHECK(batch->header.last_lsn == Lsn{10});
  CHECK(batch->header.commit_lsn == Lsn{10});
}

TEST_CASE("replication/primary: more replicas than can be counted are no c") {
  Rig side;
  PrimaryOptions options = small_log(kAckReplicasMax + 1);
  const auto primary = Primary::create(*side.reactor, options);
  REQUIRE_FALSE(primary);
  CHECK(primary.error().message().find("0 to 64") != std::string::npos);
}
