/// How links come to be in the world `streams`: a replica's hello travels to the primary, which answers or
/// refuses and makes the wire; the answer travels back. A stand-in of what the engine's control threads do:
/// terms, position in the log, reconnection with back-off. Hellos, answers and refusals travel encoded.
/// Thread:   one
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tidelock/replication/wire.h>

#include "stream_hosts.h"

namespace tidelock::sim {

class SimDialer final : public EventTarget {
 public:
  SimDialer(const Scene& scene, PrimaryHost& primary, std::vector<std::unique_ptr<ReplicaHost>>& replicas);
  ~SimDialer() override;

  /// A replica was started: it has no link, and tries for one.
  void started(std::size_t replica);
  /// Nobody tries any more, and no link is wanted.
  void stop() { stopped_ = true; }
  /// The newest wire of a replica that still has an end; null: none has.
  [[nodiscard]] std::shared_ptr<Wire> wire(std::size_t replica) const;
  /// Wires of which an end is left, the ones that came to nothing included.
  [[nodiscard]] std::size_t wires() const;
  /// The node is about to be killed: its ends of all wires fall silent.
  void primary_dies();
  void replica_dies(std::size_t replica);

  /// The primary refused it for good: it has to be started again, empty, to follow.
  [[nodiscard]] bool given_up(std::size_t replica) const { return peers_[replica].given_up; }
  /// Refused because the log does not reach back to where it stands.
  [[nodiscard]] bool behind_log(std::size_t replica) const {
    return given_up(replica) && peers_[replica].refusal == RefusalReason::behind_log;
  }

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
  enum Kind : std::uint16_t { dial, hello_comes, answer_comes, attempt_over };

  struct Peer {
    std::uint64_t attempt = 0;  ///< the newest; answers to older ones come too late
    bool dialing = false;
    std::uint64_t chosen = 0;    ///< the number of the wire that its core takes, or has taken
    std::uint32_t failures = 0;  ///< since it had a link
    bool given_up = false;
    RefusalReason refusal = RefusalReason::none;
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

  /// By replica and attempt, so that what befalls one moves no other's draws.
  [[nodiscard]] Random stream(const char* purpose, std::size_t replica, std::uint64_t attempt) const {
    return scene_.world.stream(purpose, std::uint64_t{replica} << 48 | attempt);
  }
  void attempt(std::size_t replica);
  void retry(std::size_t replica);
  void send(Kind kind, Message message, std::optional<Duration>& again);
  [[nodiscard]] bool blocked(std::size_t replica);
  void take_hello(const std::shared_ptr<Message>& message);
  void admit(const std::shared_ptr<Message>& message);
  [[nodiscard]] std::optional<Refusal> check(const Hello& theirs) const;
  void accept(const Message& message, const Hello& theirs);
  void take_answer(const std::shared_ptr<Message>& message);
  void follow(const std::shared_ptr<Message>& message);
  void discard(Message& message);
  void give_up(std::size_t replica, const Refusal& refusal);

  Scene scene_;
  PrimaryHost& primary_;
  std::vector<std::unique_ptr<ReplicaHost>>& replicas_;
  TargetId target_;
  std::vector<Peer> peers_;
  std::vector<std::shared_ptr<Message>> messages_;
  bool stopped_ = false;
};

}  // namespace tidelock::sim
