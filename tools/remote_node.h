/// The replica's machine, as the primary's sees it. It passes commands and results through the side channel,
/// and the receipts: out of the queue that the primary process fills, never more than the verifier can take.
/// Thread:   one owner
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dataset.h"
#include "node_end.h"
#include "receipts.h"
#include "run_limits.h"
#include "run_options.h"
#include "side_channel.h"

namespace tidelock::tools {

class RemoteNode final : public NodeEnd {
 public:
  /// Reads the hello of whoever has connected, and tells it what to run, with the input.
  /// `receipts_fd`: of ReceiptChannels::create(). `interrupt_fd`: of SideWait, then and later.
  /// Errors:   those of SideChannel; EBADMSG: it is no replica of this version
  static Result<std::unique_ptr<RemoteNode>> meet(SideChannel channel, const NodeConfig& config,
                                                  const Dataset& dataset, int receipts_fd,
                                                  const RunLimits& limits, int interrupt_fd);

  [[nodiscard]] int fd() const override { return channel_.fd(); }
  Status send(const nlohmann::json& message) override { return channel_.send(message); }
  Result<std::optional<nlohmann::json>> receive() override;
  [[nodiscard]] bool buffered() const override { return channel_.buffered(); }
  std::string reap(Duration timeout) override;

  /// Sends what receipts there are and fit. To be called all the time while the load runs.
  Status pump();
  /// The primary's own results, from which the other side makes its report.
  /// `failures`: what went wrong here so far; the other side's run has then failed, too.
  Status send_results(const nlohmann::json& primary, bool interrupted,
                      const std::vector<std::string>& failures, const SideWait& wait);

 private:
  RemoteNode(SideChannel channel, ReceiptChannels receipts, std::uint32_t shards)
      : channel_(std::move(channel)),
        receipts_(std::move(receipts)),
        sent_(shards),
        taken_(shards),
        reported_(shards) {}
  Result<std::optional<nlohmann::json>> next_message();
  Status take_credit(const std::string& body);
  Status note_report(const nlohmann::json& shard_result);

  SideChannel channel_;
  ReceiptChannels receipts_;
  std::vector<std::uint64_t> sent_;   ///< receipts, a shard
  std::vector<std::uint64_t> taken_;  ///< of those, by the verifier
  std::vector<bool> reported_;        ///< shards whose result has come
  std::optional<std::string> ended_;  ///< how the other side's node did, once it has said so
  std::string lost_;                  ///< why nothing can be sent any more
};

}  // namespace tidelock::tools
