#include "remote_node.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <poll.h>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include <tidelock/reactor/clock.h>

#include "receipt_wire.h"
#include "side_messages.h"

namespace tidelock::tools {
namespace {

constexpr std::size_t kSendBatch = 128;
constexpr std::size_t kPieceBytes = 1 << 20;
/// What waits for the socket already; beyond it receipts stay in their queue.
constexpr std::size_t kUnsentMax = 1 << 20;

Status send_dataset(SideChannel& channel, int fd, std::uint64_t bytes, const SideWait& wait) {
  std::string piece(kPieceBytes, '\0');
  for (std::uint64_t at = 0; at < bytes;) {
    const std::size_t wanted = std::min<std::uint64_t>(piece.size(), bytes - at);
    const ssize_t count = ::pread(fd, piece.data(), wanted, static_cast<off_t>(at));
    if (count <= 0) return Error::from_errno(errno, "cannot read the shared input");
    at += static_cast<std::uint64_t>(count);
    TL_TRY(channel.send(SideKind::dataset, std::string_view(piece.data(), static_cast<std::size_t>(count))));
    TL_TRY(channel.send_all(wait));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<RemoteNode>> RemoteNode::meet(SideChannel channel, const NodeConfig& config,
                                                     const Dataset& dataset, int receipts_fd,
                                                     const RunLimits& limits, int interrupt_fd) {
  TL_TRY(const SideFrame first, channel.receive(SideWait(limits.hello, interrupt_fd)));
  if (first.kind != SideKind::json) return Error::from_errno(EBADMSG, "the other machine says no hello");
  TL_TRY(const nlohmann::json hello, SideChannel::parse(first.body));
  TL_TRY(check_side_hello(hello));
  TL_TRY(const FileHandle shared, dataset.share());
  struct stat status {};
  if (::fstat(shared.get(), &status) != 0) return Error::from_errno(errno, "cannot stat the shared input");
  const auto bytes = static_cast<std::uint64_t>(status.st_size);
  if (bytes > kSideDatasetBytesMax) {
    return Error::from_errno(
        EFBIG, fmt::format("the input has {} bytes, and the side channel takes {}: use less", bytes,
                           kSideDatasetBytesMax));
  }
  TL_TRY(channel.send(side_config(config, bytes)));
  TL_TRY(send_dataset(channel, shared.get(), bytes, SideWait(limits.input(bytes), interrupt_fd)));
  TL_TRY(auto receipts, ReceiptChannels::map(receipts_fd, config.run.shards));
  return std::unique_ptr<RemoteNode>(
      new RemoteNode(std::move(channel), std::move(receipts), config.run.shards));
}

Result<std::optional<nlohmann::json>> RemoteNode::receive() {
  auto message = next_message();
  if (!message) lost_ = message.error().message();
  return message;
}

Result<std::optional<nlohmann::json>> RemoteNode::next_message() {
  for (int handled = 0; handled < kMessagesPerStep; ++handled) {
    TL_TRY(auto frame, channel_.receive());
    if (!frame) return std::optional<nlohmann::json>();
    if (frame->kind == SideKind::credit) {
      TL_TRY(take_credit(frame->body));
      continue;
    }
    if (frame->kind != SideKind::json)
      return Error::from_errno(EBADMSG, "the other machine sends what only the primary's may");
    TL_TRY(auto message, SideChannel::parse(frame->body));
    TL_TRY(check_node_message(message, static_cast<std::uint32_t>(sent_.size())));
    if (message["event"] == "ended") {
      ended_ = message["how"];
      continue;
    }
    if (message["event"] == "shard") TL_TRY(note_report(message["result"]));
    return std::optional<nlohmann::json>(std::move(message));
  }
  return std::optional<nlohmann::json>();
}

Status RemoteNode::note_report(const nlohmann::json& shard_result) {
  auto reported = reported_[shard_result["shard"].get<std::size_t>()];
  if (reported) return Error::from_errno(EBADMSG, "the other machine sends a shard's result again");
  reported = true;
  return {};
}

Status RemoteNode::take_credit(const std::string& body) {
  TL_TRY(const auto taken, decode_credit(body, static_cast<std::uint32_t>(sent_.size())));
  for (std::size_t shard = 0; shard < taken.size(); ++shard) {
    if (taken[shard] < taken_[shard] || taken[shard] > sent_[shard])
      return Error::from_errno(EBADMSG, "the other machine claims to have checked what it never got");
  }
  taken_ = taken;
  return {};
}

Status RemoteNode::pump() {
  std::array<ReceiptNote, kSendBatch> notes;
  for (bool more = true; more && channel_.unsent() < kUnsentMax;) {
    more = false;
    const auto shards = static_cast<std::uint16_t>(sent_.size());  // at most 256
    for (std::uint16_t shard = 0; shard < shards; ++shard) {
      const std::uint64_t room = kReceiptWindow - (sent_[shard] - taken_[shard]);
      const std::size_t count =
          receipts_.queue({shard}).pop(notes.data(), std::min<std::size_t>(kSendBatch, room));
      if (count == 0) continue;
      more = true;
      sent_[shard] += count;
      TL_TRY(channel_.send(SideKind::receipts,
                           encode_receipts({shard}, std::span(notes).first(count), SystemClock().now())));
    }
  }
  return channel_.flush();
}

Status RemoteNode::send_results(const nlohmann::json& primary, bool interrupted,
                                const std::vector<std::string>& failures, const SideWait& wait) {
  nlohmann::json rest = primary;
  if (rest.is_object() && rest.contains("shards")) {
    for (const auto& shard : rest["shards"]) {
      TL_TRY(channel_.send({{"command", "shard"}, {"result", shard}}));
      TL_TRY(channel_.send_all(wait));
    }
    rest.erase("shards");
  }
  TL_TRY(channel_.send(
      {{"command", "result"}, {"result", rest}, {"interrupted", interrupted}, {"failures", failures}}));
  return channel_.send_all(wait);
}

/// The other side says how its node has ended, and hangs up. Without that word it did not end well.
std::string RemoteNode::reap(Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::nanoseconds(timeout.ns);
  std::string error;
  while (!ended_ && lost_.empty() && std::chrono::steady_clock::now() < deadline) {
    static_cast<void>(channel_.flush());  // receive() tells what is wrong
    const auto message = receive();
    if (message && message->has_value()) {
      if ((**message)["event"] == "error" && error.empty()) error = (**message)["message"];
      continue;
    }
    pollfd entry{channel_.fd(), POLLIN, 0};
    if (!ended_ && lost_.empty()) ::poll(&entry, 1, buffered() ? 0 : 20);
  }
  if (!error.empty()) return "failed: " + error;
  if (ended_) return *ended_;
  return lost_.empty() ? "did not end in time" : "is out of reach: " + lost_;
}

}  // namespace tidelock::tools
