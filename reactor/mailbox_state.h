/// What a Mailbox knows: one Peer for each core that it has exchanged anything with.
/// Thread:   owner core
#pragma once

#include <array>
#include <memory>
#include <vector>

#include <tidelock/base/counter.h>
#include <tidelock/reactor/fiber.h>
#include <tidelock/reactor/lane_directory.h>
#include <tidelock/reactor/mailbox.h>
#include <tidelock/reactor/sync.h>

#include "lane.h"

namespace tidelock {

/// The calls of this core to one target. A slot is taken when the call is sent and freed by its reply alone
/// (after the caller took it, if the caller still waits), so nothing of a call is on a fiber's stack.
struct Mailbox::Calls {
  struct Slot {
    enum class State : std::uint8_t { free, waiting, done, abandoned };
    State state = State::free;
    std::uint32_t generation = 0;
    std::uint32_t next_free = 0;
    WaitQueue caller;
    alignas(8) std::byte reply[kCallBytes];
  };
  static constexpr std::uint32_t kNone = ~0U;

  explicit Calls(SlotRing& replies);
  [[nodiscard]] std::uint32_t take();
  void give_back(std::uint32_t index);

  RingConsumer replies_in;
  Semaphore credits;  ///< free slots; also what bounds the replies on their way
  std::unique_ptr<Slot[]> slots;
  std::uint32_t free_head = 0;
};

struct Mailbox::Peer {
  explicit Peer(CoreId id) : core(id) {}

  CoreId core;
  // What this core sends: requests in its own lane, replies in the peer's.
  Lane* out = nullptr;
  RingProducer requests_out;
  RingProducer replies_out;
  std::unique_ptr<Calls> calls;
  WaitQueue senders;          ///< fibers that wait for a free slot in `out`
  std::uint32_t granted = 0;  ///< free slots promised to fibers that were woken and have not run yet
  bool senders_listed = false;
  // What it receives.
  Lane* in = nullptr;
  RingConsumer requests_in;
  // What the next flush has to do for this peer.
  bool touched = false;  ///< is in State::touched
  bool requests_dirty = false;
  bool replies_dirty = false;
  bool freed = false;           ///< slots of `in` became free
  bool odd_to_replies = false;  ///< who had the odd item of the last poll's budget
  // How far each side was told of, where the carrier is msg_ring.
  std::uint32_t requests_announced = 0;
  std::uint32_t replies_announced = 0;
};

struct Mailbox::State {
  State(Reactor& owner, LaneDirectory& shared, const MailboxOptions& chosen, MailboxStats& counters);

  // mailbox.cc: lanes, sending, flushing
  Peer& peer(CoreId core);
  Peer& outbound(CoreId target);
  bool connect_inbound(Peer& peer);
  bool try_stage(Peer& peer, SlotKind kind, MessageHandler handler, const void* payload, std::size_t bytes);
  Status stage(Peer& peer, SlotKind kind, MessageHandler handler, const void* payload, std::size_t bytes,
               Instant deadline);
  void touch(Peer& peer);
  void flush();
  void publish(Peer& peer);
  void notify(Peer& peer);
  void wake(CoreId target);
  bool announce(Peer& peer, Lane& lane, bool replies, std::uint32_t position);
  std::uint32_t serve_senders();
  [[nodiscard]] bool senders_have_room() const;

  // mailbox_poll.cc: receiving
  std::uint32_t poll(std::uint32_t budget);
  std::uint32_t poll_all(std::uint32_t budget);
  std::uint32_t poll_pending(std::uint32_t budget);
  std::uint32_t poll_peer(Peer& peer, std::uint32_t budget);
  std::uint32_t poll_requests(Peer& peer, std::uint32_t budget);
  std::uint32_t poll_replies(Peer& peer, std::uint32_t budget);
  [[nodiscard]] bool may_take(const Lane& lane, const RingConsumer& ring, std::uint32_t announced) const;
  [[nodiscard]] bool peer_has_work(const Peer& peer) const;
  [[nodiscard]] bool has_work() const;

  // mailbox_call.cc
  struct FiberCall {
    CallBody body;
    Peer* caller;
    std::uint64_t id;
    std::byte closure[kCallBytes];
  };
  void serve_call(Peer& caller, const LaneSlot& slot);
  void reply(Peer& caller, std::uint64_t id, const std::byte* result);
  void complete(Peer& target, const LaneSlot& slot);
  std::uint32_t start_fiber_calls();
  void run_fiber_calls(FiberCall first);
  [[nodiscard]] bool fiber_call_can_start() const;

  Reactor& reactor;
  LaneDirectory& directory;
  MailboxOptions options;
  MailboxStats& stats;
  CoreId self;

  std::vector<std::unique_ptr<Peer>> peers;  ///< by core; null until first used
  std::vector<Peer*> touched;
  std::vector<Peer*> flushing;
  std::vector<Peer*> waiting;  ///< peers with fibers in `senders`
  /// The core that the next poll looks at first, so that no lane is served first for ever. With the bitmap it
  /// is the one after the last that was looked at.
  std::uint32_t next_core = 0;
  std::array<std::uint64_t, LaneDirectory::kCoresMax / 64>
      ready{};                 ///< taken from the pending words, not drained
  bool event_pending = false;  ///< the eventfd spoke; cleared when its lanes are drained

  std::vector<FiberCall> fiber_calls;  ///< waiting for a fiber, from `fiber_calls_first` on
  std::size_t fiber_calls_first = 0;
  std::uint32_t fiber_calls_running = 0;
};

}  // namespace tidelock
