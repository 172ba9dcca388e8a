/// The seam between a stream of log batches and whatever carries it: one peer's reliable, ordered,
/// flow-controlled pipe of batches, and a small control lane both ways. rdma/, links/shm and the simulator
/// implement it; primary.h and replica.h see nothing else. A virtual call is paid once a batch.
/// Thread:   owner core, and it is polled by one reactor (PollSource)
/// Suspends: never
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <tidelock/base/bytes.h>
#include <tidelock/base/ids.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/replication/wire.h>

namespace tidelock {

class Reactor;

enum class LinkState : std::uint8_t { ready, closed };

/// Single-writer counters, readable by anyone.
struct LinkCounters {
  std::atomic<std::uint64_t> batches_out{0}, batches_in{0};
  std::atomic<std::uint64_t> bytes_out{0}, bytes_in{0};
  std::atomic<std::uint64_t> control_out{0}, control_in{0};
  std::atomic<std::uint64_t> peer_wakeups{0};  ///< system calls spent to wake a parked peer
  std::atomic<std::uint64_t> full{0};          ///< publishes refused for want of credit
};

/// One change of a link's own state, in its own words.
struct LinkTransition {
  Instant at{};
  std::string state;
  std::string detail;
};

/// A batch in the receiver's ring. The header was copied and checked; `payload` is the peer's memory and may
/// change under the reader if the peer is hostile: copy what you check.
struct Batch {
  FrameHeader header;
  Bytes payload;
};

/// Whoever owns it (Primary, Replica) calls poll(), flush(), arm(), disarm() and has_work(); it is not added
/// to a reactor by itself.
class Link : public PollSource {
 public:
  /// On the owner core, once, before a Primary or Replica gets it; the reactor outlives the link.
  /// Errors:   the link is of no use then
  virtual Status start(Reactor& reactor) {
    static_cast<void>(reactor);
    return {};
  }

  /// Largest payload of one batch, a quarter of the ring less the header. Entries are sized to fit.
  [[nodiscard]] virtual std::uint32_t batch_bytes_max() const = 0;

  /// The log's memory, before the first publish (a verbs link registers it). It outlives the link.
  virtual Status attach(Bytes log_memory) = 0;
  /// Makes one batch leave: header, then the ranges, gathered. The link sets the header's sequence,
  /// generation, sizes and CRC. All or nothing. `ranges` lie in the attached memory and total at most
  /// batch_bytes_max(). Errors:   link_full: no credit or ring space, retry after progress; link_closed
  virtual Status publish(const FrameHeader& header, std::span<const Bytes> ranges) = 0;
  /// How many published batches, since the link was made, no longer need the log's bytes (their own
  /// completion has come).
  [[nodiscard]] virtual std::uint64_t batches_completed() const = 0;
  /// Of a closed link: nothing reads the attached memory any more (a verbs link: its queue pair is
  /// destroyed). Until then the owner keeps and polls the link, and the memory as it is. Comes true by
  /// itself, soon after close(). False while the link is ready.
  [[nodiscard]] virtual bool drained() const = 0;

  /// The next whole batch, checked: magic, version, sequence, generation, sizes, CRC.
  /// What had arrived whole before the peer closed or died is still given; link_closed comes after it. A link
  /// that this side has closed gives nothing more.
  /// Errors:   link_empty: nothing there; link_closed; corrupt and the like close the link and say why
  /// Lifetime: the batch is readable until release()
  virtual Result<Batch> receive() = 0;
  /// Gives the oldest received batch back to the sender. Batches are released in order.
  virtual void release() = 0;

  /// Newest supersedes: if the lane is full the frame is kept and replaces an older unsent one.
  virtual Status send_control(const ControlFrame& frame) = 0;
  /// Errors:   link_empty; link_closed
  virtual Result<ControlFrame> receive_control() = 0;

  /// Closed by this side; or gone, and all that had arrived was received.
  [[nodiscard]] virtual LinkState state() const = 0;
  /// When the last valid frame or control frame came. Any of them counts as a heartbeat.
  [[nodiscard]] virtual Instant last_heard() const = 0;
  /// Closes from this side, for good; the peer sees it. Idempotent.
  virtual void close(const std::string& reason) = 0;
  /// Why it is closed; empty while it is ready.
  [[nodiscard]] virtual std::string close_reason() const = 0;
  [[nodiscard]] virtual const char* kind() const = 0;  ///< "shm", "verbs", "sim"
  /// One line for people: the kind and, where there are several, device and endpoints.
  [[nodiscard]] virtual std::string describe() const { return kind(); }
  [[nodiscard]] virtual const LinkCounters& counters() const = 0;
  /// Its latest changes of state, oldest first, as far as it keeps them; for people, so it may allocate.
  [[nodiscard]] virtual std::vector<LinkTransition> transitions() const { return {}; }
};

}  // namespace tidelock
