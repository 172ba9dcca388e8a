#include "pingpong_course.h"

#include <fmt/format.h>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>

namespace tidelock::tools {
namespace {

/// The numbers of a control frame, as this protocol uses them.
ControlFrame frame_of(std::uint64_t number, std::uint32_t bytes) {
  ControlFrame frame;
  frame.history = ping_context().history;
  frame.shard = ping_context().shard;
  frame.received_lsn = {number};
  frame.applied_lsn = {bytes};
  return frame;
}

Error broken(std::string text) { return Error(ReplicationErrc::malformed, std::move(text)); }

}  // namespace

Status PingCourse::start(Reactor& reactor) {
  reactor_ = &reactor;
  heard_ = reactor.refresh_now();
  TL_TRY(lane_.start(reactor));
  reactor.add_source(*this);
  Status begun = begin();
  if (!begun) reactor.remove_source(*this);
  return begun;
}

std::uint32_t PingCourse::poll(std::uint32_t budget) {
  if (done_.load(std::memory_order_relaxed)) return 0;
  std::uint32_t found = lane_.poll(budget);
  const auto stepped = step();
  if (!stepped) {
    finish(stepped.error());
    return 1;
  }
  found += *stepped ? 1 : 0;
  if (done_.load(std::memory_order_relaxed)) return found;
  if (stop_.load(std::memory_order_relaxed)) {
    say_goodbye();
    finish(std::nullopt);
  } else if (reactor_->now() - heard_ > patience_) {
    finish(Error(ReactorErrc::deadline_exceeded,
                 fmt::format("the other side has said nothing for {} s", patience_.ns / 1'000'000'000)));
  }
  return found;
}

bool PingCourse::has_work() const {
  return !done_.load(std::memory_order_relaxed) &&
         (stop_.load(std::memory_order_relaxed) || lane_.has_work());
}

void PingCourse::finish(std::optional<Error> error) {
  lane_.flush();
  error_ = std::move(error);
  lane_.close(error_ ? error_->message() : "the ping-pong is over");
  done_.store(true, std::memory_order_release);
}

// ---- the server -----------------------------------------------------------------------------------------

Status PingServer::check(const ControlFrame& asked) const {
  if (asked.received_lsn.value != answers() + 1) {
    return broken(fmt::format("the client asks for answer {} where {} is due", asked.received_lsn.value,
                              answers() + 1));
  }
  const std::uint64_t bytes = asked.applied_lsn.value;
  const bool legal = terms_.verb == PingVerb::send
                         ? bytes == 0
                         : bytes >= kPingBytesMin && bytes <= terms_.bytes_max && bytes <= memory_.size() &&
                               bytes % kEntryAlignment == 0;
  if (legal) return {};
  return broken(fmt::format("the client asks for {} bytes; it had agreed to at most {}, in whole {}", bytes,
                            terms_.bytes_max, kEntryAlignment));
}

Result<bool> PingServer::answer() {
  const std::uint64_t number = asked_.received_lsn.value;
  bool sent = false;
  if (terms_.verb == PingVerb::send) {
    TL_TRY(sent, lane_.send(frame_of(number, 0)));
  } else {
    FrameHeader header;
    header.history = ping_context().history;
    header.shard = ping_context().shard;
    header.entries = 1;
    header.first_lsn = header.last_lsn = {number};
    TL_TRY(sent, lane_.publish(header, memory_.first(static_cast<std::size_t>(asked_.applied_lsn.value))));
  }
  if (!sent) return false;
  lane_.flush();  // not at the end of the turn: everything else can wait
  owes_answer_ = false;
  count_answer();
  return true;
}

/// A client that is interrupted says goodbye behind a question and goes at once: the answer then finds
/// nobody, and the goodbye tells why.
Result<bool> PingServer::answer_or_part() {
  auto answered = answer();
  if (answered) return answered;
  owes_answer_ = false;
  const auto next = lane_.take_control(asked_);
  if (!next || !*next || !asked_.closing) return answered.error();
  finish(std::nullopt);
  return true;
}

Result<bool> PingServer::step() {
  if (owes_answer_) return answer_or_part();
  TL_TRY(owes_answer_, lane_.take_control(asked_));
  if (!owes_answer_) return false;
  if (asked_.closing) {
    finish(std::nullopt);
    return true;
  }
  TL_TRY(check(asked_));
  TL_TRY([[maybe_unused]] const bool sent, answer_or_part());
  heard(reactor_->now());
  return true;
}

// ---- the client -----------------------------------------------------------------------------------------

PingClient::PingClient(PingLane& lane, Duration patience, const PingPlan& plan)
    : PingCourse(lane, patience), plan_(plan) {
  const std::uint64_t expected = plan_.duration.ns > 0 ? PingSamples::kKeptMax : plan_.iterations;
  for (std::size_t i = 0; i < plan_.sizes.size(); ++i) samples_.emplace_back(expected);
}

std::vector<PingRow> PingClient::rows() const {
  std::vector<PingRow> rows;
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    if (samples_[i].count() > 0) rows.push_back(samples_[i].row(plan_.sizes[i]));
  }
  return rows;
}

Status PingClient::begin() {
  warmup_left_ = plan_.warmup;
  asked_at_ = reactor_->refresh_now();
  size_ends_ = asked_at_ + plan_.duration;
  ++number_;
  TL_TRY(const bool sent, ask());
  owed_ = !sent;
  return {};
}

Result<bool> PingClient::ask() {
  ControlFrame frame = frame_of(number_, plan_.verb == PingVerb::send ? 0 : plan_.sizes[at_]);
  TL_TRY(const bool sent, lane_.send(frame));
  if (sent) lane_.flush();  // not at the end of the turn: everything else can wait
  return sent;
}

/// The answer to the last question.
Result<bool> PingClient::answered() {
  if (plan_.verb == PingVerb::send) {
    ControlFrame frame;
    TL_TRY(const bool came, lane_.take_control(frame));
    if (!came) return false;
    if (!frame.closing && frame.received_lsn.value == number_) return true;
    return broken("the server's answer is not the one that was asked for");
  }
  FrameHeader header;
  TL_TRY(const bool came, lane_.take_batch(header));
  if (!came) return false;
  if (header.last_lsn.value == number_ && header.payload_bytes == plan_.sizes[at_]) return true;
  return broken("the server's answer is not the one that was asked for");
}

bool PingClient::size_done(Instant now) const {
  if (warmup_left_ > 0) return false;
  // The answer that is being taken in is one more.
  return plan_.duration.ns > 0 ? now >= size_ends_ : samples_[at_].count() + 1 >= plan_.iterations;
}

/// False: that was the last one.
bool PingClient::next_size(Instant now) {
  if (++at_ == plan_.sizes.size()) return false;
  warmup_left_ = plan_.warmup;
  size_ends_ = now + plan_.duration;
  return true;
}

Result<bool> PingClient::step() {
  if (owed_) {
    TL_TRY(const bool sent, ask());
    owed_ = !sent;
    return sent;
  }
  TL_TRY(const bool came, answered());
  if (!came) return false;
  const Instant now = reactor_->refresh_now();
  const std::uint64_t took_ns = static_cast<std::uint64_t>((now - asked_at_).ns);
  const bool counted = warmup_left_ == 0;
  PingSamples& into = samples_[at_];
  const bool last = size_done(now) && !next_size(now);
  if (!last) {
    asked_at_ = now;
    ++number_;
    TL_TRY(const bool sent, ask());
    owed_ = !sent;
  }
  // What follows happens while the next round trip is on its way.
  count_answer();
  heard(now);
  if (counted) {
    into.add(took_ns);
  } else if (--warmup_left_ == 0) {
    size_ends_ = now + plan_.duration;
  }
  if (last) {
    say_goodbye();
    finish(std::nullopt);
  }
  return true;
}

void PingClient::say_goodbye() {
  ControlFrame goodbye = frame_of(number_ + 1, 0);
  goodbye.closing = true;
  // If it finds no room the server sees the link close, which it reports.
  static_cast<void>(lane_.send(goodbye));
}

}  // namespace tidelock::tools
