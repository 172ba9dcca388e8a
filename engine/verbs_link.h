/// A replication link on an RDMA connection: frames in its batches, control frames in its messages. rdma/
/// knows no frame and replication/ no verbs; this is where the two meet.
/// Thread:   owner core of the connection; made and destroyed on any thread
/// Suspends: never
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tidelock/rdma/connection.h>
#include <tidelock/rdma/core.h>
#include <tidelock/replication/link.h>

namespace tidelock {

class VerbsLink : public Link {
 public:
  /// The connection is ready, and this link's from now on. The core outlives the link.
  VerbsLink(RdmaConnection& connection, NodeRole role, const FrameContext& context);
  ~VerbsLink() override;

  Status start(Reactor& reactor) override;
  [[nodiscard]] std::uint32_t batch_bytes_max() const override;
  Status attach(Bytes log_memory) override;
  Status publish(const FrameHeader& header, std::span<const Bytes> ranges) override;
  [[nodiscard]] std::uint64_t batches_completed() const override;
  [[nodiscard]] bool drained() const override;
  Result<Batch> receive() override;
  void release() override;
  Status send_control(const ControlFrame& frame) override;
  Result<ControlFrame> receive_control() override;
  [[nodiscard]] LinkState state() const override { return closed_ ? LinkState::closed : LinkState::ready; }
  [[nodiscard]] Instant last_heard() const override { return last_heard_; }
  void close(const std::string& reason) override;
  [[nodiscard]] std::string close_reason() const override { return close_reason_; }
  [[nodiscard]] const char* kind() const override { return "verbs"; }
  [[nodiscard]] std::string describe() const override { return connection_.describe(); }
  [[nodiscard]] std::vector<LinkTransition> transitions() const override;
  [[nodiscard]] const LinkCounters& counters() const override { return counters_; }

  std::uint32_t poll(std::uint32_t budget) override;
  void flush() override;
  [[nodiscard]] bool has_work() const override;

  [[nodiscard]] const RdmaConnection& connection() const { return connection_; }

 private:
  Result<Batch> check(Bytes arrived);
  bool write_control(const ControlFrame& frame);
  [[nodiscard]] bool all_read() const;
  Error nothing_left();
  Error closed_error();
  Error fail(Error error);
  void shut(const std::string& reason);
  void heard() { last_heard_ = core_.reactor().now(); }

  RdmaConnection& connection_;
  RdmaCore& core_;
  NodeRole role_;
  FrameContext context_;
  std::uint64_t sequence_out_ = 0;
  std::uint64_t sequence_in_ = 0;
  std::uint64_t control_sequence_out_ = 0;
  std::uint64_t control_sequence_in_ = 0;
  std::optional<ControlFrame> control_waiting_;  ///< the newest that found no credit
  bool wants_room_ = false;                      ///< a publish was refused since credit last came
  bool closed_ = false;
  bool close_reported_ = false;  ///< somebody above has seen that it closed
  Instant last_heard_{};
  std::string close_reason_;
  LinkCounters counters_;
};

}  // namespace tidelock
