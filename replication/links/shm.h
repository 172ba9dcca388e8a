/// The shm link: a sealed memfd ring between two processes of one machine, and how two processes come by it.
/// The memfd travels over a unix socket (SCM_RIGHTS); afterwards that socket only carries wakeup bytes for a
/// parked peer and tells of the peer's death.
/// Thread:   as in transport.h
#pragma once

#include <memory>

#include <tidelock/base/result.h>
#include <tidelock/replication/link.h>
#include <tidelock/replication/transport.h>

namespace tidelock {

/// An address is the path of a unix socket, which is created with mode 0600 and removed with the listener, or
/// "@name", an abstract socket.
/// Errors:   of listen(): EADDRINUSE names the path and whether somebody still listens there; of connect():
///           ENOENT and ECONNREFUSED name the path
/// Lifetime: it holds nothing, so that listeners and links may outlive it
std::unique_ptr<Transport> make_shm_transport();

/// Two connected ends in this process, for tests and benchmarks.
struct ShmPair {
  std::unique_ptr<Link> primary;
  std::unique_ptr<Link> replica;
};
Result<ShmPair> shm_pair(const FrameContext& context, const LinkOptions& options);

}  // namespace tidelock
