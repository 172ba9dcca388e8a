/// The shm link: a sealed memfd ring between two processes of one machine, and how two processes come by it.
/// The memfd travels over a unix socket (SCM_RIGHTS); afterwards that socket only carries wakeup bytes for a
/// parked peer and tells of the peer's death.
/// Thread:   listen, accept and connect block (with deadlines) and belong on a control thread, never on a
///           reactor. The Link that they return is handed to its owner core, which calls start() there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/reactor.h>
#include <tidelock/replication/link.h>

namespace tidelock {

struct ShmOptions {
  std::uint64_t ring_bytes =
      4ULL << 20;                    ///< a power of two, 256 KiB to 1 GiB, so that a fragment fits a batch
  std::uint32_t control_slots = 16;  ///< frames in flight in each direction, a power of two, 4 to 256
};

/// A link that has shaken hands but is not yet on a core.
class ShmLink : public Link {
 public:
  /// On the owner core, once: watches the socket. The reactor outlives the link.
  virtual Status start(Reactor& reactor) = 0;
};

struct ShmPeer {
  std::unique_ptr<ShmLink> link;
  Hello hello;  ///< what the peer said, checked for form only
};

/// Waits for replicas. The path is created with mode 0600 and removed on destruction. A path that begins with
/// '@' is an abstract socket.
class ShmListener {
 public:
  /// Errors:   EADDRINUSE names the path and whether somebody still listens there
  static Result<std::unique_ptr<ShmListener>> listen(const std::string& path);
  virtual ~ShmListener() = default;

  /// One connection that has said hello and waits for the verdict.
  class Pending {
   public:
    virtual ~Pending() = default;
    [[nodiscard]] virtual const Hello& hello() const = 0;
    /// Answers with our hello, makes the ring and hands it over.
    virtual Result<std::unique_ptr<ShmLink>> accept(const Hello& ours, const ShmOptions& options) = 0;
    virtual void refuse(const Refusal& refusal) = 0;
  };
  /// Waits for the next peer that says a well-formed hello; others are refused and skipped.
  /// Errors:   deadline_exceeded; closed after shutdown()
  virtual Result<std::unique_ptr<Pending>> accept(Duration timeout) = 0;
  /// From any thread: makes accept return.
  virtual void shutdown() = 0;
};

/// Connects, says hello, maps the ring. Blocks at most `timeout`.
/// Errors:   refused with both values; ENOENT and ECONNREFUSED name the path; deadline_exceeded
Result<ShmPeer> shm_connect(const std::string& path, const Hello& ours, Duration timeout);

/// Two connected ends in this process, for tests and benchmarks.
struct ShmPair {
  std::unique_ptr<ShmLink> primary;
  std::unique_ptr<ShmLink> replica;
};
Result<ShmPair> shm_pair(const FrameContext& context, const ShmOptions& options);

}  // namespace tidelock
