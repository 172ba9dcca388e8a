/// How the two ends meet on a socket, and what they say there before there is a link; README.md has the
/// sequence.
/// Thread:   a control thread; every call blocks at most until its deadline
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/replication/transport.h>

#include "shm_socket.h"

namespace tidelock {

/// How long either end waits for one step of the other.
inline constexpr Duration kHandshakeStep = seconds(2);

/// Transport::listen and Transport::connect of the shm link, see shm.h.
Result<std::unique_ptr<PeerListener>> shm_listen(const std::string& path);
/// `interrupted` ends the wait for a primary that is not there; one that listens answers, or `timeout` ends
/// it.
Result<ConnectedPeer> shm_connect(const std::string& path, const Hello& ours, Duration timeout,
                                  const std::atomic<bool>& interrupted, std::optional<Refusal>* refusal);

void send_refusal(int fd, const Refusal& refusal);

/// Listener, step 1: reads a hello. One that is malformed, of no common version or a primary's is refused
/// with the reason, here.
/// Errors:   deadline_exceeded, link_closed, refused (what was sent), malformed
Result<Hello> receive_hello(int fd, Instant deadline);

/// Listener, step 2: sends our hello with the ring and waits until the peer has mapped it.
/// Errors:   EINVAL for options; link_closed if the peer did not like what it got; deadline_exceeded
Result<std::unique_ptr<Link>> answer_hello(UniqueFd socket, const Hello& theirs, const Hello& ours,
                                           const LinkOptions& options);

/// Connector: says hello, takes the answer, maps the ring, says that it is ready. `refusal`:
/// Transport::connect().
/// Errors:   refused, malformed, bad_version, deadline_exceeded, link_closed
Result<ConnectedPeer> say_hello(UniqueFd socket, const Hello& ours, Instant deadline,
                                std::optional<Refusal>* refusal);

}  // namespace tidelock
