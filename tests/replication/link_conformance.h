/// What every Link must do, whatever carries it. A test of a link makes a LinkFixture for it and calls
/// check_link_conformance() from a test case.
/// Thread:   one; both ends are driven by the caller
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/base/bytes.h>
#include <tidelock/reactor/random.h>
#include <tidelock/replication/errc.h>
#include <tidelock/replication/link.h>

namespace tidelock::testing {

/// A connected pair, ready for traffic, with a ring as small as the link allows (so that it wraps often).
class LinkFixture {
 public:
  virtual ~LinkFixture() = default;
  virtual Link& primary() = 0;
  virtual Link& replica() = 0;
  [[nodiscard]] virtual FrameContext context() const = 0;
  /// Upper bound of what the ring holds.
  [[nodiscard]] virtual std::uint64_t ring_bytes() const = 0;
  /// Ends a turn of both ends; afterwards all that was flushed has arrived.
  virtual void pump() {
    primary().flush();
    replica().flush();
    primary().poll(64);
    replica().poll(64);
  }
};

/// A device completes in a time of its own, and what was flushed may still be on its way: true as soon as it
/// holds, false if it never does.
inline bool comes_true(const std::function<bool()>& holds) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!holds()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::yield();
  }
  return true;
}
/// Once it has taken in the completions of what it sent itself, it has nothing to do.
inline bool comes_to_rest(Link& link) {
  return comes_true([&link] {
    if (link.has_work()) link.poll(64);
    return !link.has_work();
  });
}

using LinkFactory = std::function<std::unique_ptr<LinkFixture>()>;

/// Content that depends on the sequence and on the place, so that a shifted or stale byte shows.
inline void fill_payload(std::uint64_t sequence, MutableBytes into) {
  std::uint64_t word = sequence * 0x9e37'79b9'7f4a'7c15ULL;
  for (std::size_t i = 0; i < into.size(); i += sizeof word, word += 0x0123'4567'89ab'cdefULL) {
    store(into.data() + i, word);
  }
}
inline bool payload_intact(std::uint64_t sequence, Bytes payload) {
  std::uint64_t word = sequence * 0x9e37'79b9'7f4a'7c15ULL;
  for (std::size_t i = 0; i < payload.size(); i += sizeof word, word += 0x0123'4567'89ab'cdefULL) {
    if (load<std::uint64_t>(payload.data() + i) != word) return false;
  }
  return true;
}

/// The smallest payload that a frame header may claim: one entry without key and value.
inline constexpr std::uint64_t kPayloadMin = kEntryHeaderBytes;

/// Publishes batches 1, 2, 3, ... whose LSN is their sequence, and takes them back.
class LinkTraffic {
 public:
  explicit LinkTraffic(LinkFixture& fixture) : fixture_(fixture), log_(kLogRings * fixture.ring_bytes()) {
    REQUIRE(fixture.primary().attach(log_));
  }

  Status publish(std::uint64_t payload_bytes, int pieces = 1) {
    const std::uint64_t sequence = published_ + 1;
    if (!log_room(payload_bytes)) return ReplicationErrc::link_full;
    const MutableBytes payload(log_.data() + log_at_, payload_bytes);
    fill_payload(sequence, payload);
    std::vector<Bytes> ranges;
    const std::size_t step = payload_bytes / static_cast<std::size_t>(pieces) + 1;
    for (std::size_t at = 0; at < payload.size(); at += step) {
      ranges.push_back(payload.subspan(at, std::min(step, payload.size() - at)));
      ranges.push_back({});  // an empty range is legal and means nothing
    }
    Status status = fixture_.primary().publish(header(sequence), ranges);
    if (status) {
      ++published_;
      log_at_ += payload_bytes;
      in_flight_.push_back(payload_bytes);
      in_flight_bytes_ += payload_bytes;
    }
    return status;
  }
  /// Takes the next batch and checks all of it. False: nothing there.
  bool receive() {
    auto batch = fixture_.replica().receive();
    if (!batch) {
      CHECK(batch.error() == ReplicationErrc::link_empty);
      return false;
    }
    ++received_;
    CHECK(batch->header.sequence == received_);
    CHECK(batch->header.first_lsn == Lsn{received_});
    CHECK(batch->header.commit_lsn == Lsn{received_ / 2});
    CHECK(batch->header.generation == fixture_.context().generation);
    CHECK(payload_intact(received_, batch->payload));
    held_.push_back(*batch);
    return true;
  }
  /// Gives the oldest received batch back. It must have stayed as it was.
  void release() {
    REQUIRE(!held_.empty());
    CHECK(payload_intact(held_.front().header.sequence, held_.front().payload));
    held_.pop_front();
    fixture_.replica().release();
  }
  void receive_and_release_all() {
    while (receive()) release();
  }
  [[nodiscard]] std::uint64_t published() const { return published_; }
  [[nodiscard]] std::uint64_t received() const { return received_; }
  [[nodiscard]] std::size_t held() const { return held_.size(); }

 private:
  static constexpr std::uint64_t kLogRings = 8;

  /// A link may read the log until it has counted the batch as completed, so nothing is overwritten before.
  bool log_room(std::uint64_t payload_bytes) {
    while (published_ - in_flight_.size() < fixture_.primary().batches_completed()) {
      in_flight_bytes_ -= in_flight_.front();
      in_flight_.pop_front();
    }
    if (log_at_ + payload_bytes > log_.size()) log_at_ = 0;
    return in_flight_bytes_ + payload_bytes <= log_.size() / 2 - fixture_.ring_bytes();
  }

  [[nodiscard]] FrameHeader header(std::uint64_t sequence) const {
    FrameHeader header;
    header.history = fixture_.context().history;
    header.shard = fixture_.context().shard;
    header.epoch = {3, 1};
    header.entries = 1;
    header.first_lsn = header.last_lsn = Lsn{sequence};
    header.commit_lsn = Lsn{sequence / 2};
    return header;
  }

  LinkFixture& fixture_;
  std::vector<std::byte> log_;
  std::uint64_t log_at_ = 0;
  std::deque<std::uint64_t> in_flight_;  ///< sizes of the batches that the link has not completed
  std::uint64_t in_flight_bytes_ = 0;
  std::deque<Batch> held_;
  std::uint64_t published_ = 0;
  std::uint64_t received_ = 0;
};

inline ControlFrame control_frame(const LinkFixture& fixture, std::uint64_t value) {
  ControlFrame frame;
  frame.history = fixture.context().history;
  frame.shard = fixture.context().shard;
  frame.received_lsn = frame.applied_lsn = frame.commit_lsn = Lsn{value};
  return frame;
}

/// The last control frame that is there, 0 if none is. Values must ascend.
inline std::uint64_t newest_control(Link& link) {
  std::uint64_t newest = 0;
  for (;;) {
    auto frame = link.receive_control();
    if (!frame) {
      CHECK(frame.error() == ReplicationErrc::link_empty);
      return newest;
    }
    CHECK(frame->applied_lsn.value > newest);
    newest = frame->applied_lsn.value;
  }
}

inline std::uint64_t random_payload(Random& random, std::uint64_t limit) {
  return kPayloadMin + random.below((limit - kPayloadMin) / kEntryAlignment + 1) * kEntryAlignment;
}

// ---- order, wrap and content ----------------------------------------------------------------------------

inline void check_link_order(const LinkFactory& make) {
  const auto fixture = make();
  LinkTraffic traffic(*fixture);
  const std::uint64_t largest = fixture->primary().batch_bytes_max();

  SUBCASE("nothing is there before something is sent") {
    CHECK_FALSE(traffic.receive());
    CHECK(newest_control(fixture->primary()) == 0);
    CHECK(newest_control(fixture->replica()) == 0);
    CHECK(comes_to_rest(fixture->replica()));
    CHECK(comes_to_rest(fixture->primary()));
  }
  SUBCASE("batches arrive in order and whole, gathered from any number of ranges") {
    for (int i = 1; i <= 20; ++i) REQUIRE(traffic.publish(static_cast<std::uint64_t>(i) * 40, i));
    fixture->pump();
    CHECK(fixture->replica().has_work());
    traffic.receive_and_release_all();
    CHECK(traffic.received() == 20);
    fixture->pump();
    CHECK(comes_to_rest(fixture->replica()));
    CHECK(comes_true([&] {
      fixture->primary().poll(64);
      return fixture->primary().batches_completed() == 20;
    }));
  }
  SUBCASE("many laps of random sizes keep order and content") {
    Random random(7);
    std::uint64_t bytes = 0;
    while (bytes < 40 * fixture->ring_bytes()) {
      const std::uint64_t limit = random.below(4) == 0 ? largest : 2048;
      const std::uint64_t size = random_payload(random, limit);
      const Status status = traffic.publish(size, 3);
      if (status) bytes += size;
      if (!status) REQUIRE(status.error() == ReplicationErrc::link_full);
      if (!status || random.below(3) == 0) {
        fixture->pump();
        traffic.receive_and_release_all();
        fixture->pump();
      }
    }
    fixture->pump();
    traffic.receive_and_release_all();
    CHECK(traffic.received() == traffic.published());
  }
  SUBCASE("the largest batch fits wherever the ring stands, and one entry unit more is refused") {
    Random random(11);
    for (int i = 0; i < 30; ++i) {
      REQUIRE(traffic.publish(random_payload(random, 4096)));
      REQUIRE(traffic.publish(largest, 2));
      fixture->pump();
      traffic.receive_and_release_all();
      fixture->pump();
    }
    CHECK(traffic.received() == traffic.published());
    const Status status = traffic.publish(largest + kEntryAlignment);
    REQUIRE_FALSE(status);
    CHECK(status.error() == ReplicationErrc::too_large);
    CHECK(fixture->primary().state() == LinkState::ready);
  }
}

// ---- flow control ---------------------------------------------------------------------------------------

/// Publishes until the link is full. Returns how many batches it took.
inline std::uint64_t fill_link(LinkFixture& fixture, LinkTraffic& traffic, std::uint64_t payload_bytes) {
  const std::uint64_t before = traffic.published();
  for (;;) {
    const Status status = traffic.publish(payload_bytes);
    if (!status) {
      CHECK(status.error() == ReplicationErrc::link_full);
      fixture.pump();
      return traffic.published() - before;
    }
    REQUIRE(traffic.published() * payload_bytes <= 4 * fixture.ring_bytes());  // it must fill up
  }
}

inline void check_link_flow_control(const LinkFactory& make) {
  const auto fixture = make();
  LinkTraffic traffic(*fixture);

  SUBCASE("a full ring refuses, and takes more once batches are released") {
    CHECK(fill_link(*fixture, traffic, 8000) > 2);
    CHECK(fixture->primary().counters().full.load() >= 1);
    CHECK(comes_to_rest(fixture->primary()));
    // Expect: receiving alone returns nothing
    while (traffic.receive()) {
    }
    fixture->pump();
    CHECK_FALSE(traffic.publish(8000));
    // Expect: releasing does, and the refused side is told
    while (traffic.held() > 0) traffic.release();
    fixture->replica().flush();
    CHECK(comes_true([&] { return fixture->primary().has_work() && fixture->primary().poll(64) > 0; }));
    CHECK(traffic.publish(8000));
    fixture->pump();
    traffic.receive_and_release_all();
    CHECK(traffic.received() == traffic.published());
  }
  SUBCASE("a slow receiver's batches stay as they are until it releases them") {
    Random random(5);
    while (traffic.published() < 4000) {
      for (int i = 0; i < 8; ++i) static_cast<void>(traffic.publish(random_payload(random, 4096), 2));
      fixture->pump();
      static_cast<void>(traffic.receive());
      if (traffic.held() > 6) {
        traffic.release();
        traffic.release();
      }
    }
    fixture->pump();
    while (traffic.receive()) {
    }
    while (traffic.held() > 0) traffic.release();
    CHECK(traffic.received() == traffic.published());
  }
  SUBCASE("control frames pass both ways while the data is out of credit") {
    fill_link(*fixture, traffic, 8000);
    for (std::uint64_t i = 1; i <= 100; ++i) {
      REQUIRE(fixture->primary().send_control(control_frame(*fixture, i)));
      REQUIRE(fixture->replica().send_control(control_frame(*fixture, i)));
      fixture->pump();
      CHECK(newest_control(fixture->primary()) == i);
      CHECK(newest_control(fixture->replica()) == i);
      fixture->pump();
    }
    CHECK_FALSE(traffic.publish(8000));
  }
  SUBCASE("a full control lane keeps the newest frame and sends it later") {
    for (std::uint64_t i = 1; i <= 1000; ++i) {
      REQUIRE(fixture->replica().send_control(control_frame(*fixture, i)));
      fixture->pump();
    }
    std::uint64_t newest = newest_control(fixture->primary());
    CHECK(newest > 0);
    fixture->pump();
    fixture->pump();
    CHECK((newest == 1000 || newest_control(fixture->primary()) == 1000));
    // Expect: the lane goes on
    REQUIRE(fixture->replica().send_control(control_frame(*fixture, 1001)));
    fixture->pump();
    CHECK(newest_control(fixture->primary()) == 1001);
  }
}

// ---- close ----------------------------------------------------------------------------------------------

inline void check_link_close(const LinkFactory& make) {
  const auto fixture = make();
  LinkTraffic traffic(*fixture);
  Link& primary = fixture->primary();
  Link& replica = fixture->replica();
  for (int i = 0; i < 3; ++i) REQUIRE(traffic.publish(800));

  SUBCASE("a close by the primary is seen by the replica after what was published") {
    primary.close("shutting down");
    fixture->pump();
    CHECK(primary.state() == LinkState::closed);
    CHECK(primary.close_reason() == "shutting down");
    CHECK(traffic.publish(800).error() == ReplicationErrc::link_closed);
    for (int i = 0; i < 3; ++i) CHECK(traffic.receive());
    CHECK(replica.has_work());
    const auto batch = replica.receive();
    REQUIRE_FALSE(batch);
    CHECK(batch.error() == ReplicationErrc::link_closed);
    CHECK(replica.state() == LinkState::closed);
    CHECK_FALSE(replica.close_reason().empty());
    // Expect: what was received stays readable until it is released
    while (traffic.held() > 0) traffic.release();
  }
  SUBCASE("a close by the replica is seen by the primary after the replica's acks") {
    REQUIRE(replica.send_control(control_frame(*fixture, 3)));
    replica.close("leaving");
    fixture->pump();
    const auto ack = primary.receive_control();
    REQUIRE(ack);
    CHECK(ack->applied_lsn == Lsn{3});
    const auto nothing = primary.receive_control();
    REQUIRE_FALSE(nothing);
    CHECK(nothing.error() == ReplicationErrc::link_closed);
    CHECK(primary.state() == LinkState::closed);
    CHECK(traffic.publish(800).error() == ReplicationErrc::link_closed);
    CHECK(primary.send_control(control_frame(*fixture, 4)).error() == ReplicationErrc::link_closed);
  }
  SUBCASE("an idle end learns of the close by polling alone, and then rests") {
    replica.close("leaving");
    fixture->pump();
    primary.poll(64);
    CHECK(primary.state() == LinkState::closed);
    primary.poll(64);
    CHECK(comes_to_rest(primary));
    CHECK(comes_to_rest(replica));
  }
  SUBCASE("the first reason stays, and a link that this side closed gives nothing more") {
    fixture->pump();
    replica.close("first");
    replica.close("second");
    CHECK(replica.close_reason() == "first");
    CHECK(replica.receive().error() == ReplicationErrc::link_closed);
    CHECK(replica.receive_control().error() == ReplicationErrc::link_closed);
    replica.flush();
    replica.poll(64);
    CHECK(replica.state() == LinkState::closed);
  }
}

inline void check_link_conformance(const LinkFactory& make) {
  SUBCASE("order") { check_link_order(make); }
  SUBCASE("flow control") { check_link_flow_control(make); }
  SUBCASE("close") { check_link_close(make); }
}

}  // namespace tidelock::testing
