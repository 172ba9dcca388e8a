/// How links come to be in the world `streams`: what a replica's Following dials with, and what brings hellos
/// to the primary's Door. It stands in for a Transport and its control threads: a hello travels, is judged on
/// the primary's core, the link is made and the answer leaves, and some time later the link is attached on
/// that core. Hellos, answers and refusals travel encoded.
/// Thread:   one
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/replication/dialer.h>
#include <tidelock/replication/wire.h>

#include "stream_hosts.h"

namespace tidelock::sim {

class SimDialer final : public EventTarget {
 public:
  SimDialer(const Scene& scene, PrimaryHost& primary, std::vector<std::unique_ptr<ReplicaHost>>& replicas);
  ~SimDialer() override;

  /// What that replica dials with.
  [[nodiscard]] Dialer& of(std::size_t replica) { return *ends_[replica]; }
  /// Called in a turn of the primary's core in which it takes a link that gets a snapshot.
  void on_snapshot(std::function<void()> begins) { snapshot_begins_ = std::move(begins); }
  /// Nobody is heard any more.
  void stop() { stopped_ = true; }
  /// The newest wire of a replica that still has an end; null: none has.
  [[nodiscard]] std::shared_ptr<Wire> wire(std::size_t replica) const;
  /// Wires of which an end is left, the ones that came to nothing included.
  [[nodiscard]] std::size_t wires() const;
  /// The node is about to be killed: its ends of all wires fall silent.
  void primary_dies();
  void replica_dies(std::size_t replica);

  // ---- faults ----
  /// The next hello, or the next answer, arrives once more after `later`.
  void duplicate(std::size_t replica, bool answer, Duration later);
  /// The next hello is damaged.
  void corrupt(std::size_t replica, std::uint32_t bits);
  /// Until then nothing of this reaches the other side.
  void block(std::size_t replica, Instant until);
  /// Neither here nor on any wire does anything new go wrong.
  void heal();

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;

 private:
  enum Kind : std::uint16_t { hello_comes, link_made, hand_over, answer_comes };

  class End final : public Dialer {
   public:
    End(SimDialer& owner, std::size_t replica) : owner_(owner), replica_(replica) {}
    Result<ConnectedPeer> dial(const std::string&, const Hello& ours, Instant deadline,
                               std::optional<Refusal>*) override {
      return owner_.dial(replica_, ours, deadline);
    }

   private:
    SimDialer& owner_;
    std::size_t replica_;
  };
  /// A dial() that waits, on its fiber's stack.
  struct Attempt {
    std::uint64_t number = 0;
    std::optional<Result<ConnectedPeer>> outcome;
    WaitQueue answered;
  };
  struct Peer {
    std::uint64_t attempts = 0;
    Attempt* waiting = nullptr;
    std::uint64_t chosen = 0;  ///< the number of the wire that its core has taken
    std::vector<std::weak_ptr<Wire>> wires;
    std::uint64_t wires_made = 0;
    std::optional<Duration> duplicate_hello;
    std::optional<Duration> duplicate_answer;
    std::uint32_t corrupt_bits = 0;
    Instant blocked_until{};
    bool blocked_hit = true;
  };
  struct Message {
    std::size_t replica = 0;
    std::uint64_t attempt = 0;
    std::vector<std::byte> bytes;
    std::shared_ptr<Wire> wire;  ///< of an answer
    bool again = false;
    bool corrupted = false;
  };
  /// A hello that found no objection, until its link is attached.
  struct Arrival {
    std::size_t replica = 0;
    std::uint64_t attempt = 0;
    bool again = false;
    std::uint32_t incarnation = 0;  ///< the primary's that judged it
    Hello theirs;
    Hello ours;
    std::shared_ptr<Wire> wire;
    std::unique_ptr<Link> link;  ///< the primary's end, until it is attached
  };

  /// By replica and attempt, so that what befalls one moves no other's draws.
  [[nodiscard]] Random stream(const char* purpose, std::size_t replica, std::uint64_t attempt) const {
    return scene_.world.stream(purpose, std::uint64_t{replica} << 48 | attempt);
  }
  [[nodiscard]] Duration delay_of(const char* purpose, const Arrival& arrival) const;
  Result<ConnectedPeer> dial(std::size_t replica, const Hello& ours, Instant deadline);
  [[nodiscard]] Message hello_of(std::size_t replica, const Attempt& attempt, Hello ours);
  void send(Kind kind, Message message, std::optional<Duration>& again);
  [[nodiscard]] bool blocked(std::size_t replica);
  void take_hello(const std::shared_ptr<Message>& message);
  void judge(const Message& message);
  void check(const Hello& theirs, const tidelock::Verdict& verdict) const;
  void make_wire(Arrival& arrival);
  void accept(std::size_t index);
  void take_over(std::shared_ptr<Arrival> arrival);
  void attach(Arrival& arrival);
  [[nodiscard]] bool judged_by_this_life(const Arrival& arrival) const;
  void take_answer(const std::shared_ptr<Message>& message);
  void give(const std::shared_ptr<Message>& message);
  [[nodiscard]] bool waited_for(const Message& message) const;
  void discard(Message& message);

  Scene scene_;
  PrimaryHost& primary_;
  std::vector<std::unique_ptr<ReplicaHost>>& replicas_;
  TargetId target_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<Message>> messages_;
  std::vector<std::shared_ptr<Arrival>> arrivals_;
  std::function<void()> snapshot_begins_;
  bool stopped_ = false;
};

}  // namespace tidelock::sim
