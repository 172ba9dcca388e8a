/// Two ends of a Link in one process and on one thread, in memory of their own: every byte can be looked at,
/// held back or damaged on its way. As with a real ring, what is published leaves with flush(), and nothing
/// is allocated in steady state.
/// Thread:   one
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <tidelock/base/check.h>
#include <tidelock/reactor/clock.h>
#include <tidelock/replication/link.h>

namespace tidelock::test {

struct LoopbackOptions {
  std::uint32_t batch_bytes_max = kEntryBytesMax * 2;
  std::uint32_t slots = 8;            ///< batches in flight
  bool completes_on_release = false;  ///< as verbs may: the log's bytes are needed until the receiver is done
};

/// What the two ends share, and where a test interferes.
struct LoopbackWire {
  LoopbackWire(const FrameContext& its_context, const LoopbackOptions& its_options)
      : context(its_context), options(its_options), slots(its_options.slots) {
    for (auto& slot : slots) slot.reserve(kFrameHeaderBytes + options.batch_bytes_max);
    if (!options.completes_on_release) return;
    sources.resize(slots.size());
    for (Source& source : sources) source.bytes.reserve(options.batch_bytes_max);
  }
  FrameContext context;
  LoopbackOptions options;
  std::vector<std::vector<std::byte>> slots;
  std::uint64_t written = 0;   ///< batches put into slots
  std::uint64_t flushed = 0;   ///< of those, visible to the receiver
  std::uint64_t received = 0;  ///< given out by receive()
  std::uint64_t released = 0;
  /// Where a batch came from and what its payload was, as long as the primary's end needs that memory.
  struct Source {
    std::array<Bytes, 2> ranges;
    std::vector<std::byte> bytes;
  };
  std::vector<Source> sources;  ///< one a slot
  bool sources_alive = false;   ///< the primary's end is there
  std::uint64_t overwritten =
      0;  ///< batches whose memory was used for something else before it was completed
  struct Control {
    std::array<std::byte, kControlFrameBytes> bytes{};
    bool full = false;
  };
  Control to_replica, to_primary;
  std::string closed_by_primary, closed_by_replica;
  bool primary_closed = false, replica_closed = false;

  /// Sees every batch (header and payload) on its way and may change it; empty: untouched.
  std::function<void(std::vector<std::byte>&)> tamper;
  /// Sees every control frame from the replica before it is encoded.
  std::function<void(ControlFrame&)> tamper_ack;
  std::uint32_t polls_to_drain = 0;  ///< the primary's end, once closed, needs the log for so many polls more
  bool hold_controls = false;        ///< control frames from the replica are dropped: it seems silent
};

class LoopbackLink final : public Link {
 public:
  LoopbackLink(std::shared_ptr<LoopbackWire> wire, NodeRole role, Clock& clock)
      : wire_(std::move(wire)), role_(role), clock_(clock), heard_(clock.now()) {}
  ~LoopbackLink() override {
    close("the link was destroyed");
    if (role_ == NodeRole::primary) wire_->sources_alive = false;
  }

  [[nodiscard]] std::uint32_t batch_bytes_max() const override { return wire_->options.batch_bytes_max; }
  Status attach(Bytes log_memory) override {
    log_ = log_memory;
    wire_->sources_alive = true;
    return {};
  }
  Status publish(const FrameHeader& header, std::span<const Bytes> ranges) override {
    if (closed()) return ReplicationErrc::link_closed;
    if (!has_room()) {
      counters_.full.fetch_add(1);
      wants_room_ = true;
      return ReplicationErrc::link_full;
    }
    auto& slot = wire_->slots[wire_->written % wire_->slots.size()];
    FrameHeader stamped = header;
    stamped.generation = wire_->context.generation;
    stamped.sequence = wire_->written + 1;
    slot.resize(kFrameHeaderBytes);
    for (const Bytes& range : ranges) {
      TL_ASSERT(range.data() >= log_.data() && range.data() + range.size() <= log_.data() + log_.size(),
                "ranges lie in the attached memory");
      slot.insert(slot.end(), range.begin(), range.end());
    }
    note_source(ranges, Bytes(slot).subspan(kFrameHeaderBytes));
    stamped.payload_bytes = static_cast<std::uint32_t>(slot.size() - kFrameHeaderBytes);
    TL_ASSERT(stamped.payload_bytes <= batch_bytes_max(), "a batch is too large");
    encode_frame_header(stamped, std::span<std::byte, kFrameHeaderBytes>(slot.data(), kFrameHeaderBytes));
    if (wire_->tamper) wire_->tamper(slot);
    ++wire_->written;
    counters_.batches_out.fetch_add(1);
    return {};
  }
  [[nodiscard]] std::uint64_t batches_completed() const override {
    return wire_->options.completes_on_release ? wire_->released : wire_->written;
  }

  [[nodiscard]] bool drained() const override {
    return state() == LinkState::closed && wire_->polls_to_drain == 0;
  }

  Result<Batch> receive() override {
    if (own_closed()) return ReplicationErrc::link_closed;
    if (wire_->received == wire_->flushed) {
      return closed() ? Result<Batch>(ReplicationErrc::link_closed) : ReplicationErrc::link_empty;
    }
    const auto& slot = wire_->slots[wire_->received % wire_->slots.size()];
    const auto header = decode_frame_header(
        std::span<const std::byte, kFrameHeaderBytes>(slot.data(), kFrameHeaderBytes), wire_->context);
    const Status checked = !header                                   ? Status(header.error())
                           : header->sequence != wire_->received + 1 ? Status(ReplicationErrc::gap)
                                                                     : Status();
    if (!checked) {
      close("frame: " + checked.error().message());
      return checked.error();
    }
    ++wire_->received;
    heard_ = clock_.now();
    counters_.batches_in.fetch_add(1);
    return Batch{*header, Bytes(slot).subspan(kFrameHeaderBytes)};
  }
  void release() override {
    TL_ASSERT(wire_->released < wire_->received, "released more than was received");
    check_source();
    ++wire_->released;
  }

  Status send_control(const ControlFrame& frame) override {
    if (closed()) return ReplicationErrc::link_closed;
    ControlFrame stamped = frame;
    stamped.generation = wire_->context.generation;
    stamped.sequence = ++control_sequence_;
    const bool to_primary = role_ == NodeRole::replica;
    if (to_primary && wire_->hold_controls) return {};
    if (to_primary && wire_->tamper_ack) wire_->tamper_ack(stamped);
    auto& lane = to_primary ? wire_->to_primary : wire_->to_replica;
    encode_control(stamped, lane.bytes);
    lane.full = true;
    counters_.control_out.fetch_add(1);
    return {};
  }
  Result<ControlFrame> receive_control() override {
    if (own_closed()) return ReplicationErrc::link_closed;
    auto& lane = role_ == NodeRole::replica ? wire_->to_replica : wire_->to_primary;
    if (!lane.full) return ReplicationErrc::link_empty;
    lane.full = false;
    const auto frame = decode_control(lane.bytes, wire_->context);
    if (!frame) {
      close("control frame: " + frame.error().message());
      return frame.error();
    }
    heard_ = clock_.now();
    counters_.control_in.fetch_add(1);
    return *frame;
  }

  [[nodiscard]] LinkState state() const override {
    return own_closed() || (closed() && !has_input()) ? LinkState::closed : LinkState::ready;
  }
  [[nodiscard]] Instant last_heard() const override { return heard_; }
  void close(const std::string& reason) override {
    if (own_closed()) return;
    (role_ == NodeRole::primary ? wire_->primary_closed : wire_->replica_closed) = true;
    (role_ == NodeRole::primary ? wire_->closed_by_primary : wire_->closed_by_replica) = reason;
  }
  [[nodiscard]] std::string close_reason() const override {
    if (!closed()) return {};
    const auto& own = role_ == NodeRole::primary ? wire_->closed_by_primary : wire_->closed_by_replica;
    return own.empty() ? "closed by the peer" : own;
  }
  [[nodiscard]] const char* kind() const override { return "loopback"; }
  [[nodiscard]] const LinkCounters& counters() const override { return counters_; }

  std::uint32_t poll(std::uint32_t) override {
    if (state() == LinkState::closed && wire_->polls_to_drain > 0) --wire_->polls_to_drain;
    if (!wants_room_ || !has_room()) return 0;
    wants_room_ = false;
    return 1;
  }
  void flush() override {
    if (role_ == NodeRole::primary) wire_->flushed = wire_->written;
  }
  [[nodiscard]] bool has_work() const override { return has_input() || (wants_room_ && has_room()); }

 private:
  void note_source(std::span<const Bytes> ranges, Bytes payload) {
    if (!wire_->options.completes_on_release) return;
    auto& source = wire_->sources[wire_->written % wire_->sources.size()];
    TL_ASSERT(ranges.size() <= source.ranges.size(), "a batch of more ranges than a log has");
    source.ranges = {};
    std::copy(ranges.begin(), ranges.end(), source.ranges.begin());
    source.bytes.assign(payload.begin(), payload.end());
  }
  /// What a link that does not copy would have read until now.
  void check_source() {
    const bool read = !closed() || wire_->polls_to_drain > 0;
    if (!wire_->options.completes_on_release || !wire_->sources_alive || !read) return;
    const auto& source = wire_->sources[wire_->released % wire_->sources.size()];
    auto at = source.bytes.begin();
    bool same = true;
    for (const Bytes& range : source.ranges) {
      same = same && std::equal(range.begin(), range.end(), at);
      at += static_cast<std::ptrdiff_t>(range.size());
    }
    wire_->overwritten += same ? 0 : 1;
  }
  [[nodiscard]] bool own_closed() const {
    return role_ == NodeRole::primary ? wire_->primary_closed : wire_->replica_closed;
  }
  [[nodiscard]] bool closed() const { return wire_->primary_closed || wire_->replica_closed; }
  [[nodiscard]] bool has_room() const { return wire_->written - wire_->released < wire_->slots.size(); }
  [[nodiscard]] bool has_input() const {
    if (role_ == NodeRole::primary) return wire_->to_primary.full;
    return wire_->to_replica.full || wire_->received != wire_->flushed;
  }

  std::shared_ptr<LoopbackWire> wire_;
  NodeRole role_;
  Clock& clock_;
  Bytes log_;
  Instant heard_;
  std::uint64_t control_sequence_ = 0;
  bool wants_room_ = false;  ///< a publish was refused: has_work() says when it is worth another try
  LinkCounters counters_;
};

}  // namespace tidelock::test
