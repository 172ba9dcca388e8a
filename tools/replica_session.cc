#include "replica_session.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/signalfd.h>

#include <tidelock/reactor/clock.h>
#include <tidelock/reactor/cpu_set.h>

#include "kept_lines.h"
#include "receipt_wire.h"
#include "signal_file.h"

namespace tidelock::tools {
namespace {

/// What waits for the primary's machine already; beyond it the node waits, too.
constexpr std::size_t kRelayedMax = 1 << 20;
/// For the last words after a signal.
constexpr Duration kPartingTime = seconds(2);
/// How often the queue is looked at while there are receipts in it.
constexpr timespec kBusyPause{0, 100'000};
constexpr timespec kIdlePause{0, 100'000'000};

Error unexpected() {
  return Error::from_errno(EBADMSG,
                           "the other machine sends what does not belong here: are both the same "
                           "version of tidelock?");
}

Status write_all(int fd, const std::string& bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const ssize_t count = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return Error::from_errno(errno, "no memory for the input");
    at += static_cast<std::size_t>(count);
  }
  return {};
}

}  // namespace

Result<ReplicaSession::Result> ReplicaSession::execute(const RunSession::ProgressHandler& progress,
                                                       const RunSession::NoticeHandler& notice) {
  on_progress_ = progress;
  on_notice_ = notice;
  TL_TRY(signals_, block_signals());
  const Status ran = run();
  if (!ready_ && (read_signal() || signal_ != 0))
    return Error::from_errno(ECANCELED, "interrupted before the run had begun");
  TL_TRY(ran);
  const std::string end = node_->reap(closing_ ? seconds(20) : Duration{0});
  if (closing_ && !end.empty()) note_failure("the replica process " + end);
  // The primary's machine takes no end for a good one that is not called so.
  if (channel_->send({{"event", "ended"}, {"how", end}})) {
    const SideWait parting(signal_ != 0 ? kPartingTime : limits_.results, signals_.get());
    static_cast<void>(channel_->send_all(parting));
  }
  if (!ready_) {
    return Error(std::make_error_code(std::errc::no_child_process),
                 outcome_.failures.empty() ? "the replica process ended before it was ready"
                                           : outcome_.failures.front());
  }
  if (outcome_.primary.is_object()) outcome_.primary["shards"] = primary_shards_;
  if (outcome_.replica.is_object()) outcome_.replica["shards"] = node_shards_;
  return Result{side_.config.run, plan_, *std::move(dataset_), std::move(outcome_), interrupted_};
}

ReplicaSession::~ReplicaSession() {
  if (signals_.valid()) unblock_signals();
}

/// Errors:   whatever ended it before the node was ready
Status ReplicaSession::run() {
  TL_TRY(meet());
  TL_TRY(take_dataset());
  TL_TRY(start());
  while (!over_) {
    Status stepped = step();
    if (stepped) continue;
    if (!ready_) return stepped;
    note_failure(stepped.error().message());  // a partial report says more than none
    break;
  }
  return {};
}

Status ReplicaSession::meet() {
  TL_TRY(auto channel,
         SideChannel::connect(options_.side_channel, SideWait(limits_.connect, signals_.get())));
  channel_.emplace(std::move(channel));
  TL_TRY(channel_->send(side_hello()));
  TL_TRY(const SideFrame first, channel_->receive(SideWait(limits_.answer, signals_.get())));
  if (first.kind != SideKind::json) return unexpected();
  TL_TRY(const nlohmann::json answer, SideChannel::parse(first.body));
  TL_TRY(side_, side_config_from(answer, options_));
  TL_TRY(plan_, plan_node_cores(spread_over_cores(usable_cpus()), side_.config.run.shards, options_.pin,
                                options_.overprovisioned));
  side_.config.cpus = plan_.replica;
  side_.config.overprovisioned = plan_.overprovisioned;
  if (!plan_.notice.empty()) on_notice_(plan_.notice);
  return engine_options(side_.config).validate();
}

Status ReplicaSession::take_dataset() {
  FileHandle file(::memfd_create("tidelock-dataset", MFD_CLOEXEC));
  if (!file.valid())
    return Error::from_errno(errno, "memfd_create failed: is the limit of open files reached?");
  const SideWait wait(limits_.input(side_.dataset_bytes), signals_.get());
  for (std::uint64_t left = side_.dataset_bytes; left > 0;) {
    TL_TRY(const SideFrame piece, channel_->receive(wait));
    if (piece.kind != SideKind::dataset || piece.body.empty() || piece.body.size() > left)
      return unexpected();
    TL_TRY(write_all(file.get(), piece.body));
    left -= piece.body.size();
  }
  TL_TRY(auto dataset, Dataset::map(file.get()));
  dataset_.emplace(std::move(dataset));
  dataset_file_ = std::move(file);
  return {};
}

Status ReplicaSession::start() {
  const std::uint32_t shards = side_.config.run.shards;
  got_.resize(shards);
  taken_.resize(shards);
  TL_TRY(const FileHandle receipts, ReceiptChannels::create(shards));
  TL_TRY(auto channels, ReceiptChannels::map(receipts.get(), shards));
  receipts_.emplace(std::move(channels));
  TL_TRY(auto node, NodeProcess::start(side_.config, dataset_file_.get(), receipts.get()));
  node_.emplace(std::move(node));
  const Duration load = limits_.load(side_.config.run, dataset_->records().size(), side_.dataset_bytes);
  end_ = SteadyClock::now() + std::chrono::nanoseconds((limits_.start + load + limits_.finish * 2).ns);
  return {};
}

bool ReplicaSession::read_signal() {
  signalfd_siginfo info{};
  if (::read(signals_.get(), &info, sizeof info) != sizeof info) return false;
  signal_ = outcome_.signal = static_cast<int>(info.ssi_signo);
  return true;
}

Status ReplicaSession::step() {
  wait();
  if (read_signal()) {
    over_ = true;
    static_cast<void>(
        channel_->send({{"event", "error"}, {"message", "interrupted at the replica's machine"}}));
    return {};
  }
  if (SteadyClock::now() > end_) {
    return Error(std::make_error_code(std::errc::timed_out),
                 "with the other machine this takes longer than it may: is the primary stopped?");
  }
  TL_TRY(relay_from_node());
  TL_TRY(relay_from_primary());
  TL_TRY(give_credit());
  return channel_->flush();
}

/// The primary's machine does not take what it is sent.
bool ReplicaSession::behind() const { return channel_->unsent() >= kRelayedMax; }

void ReplicaSession::wait() {
  // A negative descriptor is ignored by poll(2).
  pollfd entries[3] = {
      {signals_.get(), POLLIN, 0},
      {behind() ? -1 : node_->fd(), POLLIN, 0},
      {channel_->fd(), static_cast<short>(channel_->unsent() > 0 ? POLLIN | POLLOUT : POLLIN), 0}};
  constexpr timespec kNoPause{0, 0};
  const timespec* const pause = got_ == taken_ ? &kIdlePause : &kBusyPause;
  ::ppoll(entries, 3, channel_->buffered() ? &kNoPause : pause, nullptr);
}

Status ReplicaSession::relay_from_primary() {
  for (int taken = 0; taken < kMessagesPerStep && !over_; ++taken) {
    TL_TRY(auto frame, channel_->receive());
    if (!frame) return {};
    if (frame->kind == SideKind::receipts) {
      TL_TRY(take_receipts(frame->body));
    } else if (frame->kind == SideKind::json) {
      TL_TRY(const nlohmann::json message, SideChannel::parse(frame->body));
      TL_TRY(on_command(message));
    } else {
      return unexpected();
    }
  }
  return {};
}

Status ReplicaSession::take_receipts(const std::string& body) {
  TL_TRY(const ReceiptBatch batch, decode_receipts(body, side_.config.run.shards, SystemClock().now()));
  auto& queue = receipts_->queue(batch.shard);
  if (queue.push(batch.notes.data(), batch.notes.size()) != batch.notes.size()) {
    return Error::from_errno(EBADMSG, "the other machine sends more receipts than were asked for");
  }
  got_[batch.shard.value] += batch.notes.size();
  return {};
}

/// Each says all, so one that is not on its way yet makes another superfluous.
Status ReplicaSession::give_credit() {
  if (channel_->unsent() > 0) return {};
  std::vector<std::uint64_t> taken(got_.size());
  const auto shards = static_cast<std::uint16_t>(taken.size());  // at most 256
  for (std::uint16_t shard = 0; shard < shards; ++shard)
    taken[shard] = got_[shard] - (kReceiptQueueNotes - receipts_->queue({shard}).write_available());
  if (taken == taken_) return {};
  taken_ = std::move(taken);
  return channel_->send(SideKind::credit, encode_credit(taken_));
}

Status ReplicaSession::on_command(const nlohmann::json& message) {
  const std::uint32_t shards = side_.config.run.shards;
  const auto command = message.find("command");
  if (command == message.end() || !command->is_string()) return unexpected();
  if (*command == "shard" && message.contains("result")) {
    TL_TRY(check_shard_result(message["result"], shards, NodeRole::primary));
    const auto same = [&](const nlohmann::json& other) {
      return other["shard"] == message["result"]["shard"];
    };
    const bool again = std::any_of(primary_shards_.begin(), primary_shards_.end(), same);
    if (!message["result"].contains("ack_ns") || again) return unexpected();
    primary_shards_.push_back(message["result"]);
    return {};
  }
  if (*command == "result" && message.contains("result") && message["result"].is_object()) {
    outcome_.primary = message["result"];
    interrupted_ = message.contains("interrupted") && message["interrupted"] == true;
    const auto failures = message.find("failures");
    if (failures == message.end() || !failures->is_array()) return unexpected();
    for (const auto& failure : *failures) {
      if (!failure.is_string()) return unexpected();
      note_failure("primary's machine: " + failure.get<std::string>());
    }
    return {};
  }
  if (*command == "finish") {
    TL_TRY(check_finish(message, shards));
    return node_->send(message);
  }
  if (*command != "close") return unexpected();
  closing_ = over_ = true;
  return node_->send({{"command", "close"}});
}

Status ReplicaSession::relay_from_node() {
  for (int taken = 0; taken < kMessagesPerStep && !behind(); ++taken) {
    auto message = node_->receive();
    if (!message) {
      note_failure("the replica process " + node_->reap(seconds(5)));
      over_ = true;
      return {};
    }
    if (!message->has_value()) return {};
    watch(**message);
    TL_TRY(channel_->send(**message));
  }
  return {};
}

void ReplicaSession::watch(const nlohmann::json& message) {
  const std::string event = message.value("event", "");
  if (event == "ready") ready_ = true;
  if (event == "notice") on_notice_("replica: " + message.at("text").get<std::string>());
  if (event == "error") note_failure(message.at("message"));
  if (event == "shard") node_shards_.push_back(message.at("result"));
  if (event == "result") outcome_.replica = message;
  if (event != "progress") return;
  latest_.checked = message.at("checked");
  latest_.stale = message.at("stale");
  on_progress_(latest_);
}

void ReplicaSession::note_failure(std::string text) {
  if (keep_line(outcome_.failures, std::move(text))) on_notice_(outcome_.failures.back());
}

}  // namespace tidelock::tools
