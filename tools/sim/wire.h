/// What lies between the two ends of a simulated link: queues in which encoded bytes travel, the receiver's
/// ring, credits and completions on their way back, and everything that can go wrong with them.
///
/// A batch: publish() keeps its header and where its bytes are; flush() rings; when the wire comes to it, in
/// order, the bytes are gathered from the log as they are then; they land in the ring, which holds what
/// earlier laps left; the sender's completion comes later. From publish() until then they must not change
/// (`link_contract`).
/// Thread:   one
/// Lifetime: owned by the two SimLinks; the world, the counts and the cores outlive it
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <tidelock/replication/link.h>

#include "core.h"
#include "faults.h"
#include "world.h"

namespace tidelock::sim {

class SimLink;

/// An end of a wire, and the way that leads to it.
enum class Side : std::uint8_t { primary, replica };
[[nodiscard]] inline Side other(Side side) { return side == Side::primary ? Side::replica : Side::primary; }
[[nodiscard]] inline std::size_t index_of(Side side) { return static_cast<std::size_t>(side); }

struct WireOptions {
  std::uint64_t ring_bytes = 256 * 1024;  ///< a power of two
  std::uint32_t batch_slots = 64;         ///< batches in flight
  std::uint32_t control_slots = 16;       ///< frames in flight, each way
  std::uint64_t bytes_a_second = 1'000'000'000;
  Duration latency_least = microseconds(1);  ///< one way
  Duration latency_most = microseconds(10);
};

class Wire final : public EventTarget, public std::enable_shared_from_this<Wire> {
 public:
  static constexpr std::uint64_t kAlignment = 64;

  /// `number`: of this wire in the run; its delays and its ring's first contents depend on it.
  static std::shared_ptr<Wire> make(World& world, FaultCounts& counts, std::uint64_t number,
                                    const FrameContext& context, const WireOptions& options);
  ~Wire() override;

  /// The end's Link. Each may be taken once; `core` is told of what arrives there, null: nobody is.
  std::unique_ptr<SimLink> take(Side side, Core* core);
  [[nodiscard]] bool taken(Side side) const { return ends_[index_of(side)].taken; }

  /// What the checkers see of it. Empty: nobody looks.
  struct Watch {
    /// The replica's end has released a batch that had come undamaged: the newest LSN in it that is whole.
    std::function<void(Lsn)> released;
    /// The primary's end was given a commit LSN to send.
    std::function<void(Lsn)> commit_told;
  };
  void watch(Watch watch) { watch_ = std::move(watch); }
  /// Whom it leads to, as the world knows.
  struct Peer {
    std::uint32_t node = 0;
    bool syncing = false;  ///< it gets a snapshot, which is not whole yet: what it has counts for nothing
  };
  void set_peer(const Peer& peer) { peer_ = peer; }
  [[nodiscard]] const Peer& peer() const { return peer_; }
  void snapshot_whole() { peer_.syncing = false; }
  /// The peer's hello is not answered yet: until it is, whatever the primary's end sends is a failure
  /// (`link_contract`).
  void await_answer() { answered_ = false; }
  void answered() { answered_ = true; }

  // ---- faults: each takes effect on what comes from now on, and counts a hit when it does -----------------
  void delay(std::uint32_t frames, Duration by);
  /// What is in flight is lost; of the first batch so many bytes land, unannounced. Each end learns in its
  /// time.
  void cut(std::uint64_t bytes, Duration primary_learns_in, Duration replica_learns_in);
  /// What would land at `to` before `until` is lost, and then all that follows it. The sender learns after
  /// `learns`; never(): not.
  void swallow(Side to, Instant until, Duration learns, FaultKind as);
  enum class Damage : std::uint8_t { bits, length, stale, old_epoch };
  void corrupt_batch(Damage damage, std::uint32_t bits);
  void corrupt_control(Side to, std::uint32_t bits);
  void notify_early(std::uint32_t batches, Duration by);
  void complete_late(std::uint32_t batches, Duration by);
  void lose_completion();
  /// The next batch waits for so long; `fails`: then the sender's end breaks instead.
  void receiver_not_ready(Duration wait, bool fails);
  void slow_down(Instant until);
  void scribble();
  /// The peer writes over what the replica has received and not released. Called while it applies.
  void scribble_now();

  /// Nothing new goes wrong. What is lost stays so, and a broken way broken: the ends learn of it.
  void heal();

  /// The node at this end dies: of what it sent last a drawn part never left, what reaches it is lost.
  void die(Side side);

  void on_event(const Event& event) override;
  [[nodiscard]] std::string describe(const Event& event) const override;
  [[nodiscard]] std::uint64_t number() const { return number_; }

 private:
  friend class SimLink;
  enum Kind : std::uint16_t {
    gather,
    land,
    bytes_come,
    complete,
    control_to_primary,
    control_to_replica,
    credit_to_primary,
    credit_to_replica,
    closed_to_primary,
    closed_to_replica,
    primary_learns,
    replica_learns,
    destroyed
  };
  static std::uint16_t towards(Side side, Kind to_primary) {
    return static_cast<std::uint16_t>(to_primary + index_of(side));
  }

  /// A published batch, until its completion has come and the receiver has given it back.
  struct Parcel {
    FrameHeader header;
    std::vector<Bytes> ranges;
    std::uint64_t hash = 0;  ///< of the ranges when they were published
    std::uint64_t position = 0;
    std::uint64_t end = 0;         ///< the ring position after it
    std::vector<std::byte> bytes;  ///< gathered
    std::uint64_t payload_bytes = 0;
    Instant rung_at{};  ///< it left no sooner
    bool corrupted = false;
    std::uint32_t stale_from = 0;  ///< these bytes do not come: what an earlier lap left stays
    std::uint32_t stale_to = 0;
    bool early = false;            ///< told of before its bytes are there
    bool late_completion = false;  ///< or one that never comes
  };
  struct Letter {
    std::array<std::byte, kControlFrameBytes> bytes{};
    Instant sent_at{};
    bool corrupted = false;
  };
  /// One direction of the control lane. All counts are of frames since the wire was made.
  struct Lane {
    std::optional<ControlFrame> staged;
    std::uint64_t sent = 0;
    std::uint64_t credited = 0;       ///< known to the sender as consumed
    std::uint64_t consumed = 0;       ///< by the receiver
    std::uint64_t told = 0;           ///< of those, on its way back to the sender
    std::uint64_t cut_after = ~0ULL;  ///< frames after it never left
    std::deque<Letter> in_flight;
    std::deque<Letter> arrived;
    Instant last_landing{};
  };
  struct End {
    SimLink* link = nullptr;
    bool taken = false;
    Core* core = nullptr;
    bool dead = false;
    Instant died_at{};
    bool gone = false;  ///< the peer, as far as this end knows
    std::string gone_reason;
    // The way to this end:
    Lane lane;
    bool broken = false;  ///< something was lost on it, so nothing comes any more
    bool loss_counted = true;
    FaultKind broken_by = FaultKind::half_open;
    Instant swallows_until{};
    Duration sender_learns{};
    Instant last_credit{};
    std::deque<Instant> credits_sent_at;  ///< of those on their way
    bool peer_closes = false;             ///< that notice has come, and waits for what left before it
  };

  Wire(World& world, FaultCounts& counts, std::uint64_t number, const FrameContext& context,
       const WireOptions& options);

  // wire.cc: for the links
  [[nodiscard]] End& end(Side side) { return ends_[index_of(side)]; }
  [[nodiscard]] std::uint64_t batch_bytes_max() const { return options_.ring_bytes / 4 - kFrameHeaderBytes; }
  [[nodiscard]] bool has_room(std::uint64_t frame_bytes) const;
  void add(const FrameHeader& header, std::span<const Bytes> ranges, std::uint64_t payload_bytes);
  void ring_doorbell();
  void send_staged_control(Side from);
  void tell_credits(Side from);
  void note_released(const Parcel& parcel);
  void note_commit(Lsn commit) const {
    if (watch_.commit_told) watch_.commit_told(commit);
  }
  void close(Side from);
  void detach(Side side);
  [[nodiscard]] Parcel& parcel(std::uint64_t sequence) { return parcels_[sequence - 1 - forgotten_]; }

  // wire.cc: on the way
  [[nodiscard]] Duration latency(std::uint64_t lane, std::uint64_t frame);
  /// By wire, lane and frame, so that a fault that is taken away moves no other's draws.
  [[nodiscard]] Random stream(const char* purpose, std::uint64_t lane, std::uint64_t frame) const;
  /// When a frame lands that leaves now and takes `takes`, behind what lands at `last`.
  [[nodiscard]] Instant landing(Instant last, Duration takes);
  void on_gather(std::uint64_t sequence);
  void on_land(std::uint64_t sequence);
  void on_complete(std::uint64_t sequence);
  void on_control(Side to);
  void on_credit(Side to, std::uint64_t batches, std::uint64_t controls);
  void write_to_ring(const Parcel& parcel, std::size_t bytes);
  void gather_bytes(Parcel& parcel);
  [[nodiscard]] std::uint64_t hash_of(const Parcel& parcel) const;
  void check_unchanged(const Parcel& parcel, const char* when);
  void check_answered() const;
  void tell(Side side);
  void learn(Side side, const std::string& reason);
  /// Whether something that would reach `to` now is lost.
  bool lost(Side to);
  void on_closed(Side to);
  void on_destroyed();
  [[nodiscard]] bool nothing_to_land() const;
  void destroy_if_complete();
  void forget_done();

  // wire_faults.cc
  void damage(Parcel& parcel);
  static void age(Parcel& parcel);
  static void flip_bits(Random& random, std::span<std::byte> bytes, std::uint32_t bits);
  void break_way(Side to, FaultKind by);
  void refused(bool corrupted);
  void out_of_room();

  World& world_;
  FaultCounts& counts_;
  std::uint64_t number_;
  FrameContext context_;
  WireOptions options_;
  Watch watch_;
  Peer peer_;
  bool answered_ = true;
  TargetId target_;
  std::array<End, 2> ends_;
  std::vector<std::byte> ring_;

  std::deque<Parcel> parcels_;
  std::uint64_t forgotten_ = 0;  ///< parcels that were in front
  std::uint64_t published_ = 0;
  std::uint64_t rung_ = 0;  ///< of those, the doorbell has rung for
  std::uint64_t gathered_ = 0;
  std::uint64_t arrived_ = 0;  ///< told to the receiver
  std::uint64_t received_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t released_told_ = 0;
  std::uint64_t credited_ = 0;  ///< released, as far as the sender knows
  std::uint64_t completed_ = 0;
  std::uint64_t written_position_ = 0;
  std::uint64_t credited_position_ = 0;
  Instant line_free_{};
  Instant last_landing_{};
  Instant last_completion_{};
  bool closed_by_primary_ = false;
  bool log_released_ = false;  ///< the primary's end is destroyed: nothing reads the log any more

  struct Armed {
    std::uint32_t delayed_frames = 0;
    bool delay_hit = false;
    Duration delayed_by{};
    std::uint32_t corrupt_batches = 0;
    Damage damage = Damage::bits;
    std::uint32_t corrupt_bits = 0;
    std::array<std::uint32_t, 2> corrupt_control_bits{};
    std::uint32_t early_batches = 0;
    Duration early_by{};
    std::uint32_t late_completions = 0;
    Duration late_by{};
    bool late_hit = false;
    bool lose_completion = false;
    Duration not_ready{};
    bool not_ready_fails = false;
    Instant slow_until{};
    bool slow_hit = false;
    bool scribble = false;
  } armed_;
  bool completions_lost_ = false;
};

}  // namespace tidelock::sim
