/// What carries a ping-pong: one end of a link, and the session that makes it. pingpong_shm.cc has tidelock's
/// link between two processes, pingpong_verbs.cc a connection of rdma/ with the same frames on it.
/// Suspends: never
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <tidelock/base/bytes.h>
#include <tidelock/base/result.h>
#include <tidelock/base/time.h>
#include <tidelock/reactor/poll_source.h>
#include <tidelock/reactor/reactor_group.h>
#include <tidelock/replication/wire.h>

#include "pingpong_options.h"

namespace tidelock::tools {

/// What is run on the reactor for the command's thread is done in moments; this is for a machine that is
/// swamped.
inline constexpr Duration kJobTimeout = seconds(30);

/// Thread:   owner core
class PingLane : public PollSource {
 public:
  virtual Status start(Reactor& reactor) = 0;
  /// Server. `payload` lies in the session's memory(). False: no room now, again in a later turn.
  virtual Result<bool> publish(const FrameHeader& header, Bytes payload) = 0;
  /// Client. The next batch's header, checked; the batch itself is released. False: nothing there.
  virtual Result<bool> take_batch(FrameHeader& header) = 0;
  /// False: no room now, again in a later turn.
  virtual Result<bool> send(ControlFrame frame) = 0;
  /// What had arrived before the other side ended is still given; its end is an error after it. False:
  /// nothing there.
  virtual Result<bool> take_control(ControlFrame& frame) = 0;
  virtual void close(const std::string& reason) = 0;
};

/// For the preamble; what does not apply is empty or 0.
struct PingFacts {
  std::string link;  ///< in its own words
  std::string device;
  std::string local;  ///< addresses
  std::string remote;
  std::uint32_t gid_index = 0;
  std::uint32_t mtu_bytes = 0;
  std::uint32_t inline_bytes = 0;
};

/// Thread:   the command's, which may block; it runs no reactor
class PingSession {
 public:
  /// Ends the lane; by then it is off its reactor.
  virtual ~PingSession() = default;
  /// Server: waits for a client and sets `terms` to what it wants. Client: connects, and asks for `terms`.
  /// Until `stop`, or the options' patience is over.
  /// Errors:   those of the link; deadline_exceeded; ECANCELED after `stop`
  virtual Result<PingLane*> meet(PingTerms& terms, const std::atomic<bool>& stop) = 0;
  [[nodiscard]] virtual PingFacts facts() const = 0;
  /// Where the server waits, in the words that a client is given.
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] virtual Bytes memory() const = 0;
  [[nodiscard]] virtual ReactorGroup& group() = 0;
};

Result<std::unique_ptr<PingSession>> open_shm_session(const PingpongOptions& options);
Result<std::unique_ptr<PingSession>> open_verbs_session(const PingpongOptions& options);
/// One reactor, as the options want it.
Result<std::unique_ptr<ReactorGroup>> start_ping_reactor(const PingpongOptions& options);

}  // namespace tidelock::tools
