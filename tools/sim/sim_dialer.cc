#include "sim_dialer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include <tidelock/base/check.h>

#include "sim_link.h"

namespace tidelock::sim {
namespace {

constexpr Duration kAttemptTimeout = seconds(1);
constexpr Duration kBackOffMin = milliseconds(50);
constexpr Duration kBackOffMax = seconds(2);

}  // namespace

SimDialer::SimDialer(const Scene& scene, PrimaryHost& primary,
                     std::vector<std::unique_ptr<ReplicaHost>>& replicas)
    : scene_(scene),
      primary_(primary),
      replicas_(replicas),
      target_(scene.world.add(*this)),
      peers_(replicas.size()) {}

SimDialer::~SimDialer() { scene_.world.remove(target_); }

// ---- the replica's side ---------------------------------------------------------------------------------

void SimDialer::started(std::size_t replica) {
  Peer& peer = peers_[replica];
  peer.dialing = peer.given_up = false;
  peer.refusal = RefusalReason::none;
  peer.failures = 0;
  ++peer.attempt;
  replicas_[replica]->life().replica->on_link_lost([this, replica](const std::string&) {
    replicas_[replica]->life().applier->set_wire(nullptr);
    retry(replica);
  });
  scene_.world.schedule(scene_.world.now() + microseconds(100), target_, dial, replica, peer.attempt);
}

void SimDialer::retry(std::size_t replica) {
  Peer& peer = peers_[replica];
  peer.dialing = false;
  ++peer.attempt;
  const Duration most =
      std::min(kBackOffMax, kBackOffMin * (std::int64_t{1} << std::min(peer.failures++, 6U)));
  Random random = stream("back-off", replica, peer.attempt);
  scene_.world.schedule(scene_.world.now() + draw(random, kBackOffMin, most), target_, dial, replica,
                        peer.attempt);
}

void SimDialer::attempt(std::size_t replica) {
  Peer& peer = peers_[replica];
  ReplicaHost& host = *replicas_[replica];
  if (stopped_ || !host.up() || peer.given_up || peer.dialing || host.life().replica->connected()) return;
  peer.dialing = true;
  Hello ours;
  ours.role = NodeRole::replica;
  ours.node = host.node().number();
  ours.shard_count = 1;
  ours.history = host.life().replica->history();
  ours.epoch = host.life().replica->epoch();
  ours.last_lsn = host.life().replica->applied_lsn();
  if (scene_.planted.apply != nullptr) ours.last_lsn = scene_.planted.apply->resume_from(ours.last_lsn);
  Message message;
  message.replica = replica;
  message.attempt = peer.attempt;
  message.bytes.resize(kHelloBytes);
  encode_hello(ours, std::span<std::byte, kHelloBytes>(message.bytes.data(), kHelloBytes));
  if (const std::uint32_t bits = std::exchange(peer.corrupt_bits, 0U); bits > 0) {
    Random random = stream("hello damage", replica, peer.attempt);
    for (std::uint32_t i = 0; i < bits; ++i) message.bytes[random.below(kHelloBytes)] ^= std::byte{0x10};
    std::array<std::byte, kHelloBytes> right{};
    encode_hello(ours, right);
    message.corrupted = !std::equal(right.begin(), right.end(), message.bytes.begin());
  }
  send(hello_comes, std::move(message), peer.duplicate_hello);
  scene_.world.schedule(scene_.world.now() + kAttemptTimeout, target_, attempt_over, replica, peer.attempt);
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
  primary_.node().core().post([this, message] { admit(message); });
}

void SimDialer::admit(const std::shared_ptr<Message>& message) {
  const auto theirs = decode_hello(message->bytes);
  if (!theirs) {  // skipped: who sent it hears nothing
    if (message->corrupted) scene_.counts.hit(FaultKind::corrupt);
    return;
  }
  if (message->again) scene_.counts.hit(FaultKind::duplicate_connect);
  const auto refusal = check(*theirs);
  if (!refusal) return accept(*message, *theirs);
  Message answer;
  answer.replica = message->replica;
  answer.attempt = message->attempt;
  answer.bytes.resize(kRefusalBytes);
  encode_refusal(*refusal, std::span<std::byte, kRefusalBytes>(answer.bytes.data(), kRefusalBytes));
  send(answer_comes, std::move(answer), peers_[message->replica].duplicate_answer);
}

std::optional<Refusal> SimDialer::check(const Hello& theirs) const {
  const PrimaryLife& life = primary_.life();
  const Log& log = life.primary->log();
  if (theirs.history != HistoryId{} && theirs.history != life.line->id())
    return Refusal{RefusalReason::history, life.line->id().value, theirs.history.value};
  if (theirs.epoch > life.epoch)
    return Refusal{RefusalReason::epoch, life.epoch.counter, theirs.epoch.counter};
  if (theirs.last_lsn > life.primary->last_lsn())
    return Refusal{RefusalReason::malformed, life.primary->last_lsn().value, theirs.last_lsn.value};
  if (theirs.last_lsn.next() < log.first_lsn()) {
    scene_.check("excused", "replica " + std::to_string(theirs.node),
                 check_left_behind(*life.line, theirs.last_lsn, log.capacity(),
                                   life.primary->fragmenting() ? kLargePutBytesMost : 0));
    return Refusal{RefusalReason::behind_log, log.first_lsn().value, theirs.last_lsn.value};
  }
  return std::nullopt;
}

void SimDialer::accept(const Message& message, const Hello& theirs) {
  PrimaryLife& life = primary_.life();
  Peer& peer = peers_[message.replica];
  Hello ours;
  ours.role = NodeRole::primary;
  ours.node = primary_.node().number();
  ours.shard_count = 1;
  ours.history = life.line->id();
  ours.epoch = life.epoch;
  ours.generation = {++life.generations};
  ours.last_lsn = life.primary->last_lsn();
  ours.first_lsn = life.primary->log().first_lsn();
  ours.ring_bytes = scene_.shape.wire.ring_bytes;
  Message answer;
  answer.replica = message.replica;
  answer.attempt = message.attempt;
  answer.bytes.resize(kHelloBytes);
  encode_hello(ours, std::span<std::byte, kHelloBytes>(answer.bytes.data(), kHelloBytes));
  const std::uint64_t number = std::uint64_t{message.replica + 1} << 20 | ++peer.wires_made;
  answer.wire = Wire::make(scene_.world, scene_.counts, number,
                           FrameContext{ours.history, ours.generation, ShardId{}}, scene_.shape.wire);
  answer.wire->watch({[line = life.line, node = theirs.node](Lsn lsn) { line->received(node, lsn); },
                      [this, line = life.line](Lsn commit) {
                        line->told(commit);
                        scene_.check("one_commit", "node 1 tells", check_commit(*line, Lsn{}, commit));
                      }});
  std::erase_if(peer.wires, [](const auto& wire) { return wire.expired(); });
  peer.wires.push_back(answer.wire);
  auto link = answer.wire->take(Side::primary, &primary_.node().core());
  send(answer_comes, std::move(answer), peer.duplicate_answer);
  TL_ASSERT(link->start(primary_.node().core().reactor()), "a simulated link starts");
  static_cast<void>(life.primary->attach(std::move(link), theirs.node, theirs.last_lsn));
}

// ---- the answer -----------------------------------------------------------------------------------------

void SimDialer::take_answer(const std::shared_ptr<Message>& message) {
  Peer& peer = peers_[message->replica];
  ReplicaHost& host = *replicas_[message->replica];
  if (blocked(message->replica)) return;
  if (message->again) scene_.counts.hit(FaultKind::duplicate_connect);
  if (!host.up() || stopped_ || !peer.dialing || message->attempt != peer.attempt) return discard(*message);
  peer.dialing = false;
  if (message->wire != nullptr) peer.chosen = message->wire->number();
  host.node().core().post([this, message] { follow(message); });
}

/// An answer that nobody waits for: its wire ends at once, unless it is the second copy of one that was
/// taken.
void SimDialer::discard(Message& message) {
  const auto wire = std::exchange(message.wire, nullptr);
  if (wire == nullptr || wire->number() == peers_[message.replica].chosen || wire->taken(Side::replica))
    return;
  wire->take(Side::replica, nullptr)->close("nobody waits for this link");
}

void SimDialer::follow(const std::shared_ptr<Message>& message) {
  ReplicaHost& host = *replicas_[message->replica];
  if (message->bytes.size() == kRefusalBytes) {
    const auto refusal = decode_refusal(message->bytes);
    TL_ASSERT(refusal, "refusals arrive as they were sent");
    return give_up(message->replica, *refusal);
  }
  const auto theirs = decode_hello(message->bytes);
  TL_ASSERT(theirs, "answers arrive as they were sent");
  const auto wire = std::exchange(message->wire, nullptr);
  TL_ASSERT(wire != nullptr && !wire->taken(Side::replica), "an answer that is waited for has a wire");
  Line* const line = scene_.oracle.find(theirs->history);
  TL_ASSERT(line != nullptr, "only primaries begin histories");
  auto link = wire->take(Side::replica, &host.node().core());
  TL_ASSERT(link->start(host.node().core().reactor()), "a simulated link starts");
  host.life().applier->follow(*line);
  host.life().applier->set_wire(wire);
  if (host.life().replica->attach(std::move(link), theirs->history, theirs->epoch)) {
    peers_[message->replica].failures = 0;
  } else {
    give_up(message->replica,
            {RefusalReason::history, theirs->history.value, host.life().replica->history().value});
  }
}

void SimDialer::give_up(std::size_t replica, const Refusal& refusal) {
  ReplicaHost& host = *replicas_[replica];
  scene_.check("refused", host.name(), check_refusal(refusal, host.life().replica->history()));
  peers_[replica].given_up = true;
  peers_[replica].refusal = refusal.reason;
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
  ++peers_[replica].attempt;
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
    case dial:
      if (event.b == peers_[event.a].attempt) attempt(event.a);
      return;
    case hello_comes:
      return take_hello(std::exchange(messages_[event.a], nullptr));
    case answer_comes:
      return take_answer(std::exchange(messages_[event.a], nullptr));
    case attempt_over: {
      const Peer& peer = peers_[event.a];
      if (peer.dialing && event.b == peer.attempt) retry(event.a);
      return;
    }
    default:
      TL_ASSERT(false, "an event that no dialer has");
  }
}

std::string SimDialer::describe(const Event& event) const {
  constexpr const char* kNames[] = {"dials", "hello arrives", "answer arrives", "attempt is over"};
  const bool by_message = event.kind == hello_comes || event.kind == answer_comes;
  return fmt::format("dialer: {} {} {}", by_message ? "message" : "replica", event.a, kNames[event.kind]);
}

}  // namespace tidelock::sim
