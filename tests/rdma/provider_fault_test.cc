// What a connection does when the provider misbehaves: posts, completions, receives. What breaks around it
// (events, cuts, deaths) is in ground_fault_test.cc.
#include <array>
#include <cerrno>
#include <string>
#include <vector>

#include "fault_rig.h"
#include "queue_pair.h"

using namespace tidelock;
using namespace tidelock::test;

TEST_CASE("rdma/connection: nothing is posted before our own RTS, whatever the provider would make of it") {
  for (const auto mode :
       {fake::PostBeforeRts::positive_errno, fake::PostBeforeRts::negative_errno,
        fake::PostBeforeRts::dropped, fake::PostBeforeRts::deferred, fake::PostBeforeRts::rxe}) {
    CAPTURE(static_cast<int>(mode));
    FaultRig rig;
    fake::Modes modes;
    modes.post_before_rts = mode;
    fake::set_modes(modes);
    std::uint64_t posts = 0, early = 0;
    fake::set_post_hook([&](ibv_qp* qp) {
      ++posts;
      const ibv_qp_state state = fake::qp_stats(qp->qp_num).state;
      if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) ++early;
    });
    rig.connect();
    // An owner that tries at any time.
    const auto impatient = [&](RdmaConnection* connection) {
      if (connection == nullptr || connection->ready()) return;
      CHECK_FALSE(connection->send_control(kFrame));
      CHECK_FALSE(connection->publish(kHeader, {}));
      connection->flush();
    };
    REQUIRE(rig.run_until([&] {
      impatient(rig.connecting);
      impatient(rig.accepted);
      return rig.both_ready();
    }));
    rig.exchange(10);
    CHECK(posts > 0);
    CHECK(early == 0);
    fake::set_post_hook(nullptr);
  }
}

TEST_CASE(
    "rdma/connection: a post that fails ends the connection at once, of either sign, with bad_wr or not") {
  for (const int error : {ENOMEM, EINVAL, -EINVAL, -ENOMEM, 1}) {
    for (const int bad_index : {0, 1, -1}) {
      CAPTURE(error);
      CAPTURE(bad_index);
      FaultRig rig;
      rig.establish();
      rig.attach();
      rig.publish();
      rig.publish();
      REQUIRE(rig.accepted->send_control(kFrame));
      fake::fail_post_send({1, error, bad_index, FaultRig::passive_number()});
      rig.accepted->flush();
      REQUIRE(rig.accepted->ended());
      CHECK(rig.accepted->error() == RdmaErrc::post_failed);
      CHECK(has(rig.accepted->error(), std::to_string(error)));
      CHECK(has(rig.accepted->error(), "3 requests"));
      // Expect: all that was posted comes back, so no deadline is needed; the peer hears of it
      REQUIRE(rig.run_until([&] { return rig.accepted->torn_down() && rig.connected->torn_down(); }));
      CHECK(rig.connected->error() == RdmaErrc::peer_lost);
      CHECK(rig.accepted->state() == ConnectionState::failed);
    }
  }
}

TEST_CASE("rdma/connection: a hello or an answer that cannot be posted ends the attempt on both sides") {
  for (const std::uint32_t call : {1U, 2U}) {  // the hello, its answer
    CAPTURE(call);
    FaultRig rig;
    fake::fail_post_send({call, -EIO, -1, 0});
    rig.connect();
    if (call == 1) {
      REQUIRE(rig.run_until([&] { return !rig.active_error.empty() && !rig.passive_error.empty(); }));
      CHECK(rig.active_code == make_error_code(RdmaErrc::post_failed));
    } else {
      REQUIRE(rig.run_until([&] { return !rig.active_error.empty() && rig.accepted->ended(); }));
      CHECK(rig.accepted->error() == RdmaErrc::post_failed);
      CHECK(rig.active_code == make_error_code(RdmaErrc::peer_lost));
    }
  }
}

TEST_CASE("rdma/connection: where flush completions are missing, draining ends by its deadline, not before") {
  FaultRig rig;
  rig.establish();
  fake::Modes modes;
  modes.flush_missing = true;
  fake::set_modes("fake1", modes);
  rig.accepted->close("done");
  REQUIRE(rig.run_until([&] { return rig.accepted->torn_down() && rig.connected->ended(); }));
  const Instant from = rig.clock.now();
  CHECK_FALSE(rig.pass_until([&] { return rig.connected->torn_down(); }, milliseconds(490)));
  CHECK(rig.connected->state() == ConnectionState::draining);
  REQUIRE(rig.pass_until([&] { return rig.connected->torn_down(); }, milliseconds(30)));
  CHECK((rig.clock.now() - from).ns >= milliseconds(500).ns);
  CHECK(rig.connected->state() == ConnectionState::closed);
  CHECK(rig.connected->trace().text(rig.clock.now()).find("not all flushed") != std::string::npos);
}

TEST_CASE("rdma/connection: a beacon that cannot be posted leaves draining to its deadline") {
  FaultRig rig;
  rig.establish();
  rig.connected->fail(Error(RdmaErrc::closed, "by the test"));
  fake::fail_post_send({1, ENOMEM, 0, FaultRig::active_number()});
  CHECK_FALSE(rig.pass_until([&] { return rig.connected->torn_down(); }, milliseconds(490)));
  CHECK(rig.pass_until([&] { return rig.connected->torn_down(); }, milliseconds(30)));
}

TEST_CASE("rdma/connection: completions that come late and out of turn change nothing but the time") {
  struct Late {
    std::uint32_t sends, receives;
  };
  for (const Late late : {Late{40, 0}, Late{0, 40}, Late{7, 31}}) {
    CAPTURE(late.sends);
    FaultRig rig;
    fake::Modes modes;
    modes.send_completion_delay_steps = late.sends;
    modes.recv_completion_delay_steps = late.receives;
    fake::set_modes(modes);
    rig.establish();
    rig.exchange(100);
    rig.settle();
    CHECK(rig.accepted->batches_completed() == 100);
    for (int i = 0; i < 3; ++i) rig.publish();
    rig.accepted->close("done");
    CHECK(rig.run_until([&] { return rig.accepted->torn_down() && rig.connected->torn_down(); }));
    // Expect: the goodbye, or, where its completion is slower than rdma_cm, the disconnect; and all that came
    CHECK((rig.connected->error() == RdmaErrc::peer_closed ||
           (late.receives > 0 && rig.connected->error() == RdmaErrc::peer_lost)));
    for (int i = 0; i < 3; ++i) {
      REQUIRE(rig.connected->receive());
      rig.connected->release();
    }
  }
}

TEST_CASE("rdma/connection: where send completions are lost, no log byte is freed and publishing stops") {
  FaultRig rig;
  rig.establish();
  rig.attach();
  rig.settle();
  fake::Modes modes;
  modes.lose_send_completions = ~0U;
  fake::set_modes("fake0", modes);
  std::uint64_t published = 0;
  Status refused;
  for (int i = 0; i < 1000 && refused; ++i) {
    refused = rig.try_publish();
    if (refused) ++published;
    rig.accepted->flush();
    rig.settle(8);
    while (rig.connected->receive()) rig.connected->release();
    rig.connected->flush();
  }
  REQUIRE_FALSE(refused);
  CHECK(refused.error() == RdmaErrc::no_credit);
  CHECK(published > 0);
  CHECK(published <= 64);
  CHECK(rig.accepted->batches_completed() == 0);
  CHECK(rig.connected->traffic().batches_in == published);
  CHECK(rig.accepted->ready());  // nothing says that the device is at fault
  // Expect: the owner's time-out closes it; the goodbye arrives, its completion does not
  rig.accepted->close("no progress");
  CHECK_FALSE(rig.pass_until([&] { return rig.accepted->torn_down(); }, milliseconds(490)));
  CHECK(rig.connected->error() == RdmaErrc::peer_closed);
  CHECK(rig.pass_until([&] { return rig.accepted->torn_down(); }, milliseconds(200)));
}

TEST_CASE("rdma/connection: after one lost send completion less is freed, never more") {
  FaultRig rig;
  rig.establish();
  rig.attach();
  rig.settle();
  fake::Modes modes;
  modes.lose_send_completions = 1;
  fake::set_modes("fake0", modes);
  for (std::uint64_t i = 1; i <= 20; ++i) {
    rig.publish();
    rig.accepted->flush();
    rig.settle(20);
    CHECK(rig.accepted->batches_completed() == i - 1);
    REQUIRE(rig.connected->receive());
    rig.connected->release();
    rig.connected->flush();
  }
}

TEST_CASE("rdma/connection: a receiver that is not ready is waited for, or reported where retries end") {
  for (const std::uint8_t retries : {std::uint8_t{7}, std::uint8_t{2}}) {
    CAPTURE(static_cast<int>(retries));
    RdmaOptions options;
    options.rnr_retry = retries;
    FaultRig rig(options, options);
    rig.establish();
    rig.attach();
    fake::Modes modes;
    modes.rnr_attempts = 5;
    fake::set_modes("fake1", modes);
    rig.publish();
    rig.accepted->flush();
    const std::uint32_t number = FaultRig::passive_number();
    if (retries == 7) {
      REQUIRE(rig.run_until([&] { return rig.connected->batch_waiting(); }));
      CHECK(fake::qp_stats(number).rnr_naks == 5);
      CHECK(rig.both_ready());
    } else {
      REQUIRE(rig.run_until([&] { return rig.accepted->ended(); }));
      CHECK(rig.accepted->error() == RdmaErrc::completion_failed);
      CHECK(has(rig.accepted->error(), "no receive posted"));
      CHECK(rig.run_until([&] { return rig.connected->torn_down() && rig.accepted->torn_down(); }));
    }
  }
}

TEST_CASE("rdma/connection: credits leave behind the receives that they stand for, but for the spare ones") {
  constexpr int kBatches = 20;
  FaultRig rig;
  rig.establish();
  rig.attach();
  const std::uint32_t number = FaultRig::active_number();
  std::vector<std::uint32_t> receives;  // that stood at each post of sends
  fake::set_post_hook([&](const ibv_qp* pair) {
    if (pair->qp_num == number) receives.push_back(fake::qp_stats(number).rq_in_use);
  });
  for (int i = 0; i < kBatches; ++i) rig.publish();
  rig.accepted->flush();
  int taken = 0;
  REQUIRE(rig.run_until([&] {
    for (; rig.connected->receive(); ++taken) rig.connected->release();
    return taken == kBatches;
  }));
  REQUIRE(rig.connected->send_control(kFrame));
  rig.connected->flush();
  REQUIRE(receives.size() == 1);
  constexpr QueuePairShape kShape;
  CHECK(receives.back() > std::uint32_t{kShape.data_slots} + kShape.control_slots);  // and one for a close
}

TEST_CASE("rdma/connection: by its credits alone no message meets a receiver without a receive") {
  FaultRig rig;
  rig.establish();
  rig.exchange(300);
  for (const char* device : {"fake0", "fake1"}) {
    for (const std::uint32_t number : fake::qp_numbers(device)) CHECK(fake::qp_stats(number).rnr_naks == 0);
  }
}

TEST_CASE(
    "rdma/connection: late completions of a dead queue pair are dropped, though its number lives again") {
  RdmaOptions wide;  // more receives than a turn polls, so that some are polled after the slot is free
  wide.data_slots = 256;
  wide.control_slots = 256;
  FaultRig rig(wide, wide);
  fake::Modes modes;
  modes.reuse_qp_numbers = true;
  modes.cqes_outlive_qp = true;
  fake::set_modes(modes);
  rig.establish();
  const std::uint32_t number = FaultRig::active_number();
  const auto stale = [&] { return rig.active.core().counters().completions_stale.load(); };
  RdmaConnection* const old_passive = std::exchange(rig.accepted, nullptr);
  rig.connected->fail(Error(RdmaErrc::closed, "by the test"));
  rig.connected->abandon();
  rig.connected = rig.connecting = nullptr;
  // The wire stands still until draining is given up; then everything is flushed, and the queue pair ends.
  fake::hold();
  REQUIRE(rig.active_calls.step());
  for (int i = 0; i < 60; ++i) {
    rig.active.turn();
    rig.clock.advance(milliseconds(10));
  }
  REQUIRE(rig.active_calls.waiting() == 1);
  CHECK(fake::qp_stats(number).state == IBV_QPS_ERR);
  fake::step();
  REQUIRE(rig.active_calls.step());
  CHECK(fake::qp_stats(number).state == IBV_QPS_UNKNOWN);
  fake::go();
  auto terms = rig.default_active();
  terms.request.generation = {2};
  rig.active.turn();
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return rig.both_ready() && old_passive->torn_down(); }));
  old_passive->abandon();
  CHECK(stale() > 0);
  CHECK((FaultRig::active_number() == number || FaultRig::passive_number() == number));
  rig.exchange(300);
}

TEST_CASE("rdma/connection: a device that drops empty sends drops none of ours") {
  FaultRig rig;
  fake::Modes modes;
  modes.drop_zero_byte_sends = true;
  fake::set_modes(modes);
  rig.establish();
  rig.exchange(200);
  rig.settle();
  const auto out = rig.accepted->traffic(), in = rig.connected->traffic();
  CHECK(in.messages_in == out.messages_out);
  CHECK(out.messages_in == in.messages_out);
  CHECK(in.batches_in == out.batches_out);
  rig.connected->close("done");
  REQUIRE(rig.run_until([&] { return rig.accepted->ended(); }));
  CHECK(rig.accepted->error() == RdmaErrc::peer_closed);
}
