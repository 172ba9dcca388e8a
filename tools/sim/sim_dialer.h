/// How links come to be: what a node's Following, or its GroupNode, dials with, and what brings hellos to the
/// Door of another. It stands in for a Transport and its control threads: a hello travels, is judged on the
/// core of whom it is for, the link is made and the answer leaves, and some time later the link is attached
/// on that core. Hellos, answers and refusals travel encoded. Any node dials any other by its address; each
/// way between two nodes fails by itself.
/// Thread:   one
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/replication/dialer.h>
#include <tidelock/replication/wire.h>

#include "dial_host.h"
#include "scene.h"
#include "wire.h"

namespace tidelock::sim {

/// Is told what happens between nodes, which go by their place in the dialer's list.
class DialWatcher {
 public:
  virtual ~DialWatcher() = default;
  virtual void judged(std::size_t by, const Hello& theirs, const tidelock::Verdict& verdict) = 0;
  virtual void made(std::size_t from, std::size_t by, const Hello& theirs, const Hello& ours, Wire& wire) = 0;
  /// In the turn in which `by` has taken the link.
  virtual void attached(std::size_t by, const Hello& theirs, const Hello& ours) = 0;
  /// `from` gets that now.
  virtual void refused(std::size_t from, const Refusal& refusal) = 0;
};

class SimDialer final : public EventTarget {
 public:
  /// The address of a node.
  [[nodiscard]] static std::string address_of(std::uint32_t number) {
    return "node " + std::to_string(number);
  }

  /// All outlive it. Nodes have the numbers 1, 2, ... in the order of `hosts`.
  SimDialer(const Scene& scene, std::vector<DialHost*> hosts, DialWatcher& watcher);
  ~SimDialer() override;

  /// What that node dials with.
  [[nodiscard]] Dialer& of(std::size_t node) { return *ends_[node]; }
  /// Nobody is heard any more.
  void stop() { stopped_ = true; }
  /// The newest wire that this node has dialed and that still has an end; null: none has.
  [[nodiscard]] std::shared_ptr<Wire> wire(std::size_t node) const;
  /// Of those between two nodes, whoever dialed.
  [[nodiscard]] std::vector<std::shared_ptr<Wire>> wires_between(std::size_t a, std::size_t b) const;
  /// Wires of which an end is left, the ones that came to nothing included.
  [[nodiscard]] std::size_t wires() const;
  /// The node is about to be killed: its ends of all wires fall silent.
  void dies(std::size_t node);

  // ---- faults ----
  /// The next hello of that node, or the next answer to it, arrives once more after `later`.
  void duplicate(std::size_t node, bool answer, Duration later);
  /// The next hello of that node is damaged.
  void corrupt(std::size_t node, std::uint32_t bits);
  /// Until then nothing of this goes either way between the two.
  void block(std::size_t a, std::size_t b, Instant until);
  /// Neither here nor on any wire does anything new go wrong.
  void heal();

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;

 private:
  enum Kind : std::uint16_t { hello_comes, link_made, hand_over, answer_comes };

  class End final : public Dialer {
   public:
    End(SimDialer& owner, std::size_t node) : owner_(owner), node_(node) {}
    Result<ConnectedPeer> dial(const std::string& address, const Hello& ours, Instant deadline,
                               std::optional<Refusal>* refusal) override {
      return owner_.dial(node_, address, ours, deadline, refusal);
    }

   private:
    SimDialer& owner_;
    std::size_t node_;
  };
  /// A dial() that waits, on its fiber's stack.
  struct Attempt {
    std::uint64_t number = 0;
    std::optional<Result<ConnectedPeer>> outcome;
    std::optional<Refusal> refusal;
    WaitQueue answered;
  };
  /// What one node dials of another.
  struct Way {
    std::size_t from = 0;
    std::size_t to = 0;
    std::uint64_t attempts = 0;
    Attempt* waiting = nullptr;
    std::uint64_t chosen = 0;  ///< the number of the wire that its core has taken
    std::vector<std::weak_ptr<Wire>> wires;
    std::uint64_t wires_made = 0;
    Instant blocked_until{};
    bool blocked_hit = true;
  };
  /// What befalls the next hello of a node, whomever it is for.
  struct Armed {
    std::optional<Duration> duplicate_hello;
    std::optional<Duration> duplicate_answer;
    std::uint32_t corrupt_bits = 0;
  };
  struct Message {
    std::size_t way = 0;
    std::uint64_t attempt = 0;
    std::vector<std::byte> bytes;
    std::shared_ptr<Wire> wire;  ///< of an answer
    bool again = false;
    bool corrupted = false;
  };
  /// A hello that found no objection, until its link is attached.
  struct Arrival {
    std::size_t way = 0;
    std::uint64_t attempt = 0;
    bool again = false;
    std::uint32_t incarnation = 0;  ///< of the node that judged it
    Hello theirs;
    Hello ours;
    std::shared_ptr<Wire> wire;
    std::unique_ptr<Link> link;  ///< the door's end, until it is attached
  };

  /// By way and attempt, so that what befalls one moves no other's draws.
  [[nodiscard]] Random stream(const char* purpose, std::size_t way, std::uint64_t attempt) const {
    return scene_.world.stream(purpose, std::uint64_t{way} << 48 | attempt);
  }
  [[nodiscard]] std::size_t way_of(std::size_t from, std::size_t to) const;
  [[nodiscard]] Node& dialing(std::size_t way) const { return hosts_[ways_[way].from]->node(); }
  [[nodiscard]] Node& asked(std::size_t way) const { return hosts_[ways_[way].to]->node(); }
  [[nodiscard]] Duration delay_of(const char* purpose, const Arrival& arrival) const;
  Result<ConnectedPeer> dial(std::size_t from, const std::string& address, const Hello& ours,
                             Instant deadline, std::optional<Refusal>* refusal);
  [[nodiscard]] Message hello_of(std::size_t way, const Attempt& attempt, Hello ours);
  void send(Kind kind, Message message, std::optional<Duration>& again);
  [[nodiscard]] bool blocked(std::size_t way);
  void take_hello(const std::shared_ptr<Message>& message);
  void judge(const Message& message);
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
  std::vector<DialHost*> hosts_;
  DialWatcher& watcher_;
  TargetId target_;
  std::vector<std::unique_ptr<End>> ends_;
  std::vector<Armed> armed_;  ///< by the node that dials
  std::vector<Way> ways_;
  std::vector<std::shared_ptr<Message>> messages_;
  std::vector<std::shared_ptr<Arrival>> arrivals_;
  bool stopped_ = false;
};

}  // namespace tidelock::sim
