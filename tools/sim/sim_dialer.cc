#include "sim_dialer.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include <tidelock/base/check.h>
#include <tidelock/reactor/fiber.h>

#include "sim_link.h"

namespace tidelock::sim {

SimDialer::SimDialer(const Scene& scene, std::vector<DialHost*> hosts, DialWatcher& watcher)
    : scene_(scene),
      hosts_(std::move(hosts)),
      watcher_(watcher),
      target_(scene.world.add(*this)),
      armed_(hosts_.size()) {
  for (std::size_t i = 0; i < hosts_.size(); ++i) ends_.push_back(std::make_unique<End>(*this, i));
  ways_.resize(hosts_.size() * (hosts_.size() - 1));
  for (std::size_t from = 0; from < hosts_.size(); ++from) {
    for (std::size_t to = 0; to < hosts_.size(); ++to) {
      if (from == to) continue;
      Way& way = ways_[way_of(from, to)];
      way.from = from;
      way.to = to;
    }
  }
}

SimDialer::~SimDialer() { scene_.world.remove(target_); }

std::size_t SimDialer::way_of(std::size_t from, std::size_t to) const {
  return to * (hosts_.size() - 1) + (from < to ? from : from - 1);
}

// ---- who dials ------------------------------------------------------------------------------------------

Result<ConnectedPeer> SimDialer::dial(std::size_t from, const std::string& address, const Hello& ours,
                                      Instant deadline, std::optional<Refusal>* refusal) {
  if (stopped_) return ReactorErrc::closed;
  std::size_t to = 0;
  while (to < hosts_.size() && address_of(static_cast<std::uint32_t>(to + 1)) != address) ++to;
  TL_ASSERT(to < hosts_.size() && to != from, "an address of another node");
  const std::size_t index = way_of(from, to);
  Way& way = ways_[index];
  TL_ASSERT(way.waiting == nullptr, "a node dials another once at a time");
  Attempt attempt;
  attempt.number = ++way.attempts;
  send(hello_comes, hello_of(index, attempt, ours), armed_[from].duplicate_hello);
  way.waiting = &attempt;
  const Wakeup wakeup = attempt.answered.wait(deadline);
  way.waiting = nullptr;
  if (refusal != nullptr) *refusal = attempt.refusal;
  if (attempt.outcome.has_value()) return *std::move(attempt.outcome);
  if (wakeup == Wakeup::cancelled) return ReactorErrc::cancelled;
  return Error(ReactorErrc::deadline_exceeded, address + " does not answer");
}

SimDialer::Message SimDialer::hello_of(std::size_t way, const Attempt& attempt, Hello ours) {
  if (scene_.planted.apply != nullptr) ours.last_lsn = scene_.planted.apply->resume_from(ours.last_lsn);
  Message message;
  message.way = way;
  message.attempt = attempt.number;
  message.bytes.resize(kHelloBytes);
  encode_hello(ours, std::span<std::byte, kHelloBytes>(message.bytes.data(), kHelloBytes));
  if (const std::uint32_t bits = std::exchange(armed_[ways_[way].from].corrupt_bits, 0U); bits > 0) {
    Random random = stream("hello damage", way, attempt.number);
    const std::vector<std::byte> right = message.bytes;
    for (std::uint32_t i = 0; i < bits; ++i) message.bytes[random.below(kHelloBytes)] ^= std::byte{0x10};
    message.corrupted = right != message.bytes;
  }
  return message;
}

void SimDialer::send(Kind kind, Message message, std::optional<Duration>& again) {
  Random random = stream(kind == hello_comes ? "hello" : "answer", message.way, message.attempt);
  const Instant arrives = scene_.world.now() + draw_magnitude(random, microseconds(2), milliseconds(1));
  const auto second = std::exchange(again, std::nullopt);
  messages_.push_back(std::make_shared<Message>(message));
  scene_.world.schedule(arrives, target_, kind, messages_.size() - 1);
  if (!second) return;
  message.again = true;
  messages_.push_back(std::make_shared<Message>(std::move(message)));
  scene_.world.schedule(arrives + *second, target_, kind, messages_.size() - 1);
}

bool SimDialer::blocked(std::size_t way) {
  Way& its = ways_[way];
  if (scene_.world.now() >= its.blocked_until) return false;
  if (!std::exchange(its.blocked_hit, true)) scene_.counts.hit(FaultKind::partition);
  return true;
}

// ---- who is dialed --------------------------------------------------------------------------------------

void SimDialer::take_hello(const std::shared_ptr<Message>& message) {
  Node& node = asked(message->way);
  if (blocked(message->way) || !node.up() || stopped_) return;
  node.core().post([this, message] { judge(*message); });
}

void SimDialer::judge(const Message& message) {
  const auto theirs = decode_hello(message.bytes);
  if (!theirs) {  // skipped: who sent it hears nothing
    if (message.corrupted) scene_.counts.hit(FaultKind::corrupt);
    return;
  }
  if (message.again) scene_.counts.hit(FaultKind::duplicate_connect);
  const Way& way = ways_[message.way];
  Door* const door = hosts_[way.to]->door();
  if (door == nullptr) return;
  const tidelock::Verdict verdict = door->judge(*theirs);
  watcher_.judged(way.to, *theirs, verdict);
  if (const auto* const refusal = std::get_if<Refusal>(&verdict)) {
    Message answer;
    answer.way = message.way;
    answer.attempt = message.attempt;
    answer.bytes.resize(kRefusalBytes);
    encode_refusal(*refusal, std::span<std::byte, kRefusalBytes>(answer.bytes.data(), kRefusalBytes));
    return send(answer_comes, std::move(answer), armed_[way.from].duplicate_answer);
  }
  auto arrival = std::make_shared<Arrival>();
  arrival->way = message.way;
  arrival->attempt = message.attempt;
  arrival->again = message.again;
  arrival->incarnation = hosts_[way.to]->node().incarnation();
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

Duration SimDialer::delay_of(const char* purpose, const Arrival& arrival) const {
  Random random =
      stream(purpose, arrival.way, arrival.attempt | std::uint64_t{arrival.again ? 1U : 0U} << 47);
  return draw_magnitude(random, microseconds(1), milliseconds(1));
}

bool SimDialer::judged_by_this_life(const Arrival& arrival) const {
  const Node& node = asked(arrival.way);
  return node.up() && node.incarnation() == arrival.incarnation;
}

void SimDialer::make_wire(Arrival& arrival) {
  Way& way = ways_[arrival.way];
  const std::uint64_t number = std::uint64_t{arrival.way + 1} << 20 | ++way.wires_made;
  const FrameContext context{arrival.ours.history, arrival.ours.generation, ShardId{}};
  arrival.wire = Wire::make(scene_.world, scene_.counts, number, context, scene_.shape.wire);
  arrival.wire->await_answer();
  arrival.wire->set_peer({arrival.theirs.node, arrival.ours.flags.snapshot});
  watcher_.made(way.from, way.to, arrival.theirs, arrival.ours, *arrival.wire);
  std::erase_if(way.wires, [](const auto& wire) { return wire.expired(); });
  way.wires.push_back(arrival.wire);
  arrival.link = arrival.wire->take(Side::primary, &asked(arrival.way).core());
}

/// The answer leaves; the link reaches the primary's core some time after that.
void SimDialer::accept(std::size_t index) {
  Arrival& arrival = *arrivals_[index];
  if (!judged_by_this_life(arrival) || stopped_) return arrivals_[index].reset();
  if (arrival.wire == nullptr) make_wire(arrival);
  Message answer;
  answer.way = arrival.way;
  answer.attempt = arrival.attempt;
  answer.bytes.resize(kHelloBytes);
  encode_hello(arrival.ours, std::span<std::byte, kHelloBytes>(answer.bytes.data(), kHelloBytes));
  answer.wire = arrival.wire;
  arrival.wire->answered();
  send(answer_comes, std::move(answer), armed_[ways_[arrival.way].from].duplicate_answer);
  if (arrival.link == nullptr) return arrivals_[index].reset();
  scene_.world.schedule(scene_.world.now() + delay_of("hand over", arrival), target_, hand_over, index);
}

/// Of another life, or too late: its link goes with the arrival. So it does with a task that a death drops.
void SimDialer::take_over(std::shared_ptr<Arrival> arrival) {
  if (!judged_by_this_life(*arrival) || stopped_) return;
  Core& core = asked(arrival->way).core();
  core.post([this, arrival = std::move(arrival)] { attach(*arrival); });
}

void SimDialer::attach(Arrival& arrival) {
  const Way& way = ways_[arrival.way];
  Door* const door = hosts_[way.to]->door();
  if (door == nullptr) return;
  // What fails has closed the link, and the peer hears of that.
  if (door->attach(std::move(arrival.link), arrival.theirs, arrival.ours))
    watcher_.attached(way.to, arrival.theirs, arrival.ours);
}

// ---- the answer -----------------------------------------------------------------------------------------

bool SimDialer::waited_for(const Message& message) const {
  const Attempt* const waiting = ways_[message.way].waiting;
  return waiting != nullptr && waiting->number == message.attempt && !waiting->outcome.has_value();
}

void SimDialer::take_answer(const std::shared_ptr<Message>& message) {
  Node& node = dialing(message->way);
  if (blocked(message->way)) return;
  if (message->again) scene_.counts.hit(FaultKind::duplicate_connect);
  if (!node.up() || stopped_ || !waited_for(*message)) return discard(*message);
  node.core().post([this, message] { give(message); });
}

/// An answer that nobody waits for: its wire ends at once, unless it is the second copy of one that was
/// taken.
void SimDialer::discard(Message& message) {
  const auto wire = std::exchange(message.wire, nullptr);
  if (wire == nullptr || wire->number() == ways_[message.way].chosen || wire->taken(Side::replica)) return;
  wire->take(Side::replica, nullptr)->close("nobody waits for this link");
}

/// To the fiber that waits for it.
void SimDialer::give(const std::shared_ptr<Message>& message) {
  if (!waited_for(*message)) return discard(*message);
  Way& way = ways_[message->way];
  Attempt& attempt = *way.waiting;
  if (message->bytes.size() == kRefusalBytes) {
    const auto refusal = decode_refusal(message->bytes);
    TL_ASSERT(refusal, "refusals arrive as they were sent");
    watcher_.refused(way.from, *refusal);
    attempt.refusal = *refusal;
    attempt.outcome = to_error(*refusal);
  } else {
    const auto theirs = decode_hello(message->bytes);
    TL_ASSERT(theirs, "answers arrive as they were sent");
    const auto wire = std::exchange(message->wire, nullptr);
    TL_ASSERT(wire != nullptr && !wire->taken(Side::replica), "an answer that is waited for has a wire");
    way.chosen = wire->number();
    attempt.outcome = ConnectedPeer{wire->take(Side::replica, &dialing(message->way).core()), *theirs};
  }
  attempt.answered.notify_one();
}

// ---- deaths and faults ----------------------------------------------------------------------------------

std::shared_ptr<Wire> SimDialer::wire(std::size_t node) const {
  for (std::size_t to = 0; to < hosts_.size(); ++to) {
    if (to == node) continue;
    const auto& wires = ways_[way_of(node, to)].wires;
    for (auto it = wires.rbegin(); it != wires.rend(); ++it) {
      if (auto alive = it->lock()) return alive;
    }
  }
  return nullptr;
}

std::vector<std::shared_ptr<Wire>> SimDialer::wires_between(std::size_t a, std::size_t b) const {
  std::vector<std::shared_ptr<Wire>> found;
  for (const std::size_t index : {way_of(a, b), way_of(b, a)}) {
    for (const auto& weak : ways_[index].wires) {
      if (auto wire = weak.lock()) found.push_back(std::move(wire));
    }
  }
  return found;
}

std::size_t SimDialer::wires() const {
  std::size_t count = 0;
  for (const Way& way : ways_) {
    count += static_cast<std::size_t>(
        std::count_if(way.wires.begin(), way.wires.end(), [](const auto& wire) { return !wire.expired(); }));
  }
  return count;
}

void SimDialer::dies(std::size_t node) {
  for (const Way& way : ways_) {
    if (way.from != node && way.to != node) continue;
    for (const auto& weak : way.wires) {
      if (const auto wire = weak.lock()) wire->die(way.to == node ? Side::primary : Side::replica);
    }
  }
}

void SimDialer::duplicate(std::size_t node, bool answer, Duration later) {
  (answer ? armed_[node].duplicate_answer : armed_[node].duplicate_hello) = later;
}

void SimDialer::corrupt(std::size_t node, std::uint32_t bits) { armed_[node].corrupt_bits = bits; }

void SimDialer::block(std::size_t a, std::size_t b, Instant until) {
  for (const std::size_t index : {way_of(a, b), way_of(b, a)}) {
    Way& way = ways_[index];
    way.blocked_until = std::max(way.blocked_until, until);
    way.blocked_hit = false;
  }
}

void SimDialer::heal() {
  for (Armed& armed : armed_) armed = {};
  for (Way& way : ways_) {
    way.blocked_until = Instant{};
    for (const auto& weak : way.wires) {
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
