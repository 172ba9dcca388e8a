// What a verbs link makes of bytes that are not what was sent: a frame's header has a CRC that the link
// checks, each entry one that its reader checks.
#include <array>
#include <string>
#include <vector>

#include <tidelock/replication/errc.h>
#include <tidelock/replication/wire.h>

#include "fault_rig.h"
#include "link_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

/// A pair of links whose batches are real entries.
class Links {
 public:
  explicit Links(std::size_t value_bytes) : value_(value_bytes, std::byte{9}) {
    entry_bytes_ = entry_bytes(EntryKind::put, 3, value_.size());
    REQUIRE(entry_bytes_ <= fixture_.rig.log.size());
    REQUIRE(primary().attach(fixture_.rig.log));
  }
  Link& primary() { return fixture_.primary(); }
  Link& replica() { return fixture_.replica(); }
  void pump() { fixture_.pump(); }
  void publish() {
    static constexpr std::array<std::byte, 3> kKey{};
    EntryView entry;
    entry.kind = EntryKind::put;
    entry.lsn = {++lsn_};
    entry.key = kKey;
    entry.value = value_;
    entry.key_bytes = 3;
    entry.value_bytes = static_cast<std::uint32_t>(value_.size());
    const MutableBytes place = MutableBytes(fixture_.rig.log).first(entry_bytes_);
    encode_entry(entry, place);
    FrameHeader header;
    header.history = fixture_.context().history;
    header.shard = fixture_.context().shard;
    header.entries = 1;
    header.first_lsn = header.last_lsn = {lsn_};
    const Bytes range = place;
    REQUIRE(primary().publish(header, std::span(&range, 1)));
  }
  /// The replica's side of a batch that is due.
  Result<Batch> receive() {
    pump();
    return replica().receive();
  }
  void check_closed(const Result<Batch>& batch, ReplicationErrc code) {
    REQUIRE_FALSE(batch);
    CHECK(batch.error() == code);
    CHECK(replica().state() == LinkState::closed);
    CHECK(has(replica().close_reason(), make_error_code(code).message()));
    // Expect: the other end hears a goodbye, and both are torn down
    CHECK(fixture_.rig.run_until([&] {
      primary().poll(64);
      return primary().drained() && replica().drained();
    }));
  }

 private:
  VerbsFixture<FaultRig> fixture_;
  std::vector<std::byte> value_;
  std::uint32_t entry_bytes_ = 0;
  std::uint64_t lsn_ = 0;
};

}  // namespace

TEST_CASE("engine/verbs_link: a byte of a frame's header that is corrupt in flight closes the link") {
  for (const std::size_t at : {std::size_t{0}, std::size_t{20}, std::size_t{kFrameHeaderBytes - 1}}) {
    CAPTURE(at);
    Links links(100);
    links.publish();
    REQUIRE(links.receive());
    links.replica().release();
    fake::corrupt_next_write(at);
    links.publish();
    const auto batch = links.receive();
    REQUIRE_FALSE(batch);
    links.check_closed(batch, batch.error() == ReplicationErrc::bad_magic ? ReplicationErrc::bad_magic
                                                                          : ReplicationErrc::bad_crc);
  }
}

TEST_CASE("engine/verbs_link: a corrupt byte of an entry passes the link and is found by the entry's CRC") {
  Links links(100);
  fake::corrupt_next_write(kFrameHeaderBytes + kEntryHeaderBytes + 50);
  links.publish();
  const auto batch = links.receive();
  REQUIRE(batch);
  EntryReader reader(batch->payload);
  const auto entry = reader.next();
  REQUIRE_FALSE(entry);
  CHECK(entry.error() == ReplicationErrc::bad_crc);
  links.replica().release();
}

TEST_CASE(
    "engine/verbs_link: a notification that comes before its bytes closes the link: nothing stale is taken") {
  Links links(100);
  fake::Modes modes;
  modes.data_after_notification_steps = 100'000;
  fake::set_modes("fake1", modes);
  links.publish();
  links.check_closed(links.receive(), ReplicationErrc::bad_magic);
}

TEST_CASE("engine/verbs_link: where a whole older batch lies, a late write shows as a gap") {
  Links links(60'000);  // four of these fill the ring, the fifth lies where the first did
  for (int i = 0; i < 4; ++i) {
    links.publish();
    REQUIRE(links.receive());
    links.replica().release();
    links.pump();
  }
  fake::Modes modes;
  modes.data_after_notification_steps = 100'000;
  fake::set_modes("fake1", modes);
  links.publish();
  links.check_closed(links.receive(), ReplicationErrc::gap);
}

TEST_CASE("rdma/connection: a queue pair that overtakes another mixes nothing up") {
  FaultRig rig;
  rig.establish();
  RdmaConnection* const slow_out = std::exchange(rig.accepted, nullptr);
  RdmaConnection* const slow_in = rig.connected;
  auto terms = rig.default_active();
  terms.request.shard = {0};
  rig.connect(terms);
  REQUIRE(rig.run_until([&] { return rig.both_ready(); }));
  REQUIRE(slow_out->attach(rig.log));
  fake::delay_qp(fake::qp_numbers("fake0").front(), 400);
  const Bytes range = Bytes(rig.log).first(64);
  std::array<std::byte, 80> header{};
  for (int i = 1; i <= 3; ++i) {
    header[0] = static_cast<std::byte>(i);
    REQUIRE(slow_out->publish(header, std::span(&range, 1)));
  }
  slow_out->flush();
  rig.exchange(10);  // Expect: ten rounds of the younger one, before the first batch of the older one
  CHECK_FALSE(slow_in->batch_waiting());
  REQUIRE(rig.run_until([&] { return slow_in->traffic().batches_in == 3; }));
  for (int i = 1; i <= 3; ++i) {
    const auto batch = slow_in->receive();
    REQUIRE(batch);
    CHECK(batch->front() == static_cast<std::byte>(i));
    slow_in->release();
  }
  slow_in->abandon();
  slow_out->abandon();
}
