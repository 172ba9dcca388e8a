/// How two nodes come by a link: one waits for peers at an address, the other connects to it, each says
/// hello, and the one that listens gives the verdict. links/shm.h makes one for the processes of one machine;
/// engine/ binds others. What an address looks like is the transport's own.
/// Thread:   listen, accept and connect block (with deadlines) and belong on a control thread, never on a
///           reactor; any number of threads may connect at once. A link that they return is handed to its
///           owner core, which calls Link::start() there.
/// Suspends: never
/// Lifetime: the transport outlives its listeners, pending peers and links
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/replication/link.h>

namespace tidelock {

struct LinkOptions {
  std::uint64_t ring_bytes =
      4ULL << 20;                    ///< a power of two, 256 KiB to 1 GiB, so that a fragment fits a batch
  std::uint32_t control_slots = 16;  ///< frames in flight in each direction, a power of two, 4 to 256
};

/// One connection that has said hello and waits for the verdict. It is answered at most once; unanswered, its
/// end is the connection's.
class PendingPeer {
 public:
  virtual ~PendingPeer() = default;
  /// What the peer said, checked for form only.
  [[nodiscard]] virtual const Hello& hello() const = 0;
  /// Answers with our hello and makes the link: ready, not yet on a core.
  /// Errors:   EINVAL for options; link_closed if the peer did not like what it got; deadline_exceeded
  virtual Result<std::unique_ptr<Link>> accept(const Hello& ours, const LinkOptions& options) = 0;
  virtual void refuse(const Refusal& refusal) = 0;
};

class PeerListener {
 public:
  virtual ~PeerListener() = default;
  /// Waits for the next peer that says a well-formed hello; others are refused and skipped.
  /// Errors:   deadline_exceeded; closed after shutdown()
  virtual Result<std::unique_ptr<PendingPeer>> accept(Duration timeout) = 0;
  /// From any thread: makes accept return, now and for good.
  virtual void shutdown() = 0;
};

struct ConnectedPeer {
  std::unique_ptr<Link> link;  ///< ready, not yet on a core
  Hello hello;                 ///< what the peer said, checked for form only
};

class Transport {
 public:
  virtual ~Transport() = default;
  /// `options`: what links from there will be made with; memory for them may be taken already.
  /// Errors:   EADDRINUSE and others name the address; EINVAL for options
  virtual Result<std::unique_ptr<PeerListener>> listen(const std::string& address,
                                                       const LinkOptions& options) = 0;
  /// Connects, says hello, takes the answer. Blocks at most `timeout`. `refusal`, if given: takes the peer's
  /// own, if that is what the error tells of.
  /// Errors:   refused with both values; peer_busy; deadline_exceeded; what keeps from connecting names the
  ///           address; closed after interrupt()
  virtual Result<ConnectedPeer> connect(const std::string& address, const Hello& ours, Duration timeout,
                                        std::optional<Refusal>* refusal) = 0;
  Result<ConnectedPeer> connect(const std::string& address, const Hello& ours, Duration timeout) {
    return connect(address, ours, timeout, nullptr);
  }
  /// From any thread: makes connect() return, now and for good. One that is past what can be cut short still
  /// returns by its timeout.
  virtual void interrupt() = 0;
  [[nodiscard]] virtual const char* kind() const = 0;  ///< that of its links
};

}  // namespace tidelock
