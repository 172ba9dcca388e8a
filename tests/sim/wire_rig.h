/// A wire and its two links, without cores: the test lets the world run.
/// Thread:   one
#pragma once

#include <memory>

#include <doctest/doctest.h>

#include "replication/link_conformance.h"
#include "sim_link.h"

namespace tidelock::test {

/// Its replica's flush() also lets the world run to rest: a peer in another process would have gone on by
/// itself.
class FlushingLink final : public Link {
 public:
  FlushingLink(sim::World& world, std::unique_ptr<Link> link) : world_(world), link_(std::move(link)) {}
  [[nodiscard]] std::uint32_t batch_bytes_max() const override { return link_->batch_bytes_max(); }
  Status attach(Bytes log) override { return link_->attach(log); }
  Status publish(const FrameHeader& header, std::span<const Bytes> ranges) override {
    return link_->publish(header, ranges);
  }
  [[nodiscard]] std::uint64_t batches_completed() const override { return link_->batches_completed(); }
  [[nodiscard]] bool drained() const override { return link_->drained(); }
  Result<Batch> receive() override { return link_->receive(); }
  void release() override { link_->release(); }
  Status send_control(const ControlFrame& frame) override { return link_->send_control(frame); }
  Result<ControlFrame> receive_control() override { return link_->receive_control(); }
  [[nodiscard]] LinkState state() const override { return link_->state(); }
  [[nodiscard]] Instant last_heard() const override { return link_->last_heard(); }
  void close(const std::string& reason) override { link_->close(reason); }
  [[nodiscard]] std::string close_reason() const override { return link_->close_reason(); }
  [[nodiscard]] const char* kind() const override { return link_->kind(); }
  [[nodiscard]] const LinkCounters& counters() const override { return link_->counters(); }
  std::uint32_t poll(std::uint32_t budget) override { return link_->poll(budget); }
  void flush() override {
    link_->flush();
    world_.run_to_rest();
  }
  [[nodiscard]] bool has_work() const override { return link_->has_work(); }

 private:
  sim::World& world_;
  std::unique_ptr<Link> link_;
};

class WireFixture final : public testing::LinkFixture {
 public:
  explicit WireFixture(std::uint64_t seed = 1, const sim::WireOptions& options = {})
      : world(seed), wire(sim::Wire::make(world, counts, 1, kContext, options)) {
    auto link = wire->take(sim::Side::replica, nullptr);
    raw_replica_ = link.get();
    primary_ = wire->take(sim::Side::primary, nullptr);
    replica_ = std::make_unique<FlushingLink>(world, std::move(link));
  }
  ~WireFixture() override { CHECK(world.verdict().passed()); }
  Link& primary() override { return *primary_; }
  Link& replica() override { return *replica_; }
  /// Its flush() does not let the world run.
  Link& raw_replica() { return *raw_replica_; }
  [[nodiscard]] FrameContext context() const override { return kContext; }
  [[nodiscard]] std::uint64_t ring_bytes() const override { return 256 * 1024; }
  void pump() override {
    primary_->flush();
    replica_->flush();
    primary_->poll(64);
    replica_->poll(64);
  }

  static constexpr FrameContext kContext{HistoryId{0x51}, Generation{7}, ShardId{}};
  sim::World world;
  sim::FaultCounts counts;
  std::shared_ptr<sim::Wire> wire;

 private:
  std::unique_ptr<sim::SimLink> primary_;
  std::unique_ptr<Link> replica_;
  Link* raw_replica_ = nullptr;
};

}  // namespace tidelock::test
