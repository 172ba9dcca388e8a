#include "sim_dialer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <tidelock/base/check.h>
#include <tidelock/reactor/fiber.h>

#include "sim_link.h"

namespace tidelock::sim {

SimDialer::SimDialer(const Scene& scene, PrimaryHost& primary,
                     std::vector<std::unique_ptr<ReplicaHost>>& replicas)
    : scene_(scene),
      primary_(primary),
      replicas_(replicas),
      target_(scene.world.add(*this)),
      peers_(replicas.size()) {
  for (std::size_t i = 0; i < replicas.size(); ++i) ends_.push_back(std::make_unique<End>(*this, i));
}

SimDialer::~SimDialer() { scene_.world.remove(target_); }

// ---- the replica's side ---------------------------------------------------------------------------------

Result<ConnectedPeer> SimDialer::dial(std::size_t replica, const Hello& ours, Instant deadline) {
  if (stopped_) return ReactorErrc::closed;
  Peer& peer = peers_[replica];
  TL_ASSERT(peer.waiting == nullptr, "a replica dials once at a time");
  Attempt attempt;
  attempt.number = ++peer.attempts;
  send(hello_comes, hello_of(replica, attempt, ours), peer.duplicate_hello);
  peer.waiting = &attempt;
  const Wakeup wakeup = attempt.answered.wait(deadline);
  peer.waiting = nullptr;
  if (attempt.outcome.has_value()) return *std::move(attempt.outcome);
  if (wakeup == Wakeup::cancelled) return ReactorErrc::cancelled;
  return Error(ReactorErrc::deadline_exceeded, "the primary does not answer");
}

SimDialer::Message SimDialer::hello_of(std::size_t replica, const Attempt& attempt, Hello ours) {
  if (scene_.planted.apply != nullptr) ours.last_lsn = scene_.planted.apply->resume_from(ours.last_lsn);
  Message message;
  message.replica = replica;
  message.attempt = attempt.number;
  message.bytes.resize(kHelloBytes);
  encode_hello(ours, std::span<std::byte, kHelloBytes>(message.bytes.data(), kHelloBytes));
  if (const std::uint32_t bits = std::exchange(peers_[replica].corrupt_bits, 0U); bits > 0) {
    Random random = stream("hello damage", replica, attempt.number);
    const std::vector<std::byte> right = message.bytes;
    for (std::uint32_t i = 0; i < bits; ++i) message.bytes[random.below(kHelloBytes)] ^= std::byte{0x10};
    message.corrupted = right != message.bytes;
  }
  return message;
}

void SimDialer::send(Kind kind, Message message, std::optional<Duration>& again) {
  Random random = stream(kind == hello_comes ? "hello" : "answer", message.replica, message.attempt);
  const Instant arrives = scene_.world.now() + draw_magnitude(random, microseconds(2), milliseconds(1));
  const auto second = std::exchange(again, std::nullopt);
  messages_.push_back(std::make_shared<Message>(message));
  scene_.world.schedule(arrives, target_, kind, messages_.size() - 1);
  if (!second) return;
  message.again = true;
  messages_.push_back(std::make_shared<Message>(std::move(message)));
  scene_.world.schedule(arrives + *second, target_, kind, messages_.size() - 1);
}

bool SimDialer::blocked(std::size_t replica) {
  Peer& peer = peers_[replica];
  if (scene_.world.now() >= peer.blocked_until) return false;
  if (!std::exchange(peer.blocked_hit, true)) scene_.counts.hit(FaultKind::partition);
  return true;
}

// ---- the primary's side ---------------------------------------------------------------------------------

void SimDialer::take_hello(const std::shared_ptr<Message>& message) {
  if (blocked(message->replica) || !primary_.up() || stopped_) return;
  primary_.node().core().post([this, message] { judge(*message); });
}

void SimDialer::judge(const Message& message) {
  const auto theirs = decode_hello(message.bytes);
  if (!theirs) {  // skipped: who sent it hears nothing
    if (message.corrupted) scene_.counts.hit(FaultKind::corrupt);
    return;
  }
  if (message.again) scene_.counts.hit(FaultKind::duplicate_connect);
  const tidelock::Verdict verdict = primary_.life().admission->judge(*theirs);
  check(*theirs, verdict);
  if (const auto* const refusal = std::get_if<Refusal>(&verdict)) {
    Message answer;
    answer.replica = message.replica;
    answer.attempt = message.attempt;
    answer.bytes.resize(kRefusalBytes);
    encode_refusal(*refusal, std::span<std::byte, kRefusalBytes>(answer.bytes.data(), kRefusalBytes));
    return send(answer_comes, std::move(answer), peers_[message.replica].duplicate_answer);
  }
  auto arrival = std::make_shared<Arrival>();
  arrival->replica = message.replica;
  arrival->attempt = message.attempt;
  arrival->again = message.again;
  arrival->incarnation = primary_.node().incarnation();
  arrival->theirs = *theirs;
  arrival->ours = std::get<Hello>(verdict);
  const Duration later = delay_of("accept", *arrival);
  arrivals_.push_back(std::move(arrival));
  if (scene_.planted.attaches_before_answer) {
    make_wire(*arrivals_.back());
    attach(*arrivals_.back());
  }
  scene_.world.schedule(scene_.world.now() + later, target_, link_made, arrivals_.size() - 1);
}

/// Who is left behind, refused or given a snapshot for it, is so by the oracle's own sum.
void SimDialer::check(const Hello& theirs, const tidelock::Verdict& verdict) const {
  const auto* const refusal = std::get_if<Refusal>(&verdict);
  const bool behind = refusal != nullptr ? refusal->reason == RefusalReason::behind_log
                                         : std::get<Hello>(verdict).flags.snapshot;
  if (!behind) return;
  const PrimaryLife& life = primary_.life();
  scene_.check("excused", "replica " + std::to_string(theirs.node),
               check_left_behind(*life.line, theirs.last_lsn, life.primary->log().capacity(),
                                 life.primary->fragmenting() ? kLargePutBytesMost : 0));
}

Duration SimDialer::delay_of(const char* purpose, const Arrival& arrival) const {
  Random random =
      stream(purpose, arrival.replica, arrival.attempt | std::uint64_t{arrival.again ? 1U : 0U} << 47);
  return draw_magnitude(random, microseconds(1), milliseconds(1));
}

bool SimDialer::judged_by_this_life(const Arrival& arrival) const {
  return primary_.up() && primary_.node().incarnation() == arrival.incarnation;
}

void SimDialer::make_wire(Arrival& arrival) {
  PrimaryLife& life = primary_.life();
  Peer& peer = peers_[arrival.replica];
  const std::uint64_t number = std::uint64_t{arrival.replica + 1} << 20 | ++peer.wires_made;
  const FrameContext context{arrival.ours.history, arrival.ours.generation, ShardId{}};
  arrival.wire = Wire::make(scene_.world, scene_.counts, number, context, scene_.shape.wire);
  arrival.wire->await_answer();
  arrival.wire->set_peer({arrival.theirs.node, arrival.ours.flags.snapshot});
  arrival.wire->watch({[line = life.line, node = arrival.theirs.node](Lsn lsn) { line->received(node, lsn); },
                       [this, line = life.line](Lsn commit) {
                         line->told(commit);
                         scene_.check("one_commit", "node 1 tells",
                                      check_commit(*line, Lsn{}, commit, replicas_to_commit(scene_.shape)));
                       }});
  std::erase_if(peer.wires, [](const auto& wire) { return wire.expired(); });
  peer.wires.push_back(arrival.wire);
  arrival.link = arrival.wire->take(Side::primary, &primary_.node().core());
}

/// The answer leaves; the link reaches the primary's core some time after that.
void SimDialer::accept(std::size_t index) {
  Arrival& arrival = *arrivals_[index];
  if (!judged_by_this_life(arrival) || stopped_) return arrivals_[index].reset();
  if (arrival.wire == nullptr) make_wire(arrival);
  Message answer;
  answer.replica = arrival.replica;
  answer.attempt = arrival.attempt;
  answer.bytes.resize(kHelloBytes);
  encode_hello(arrival.ours, std::span<std::byte, kHelloBytes>(answer.bytes.data(), kHelloBytes));
  answer.wire = arrival.wire;
  arrival.wire->answered();
  send(answer_comes, std::move(answer), peers_[arrival.replica].duplicate_answer);
  if (arrival.link == nullptr) return arrivals_[index].reset();
  scene_.world.schedule(scene_.world.now() + delay_of("hand over", arrival), target_, hand_over, index);
}

/// Of another life, or too late: its link goes with the arrival. So it does with a task that a death drops.
void SimDialer::take_over(std::shared_ptr<Arrival> arrival) {
  if (!judged_by_this_life(*arrival) || stopped_) return;
  primary_.node().core().post([this, arrival = std::move(arrival)] { attach(*arrival); });
}

void SimDialer::attach(Arrival& arrival) {
  // What fails has closed the link, and the peer hears of that.
  const Status attached =
      primary_.life().admission->attach(std::move(arrival.link), arrival.theirs, arrival.ours);
  if (attached && arrival.ours.flags.snapshot && snapshot_begins_) snapshot_begins_();
}

// ---- the answer -----------------------------------------------------------------------------------------

bool SimDialer::waited_for(const Message& message) const {
  const Attempt* const waiting = peers_[message.replica].waiting;
  return waiting != nullptr && waiting->number == message.attempt && !waiting->outcome.has_value();
}

void SimDialer::take_answer(const std::shared_ptr<Message>& message) {
  ReplicaHost& host = *replicas_[message->replica];
  if (blocked(message->replica)) return;
  if (message->again) scene_.counts.hit(FaultKind::duplicate_connect);
  if (!host.up() || stopped_ || !waited_for(*message)) return discard(*message);
  host.node().core().post([this, message] { give(message); });
}

/// An answer that nobody waits for: its wire ends at once, unless it is the second copy of one that was
/// taken.
void SimDialer::discard(Message& message) {
  const auto wire = std::exchange(message.wire, nullptr);
  if (wire == nullptr || wire->number() == peers_[message.replica].chosen || wire->taken(Side::replica))
    return;
  wire->take(Side::replica, nullptr)->close("nobody waits for this link");
}

/// To the fiber that waits for it.
void SimDialer::give(const std::shared_ptr<Message>& message) {
  if (!waited_for(*message)) return discard(*message);
  ReplicaHost& host = *replicas_[message->replica];
  Attempt& attempt = *peers_[message->replica].waiting;
  if (message->bytes.size() == kRefusalBytes) {
    const auto refusal = decode_refusal(message->bytes);
    TL_ASSERT(refusal, "refusals arrive as they were sent");
    if (refusal->reason != RefusalReason::busy) host.life().refusal = *refusal;
    attempt.outcome = to_error(*refusal);
  } else {
    const auto theirs = decode_hello(message->bytes);
    TL_ASSERT(theirs, "answers arrive as they were sent");
    const auto wire = std::exchange(message->wire, nullptr);
    TL_ASSERT(wire != nullptr && !wire->taken(Side::replica), "an answer that is waited for has a wire");
    peers_[message->replica].chosen = wire->number();
    attempt.outcome = ConnectedPeer{wire->take(Side::replica, &host.node().core()), *theirs};
  }
  attempt.answered.notify_one();
}

// ---- deaths and faults ----------------------------------------------------------------------------------

std::shared_ptr<Wire> SimDialer::wire(std::size_t replica) const {
  const auto& wires = peers_[replica].wires;
  for (auto it = wires.rbegin(); it != wires.rend(); ++it) {
    if (auto alive = it->lock()) return alive;
  }
  return nullptr;
}

std::size_t SimDialer::wires() const {
  std::size_t count = 0;
  for (const Peer& peer : peers_) {
    count += static_cast<std::size_t>(std::count_if(peer.wires.begin(), peer.wires.end(),
                                                    [](const auto& wire) { return !wire.expired(); }));
  }
  return count;
}

void SimDialer::primary_dies() {
  for (const Peer& peer : peers_) {
    for (const auto& weak : peer.wires) {
      if (const auto wire = weak.lock()) wire->die(Side::primary);
    }
  }
}

void SimDialer::replica_dies(std::size_t replica) {
  for (const auto& weak : peers_[replica].wires) {
    if (const auto wire = weak.lock()) wire->die(Side::replica);
  }
}

void SimDialer::duplicate(std::size_t replica, bool answer, Duration later) {
  (answer ? peers_[replica].duplicate_answer : peers_[replica].duplicate_hello) = later;
}

void SimDialer::corrupt(std::size_t replica, std::uint32_t bits) { peers_[replica].corrupt_bits = bits; }

void SimDialer::block(std::size_t replica, Instant until) {
  peers_[replica].blocked_until = std::max(peers_[replica].blocked_until, until);
  peers_[replica].blocked_hit = false;
}

void SimDialer::heal() {
  for (Peer& peer : peers_) {
    peer.duplicate_hello = peer.duplicate_answer = std::nullopt;
    peer.corrupt_bits = 0;
    peer.blocked_until = Instant{};
    for (const auto& weak : peer.wires) {
      if (const auto wire = weak.lock()) wire->heal();
    }
  }
}

void SimDialer::on_event(const Event& event) {
  switch (event.kind) {
    case hello_comes:
      return take_hello(std::exchange(messages_[event.a], nullptr));
    case link_made:
      return accept(event.a);
    case hand_over:
      return take_over(std::exchange(arrivals_[event.a], nullptr));
    case answer_comes:
      return take_answer(std::exchange(messages_[event.a], nullptr));
    default:
      TL_ASSERT(false, "an event that no dialer has");
  }
}

std::string SimDialer::describe(const Event& event) const {
  constexpr const char* kNames[] = {"hello arrives", "link is made", "link is handed over", "answer arrives"};
  return fmt::format("dialer: {} {}", kNames[event.kind], event.a);
}

}  // namespace tidelock::sim
