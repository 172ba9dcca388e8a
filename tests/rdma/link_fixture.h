/// A pair of verbs links for the conformance suite, on either rig.
/// Thread:   one
#pragma once

#include <memory>
#include <utility>

#include <replication/link_conformance.h>

#include "rdma_rig.h"
#include "verbs_link.h"

namespace tidelock::test {

/// Registers the log that a test attaches; in an engine that is done before its core starts.
class RegisteringLink final : public VerbsLink {
 public:
  using VerbsLink::VerbsLink;
  Status attach(Bytes log) override {
    TL_TRY(connection().core().register_memory({const_cast<std::byte*>(log.data()), log.size()}));
    return VerbsLink::attach(log);
  }
};

template <class Rig>
class VerbsFixture final : public testing::LinkFixture {
 public:
  explicit VerbsFixture(const RdmaOptions& options = options_of_tests()) : rig(options, options) {
    rig.establish();
    passive_ = std::exchange(rig.accepted, nullptr);
    active_ = std::exchange(rig.connected, nullptr);
    primary_ = std::make_unique<RegisteringLink>(*passive_, NodeRole::primary, context());
    replica_ = std::make_unique<RegisteringLink>(*active_, NodeRole::replica, context());
    REQUIRE(primary_->start(rig.passive.reactor()));
    REQUIRE(replica_->start(rig.active.reactor()));
    // The greetings' own completions.
    REQUIRE(
        rig.run_until([this] { return !rig.passive.core().has_work() && !rig.active.core().has_work(); }));
  }
  ~VerbsFixture() override {
    primary_.reset();
    replica_.reset();
  }

  /// The conformance suite gathers from up to 20 pieces.
  static RdmaOptions options_of_tests() {
    RdmaOptions options;
    options.gather = 24;
    options.control_slots = 4;
    return options;
  }

  Link& primary() override { return *primary_; }
  Link& replica() override { return *replica_; }
  [[nodiscard]] FrameContext context() const override { return {HistoryId{77}, Generation{5}, ShardId{1}}; }
  [[nodiscard]] std::uint64_t ring_bytes() const override { return kRingBytesMin; }
  void pump() override {
    primary_->flush();
    replica_->flush();
    CHECK(rig.run_until([this] { return all_arrived(); }));
    primary_->poll(64);
    replica_->poll(64);
  }

  Rig rig;

 private:
  [[nodiscard]] bool all_arrived() const {
    const auto out = passive_->traffic();
    const auto in = active_->traffic();
    return (out.batches_out == in.batches_in && out.messages_out == in.messages_in)
               ? out.messages_in == in.messages_out
               : passive_->torn_down() || active_->torn_down();
  }

  RdmaConnection* passive_ = nullptr;
  RdmaConnection* active_ = nullptr;
  std::unique_ptr<VerbsLink> primary_;
  std::unique_ptr<VerbsLink> replica_;
};

}  // namespace tidelock::test
