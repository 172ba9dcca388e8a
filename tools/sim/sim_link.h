/// One end of a Wire: the Link that production's primary and replica see.
/// Thread:   one
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include <tidelock/base/counter.h>
#include <tidelock/replication/link.h>

#include "wire.h"

namespace tidelock::sim {

class SimLink final : public Link {
 public:
  SimLink(std::shared_ptr<Wire> wire, Side side) : wire_(std::move(wire)), side_(side) {}
  ~SimLink() override;
  SimLink(const SimLink&) = delete;
  SimLink& operator=(const SimLink&) = delete;

  Status start(Reactor& reactor) override;
  [[nodiscard]] std::uint32_t batch_bytes_max() const override {
    return static_cast<std::uint32_t>(wire_->batch_bytes_max());
  }
  Status attach(Bytes log_memory) override;
  Status publish(const FrameHeader& header, std::span<const Bytes> ranges) override;
  [[nodiscard]] std::uint64_t batches_completed() const override { return completed_seen_; }
  [[nodiscard]] bool drained() const override;
  Result<Batch> receive() override;
  void release() override;
  Status send_control(const ControlFrame& frame) override;
  Result<ControlFrame> receive_control() override;
  [[nodiscard]] LinkState state() const override { return closed_ ? LinkState::closed : LinkState::ready; }
  [[nodiscard]] Instant last_heard() const override { return heard_; }
  void close(const std::string& reason) override;
  [[nodiscard]] std::string close_reason() const override { return reason_; }
  [[nodiscard]] const char* kind() const override { return "sim"; }
  [[nodiscard]] const LinkCounters& counters() const override { return counters_; }

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  [[nodiscard]] bool has_work() const override;

  [[nodiscard]] Wire& wire() const { return *wire_; }
  [[nodiscard]] const std::shared_ptr<Wire>& shared_wire() const { return wire_; }
  void count_control_out() { bump(counters_.control_out); }

 private:
  [[nodiscard]] bool mute() const { return wire_->ends_[index_of(side_)].dead; }
  [[nodiscard]] bool all_read() const;
  [[nodiscard]] Error closed_error();
  Error nothing_left();
  Error refuse(Error error, bool corrupted);
  void shut(const std::string& reason);
  void heard();

  std::shared_ptr<Wire> wire_;
  Side side_;
  Reactor* reactor_ = nullptr;
  Bytes log_;
  Instant heard_{};
  std::uint64_t completed_seen_ = 0;
  std::uint64_t control_sequence_in_ = 0;
  std::uint64_t wants_bytes_ = 0;  ///< a publish of that size was refused for want of room
  bool closed_ = false;
  bool reported_ = false;  ///< the owner knows that it is closed
  std::string reason_;
  LinkCounters counters_;
};

}  // namespace tidelock::sim
