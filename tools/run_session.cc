#include "run_session.h"

#include <cerrno>
#include <csignal>
#include <poll.h>

#include <fmt/format.h>
#include <sys/signalfd.h>

#include "kept_lines.h"
#include "receipts.h"
#include "side_channel.h"
#include "signal_file.h"

namespace tidelock::tools {
namespace {

/// A node that says nothing and gets no further for so long has hung.
constexpr auto kPatience = std::chrono::seconds(120);
/// How often receipts are fetched for a replica behind the side channel: a check that comes late proves
/// little.
constexpr timespec kPumpPause{0, 50'000};
constexpr timespec kWatchPause{0, 200'000'000};

}  // namespace

RunSession::~RunSession() {
  if (signals_.valid()) unblock_signals();
}

Status RunSession::start() {
  TL_TRY(signals_, block_signals());
  TL_TRY(FileHandle dataset, dataset_.share());
  TL_TRY(FileHandle receipts, ReceiptChannels::create(options_.shards));
  // First, since the nodes do not wait for long.
  if (options_.role == RunRole::primary) TL_TRY(meet_replica(receipts.get()));
  if (outcome_.signal != 0) return {};
  NodeConfig config{options_, NodeRole::primary, plan_.primary, plan_.overprovisioned};
  TL_TRY(auto primary, NodeProcess::start(config, dataset.get(), receipts.get()));
  primary_.end = std::make_unique<NodeProcess>(std::move(primary));
  if (remote_ != nullptr) return {};
  config.role = NodeRole::replica;
  config.cpus = plan_.replica;
  TL_TRY(auto replica, NodeProcess::start(config, dataset.get(), receipts.get()));
  replica_.end = std::make_unique<NodeProcess>(std::move(replica));
  return {};
}

Status RunSession::meet_replica(int receipts_fd) {
  TL_TRY(SideListener listener, SideListener::listen(options_.side_channel));
  tell(fmt::format(
      "waiting for the replica's machine: start there tidelock run --role replica --side-channel {}",
      options_.side_channel));
  const NodeConfig config{options_, NodeRole::replica, {}, false};
  const auto deadline = SteadyClock::now() + std::chrono::nanoseconds(limits_.visitor.ns);
  while (outcome_.signal == 0) {
    if (SteadyClock::now() > deadline) {
      return Error(std::make_error_code(std::errc::timed_out),
                   fmt::format("no replica came to {} in {} s", options_.side_channel,
                               limits_.visitor.ns / 1'000'000'000));
    }
    pollfd entries[2] = {{signals_.get(), POLLIN, 0}, {listener.fd(), POLLIN, 0}};
    ::poll(entries, 2, 200);
    read_signals();
    if (outcome_.signal != 0) break;
    auto channel = listener.accept();
    if (!channel) continue;
    auto remote =
        RemoteNode::meet(std::move(*channel), config, dataset_, receipts_fd, limits_, signals_.get());
    if (remote) {
      remote_ = remote->get();
      replica_.end = *std::move(remote);
      return {};
    }
    if (remote.error().code() == std::errc::operation_canceled) continue;  // the signal is still to be read
    tell(fmt::format("somebody came to {} and is no replica: {}", options_.side_channel,
                     remote.error().message()));
  }
  return {};
}

Result<RunOutcome> RunSession::execute(const ProgressHandler& progress, const NoticeHandler& notice) {
  on_progress_ = progress;
  on_notice_ = notice;
  TL_TRY(start());
  extend_deadline();
  limit_rest(limits_.start);
  while (!over()) {
    const Status stepped = step();
    if (stepped) continue;
    if (!started_) return stepped.error();
    node_failed(stepped.error().message());  // a partial report says more than none
    broken_off_ = true;
    break;
  }
  close_nodes();
  if (!started_ && outcome_.signal != 0)
    return Error::from_errno(ECANCELED, "interrupted before the run had begun");
  // A node that never came up explains itself better than its peer, which only missed it.
  for (Node* node : {&primary_, &replica_}) {
    if (!node->error.empty() && !started_)
      return Error(std::make_error_code(std::errc::operation_not_permitted), node->error);
  }
  if (!started_)
    return Error(std::make_error_code(std::errc::no_child_process),
                 "a node process ended before it was ready");
  if (primary_.result) outcome_.primary = std::move(*primary_.result);
  if (replica_.result) outcome_.replica = std::move(*replica_.result);
  return std::move(outcome_);
}

bool RunSession::over() const {
  if (!primary_.end) return true;  // interrupted before there was any node
  if (!started_) return primary_.gone || replica_.gone || outcome_.signal != 0;
  return (primary_.result || primary_.gone) && (replica_.result || replica_.gone);
}

Status RunSession::step() {
  poll_nodes();
  read_signals();
  if (remote_ != nullptr && !replica_.gone)
    static_cast<void>(remote_->pump());  // receive() tells what is wrong
  for (Node* node : {&primary_, &replica_}) TL_TRY(drain(*node));
  if (!started_ && primary_.ready && replica_.ready) {
    started_ = true;
    limit_rest(limits_.load(options_, dataset_.records().size(), dataset_.bytes()) + limits_.finish);
    command(primary_, {{"command", "go"}});
  }
  if (started_ && !finish_sent_ && (primary_.result || primary_.gone)) finish_replica();
  if (SteadyClock::now() > end_) {
    return Error(std::make_error_code(std::errc::timed_out),
                 "with the other machine this takes longer than it may: does its replica keep up?");
  }
  if (SteadyClock::now() > deadline_) {
    return Error(std::make_error_code(std::errc::timed_out),
                 fmt::format("no progress for {} s: is the machine overloaded, or a node stopped?",
                             kPatience.count()));
  }
  return {};
}

void RunSession::poll_nodes() {
  // A negative descriptor is ignored by poll(2).
  pollfd entries[3] = {{signals_.get(), POLLIN, 0},
                       {primary_.gone ? -1 : primary_.end->fd(), POLLIN, 0},
                       {replica_.gone ? -1 : replica_.end->fd(), POLLIN, 0}};
  const bool pumping = remote_ != nullptr && started_ && !replica_.result;
  const bool buffered = !replica_.gone && replica_.end->buffered();
  constexpr timespec kNoPause{0, 0};
  ::ppoll(entries, 3, buffered ? &kNoPause : pumping ? &kPumpPause : &kWatchPause, nullptr);
}

void RunSession::read_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info)
    on_signal(static_cast<int>(info.ssi_signo));
}

void RunSession::on_signal(int signal) {
  signal_ = signal;
  if (outcome_.signal != 0) {
    // The second one: no more waiting. The nodes die with their handles.
    primary_.gone = replica_.gone = true;
    return;
  }
  outcome_.signal = signal;
  command(primary_, {{"command", "stop"}});
}

Status RunSession::drain(Node& node) {
  for (int taken = 0; taken < kMessagesPerStep && !node.gone; ++taken) {
    auto message = node.end->receive();
    if (!message) {
      node.gone = true;
      const std::string end = node.end->reap(seconds(5));
      if (!started_ && node.error.empty() && &node == &replica_ && remote_ != nullptr)
        node.error = "the replica process " + end;
      if (started_ && (!node.result || !end.empty()))
        node_failed(fmt::format("the {} process {}", node.name, end.empty() ? "ended early" : end));
      return {};
    }
    if (!message->has_value()) return {};
    on_message(node, **message);
  }
  return {};
}

void RunSession::on_message(Node& node, const nlohmann::json& message) {
  const std::string event = message.value("event", "");
  if (event == "ready") {
    node.ready = true;
    for (const auto& text : message.at("notices"))
      tell(fmt::format("{}: {}", node.name, text.get<std::string>()));
    extend_deadline();
  } else if (event == "error") {
    node.error = message.at("message");
    if (started_) node_failed(fmt::format("{}: {}", node.name, node.error));
  } else if (event == "notice") {
    tell(fmt::format("{}: {}", node.name, message.at("text").get<std::string>()));
  } else if (event == "shard") {
    node.shards.push_back(message.at("result"));
    extend_deadline();
  } else if (event == "result") {
    node.result = message;
    (*node.result)["shards"] = node.shards;
    extend_deadline();
  } else if (event == "progress") {
    const auto before = latest_;
    if (&node == &primary_) {
      latest_.phase = message.at("phase");
      latest_.loaded = message.at("loaded");
      latest_.total = message.at("total");
      latest_.ops = message.at("ops");
      latest_.failed = message.at("failed");
    } else {
      latest_.checked = message.at("checked");
      latest_.stale = message.at("stale");
    }
    if (latest_.loaded != before.loaded || latest_.ops != before.ops || latest_.failed != before.failed ||
        latest_.checked != before.checked)
      extend_deadline();
    if (options_.checks > 0 && latest_.checked >= options_.checks && !enough_) {
      enough_ = true;
      command(primary_, {{"command", "stop"}});
    }
    on_progress_(latest_);
  }
}

void RunSession::command(Node& node, nlohmann::json message) {
  if (node.gone || !node.end) return;
  const Status sent = node.end->send(message);
  // How it ended is told by drain(), and at the end by close_nodes(): to them it is not gone yet.
  if (!sent && started_)
    node_failed(fmt::format("the {} process took no command: {}", node.name, sent.error().message()));
}

void RunSession::finish_replica() {
  finish_sent_ = true;
  limit_rest(limits_.finish);
  nlohmann::json lsns = nlohmann::json::array();
  if (primary_.result) {
    for (const auto& shard : primary_.result->at("shards"))
      lsns.push_back({{"shard", shard.at("shard")}, {"lsn", shard.at("last_lsn")}});
  }
  command(replica_, {{"command", "finish"}, {"last_lsns", std::move(lsns)}});
}

void RunSession::close_nodes() {
  if (remote_ != nullptr && !replica_.gone && primary_.result) {
    const Status sent = remote_->send_results(*primary_.result, outcome_.signal != 0, outcome_.failures,
                                              SideWait(limits_.results, signals_.get()));
    if (!sent) node_failed("the replica's machine did not take the results: " + sent.error().message());
  }
  // The replica first: it then ends a link whose peer is alive, and nobody reports a loss.
  for (Node* node : {&replica_, &primary_}) {
    if (!node->end) continue;
    const bool alive = !node->gone;
    if (started_ && alive) command(*node, {{"command", "close"}});
    const bool in_order = started_ && outcome_.signal == 0 && !broken_off_;
    const std::string end = node->end->reap(in_order ? seconds(20) : seconds(2));
    if (started_ && alive && !end.empty()) node_failed(fmt::format("the {} process {}", node->name, end));
  }
}

void RunSession::extend_deadline() { deadline_ = SteadyClock::now() + kPatience; }

/// Of a run on two machines. Of one machine both nodes are ours, and end by themselves.
void RunSession::limit_rest(Duration duration) {
  if (remote_ != nullptr) end_ = SteadyClock::now() + std::chrono::nanoseconds(duration.ns);
}

void RunSession::node_failed(std::string text) {
  if (!keep_line(outcome_.failures, std::move(text))) return;
  on_notice_(outcome_.failures.back());
  static_cast<void>(keep_line(outcome_.notices, outcome_.failures.back()));
}

void RunSession::tell(std::string text) {
  if (keep_line(outcome_.notices, std::move(text))) on_notice_(outcome_.notices.back());
}

}  // namespace tidelock::tools
