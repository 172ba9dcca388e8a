// Start, close and the peer's death: what happens once in a link's life.
#include "shm_link.h"

#include <array>
#include <cerrno>
#include <poll.h>
#include <utility>

#include <sys/socket.h>

#include <tidelock/base/check.h>
#include <tidelock/replication/errc.h>

namespace tidelock {
namespace {

/// An honest peer sends one byte each time that we park, and a socket holds a few hundred of them.
constexpr int kWakeupsDrainedMax = 65'536;

}  // namespace

void PositionQueue::grow() {
  std::vector<std::uint64_t> larger(slots_.size() * 2);
  std::size_t count = 0;
  while (!empty()) larger[count++] = pop();
  slots_ = std::move(larger);
  head_ = 0;
  tail_ = count;
}

ShmRingLink::ShmRingLink(NodeRole role, UniqueFd socket, ShmMemory memory, const FrameContext& context)
    : role_(role),
      memory_(std::move(memory)),
      context_(context),
      batch_bytes_max_(static_cast<std::uint32_t>(memory_.ring_bytes() / 4) - kFrameHeaderBytes),
      ring_mask_(memory_.ring_bytes() - 1),
      mine_(role == NodeRole::primary ? memory_.primary() : memory_.replica()),
      peers_(role == NodeRole::primary ? memory_.replica() : memory_.primary()),
      lane_out_(role == NodeRole::primary ? memory_.primary_lane() : memory_.replica_lane()),
      lane_in_(role == NodeRole::primary ? memory_.replica_lane() : memory_.primary_lane()),
      socket_(std::move(socket)) {}

ShmRingLink::~ShmRingLink() { close("the link was destroyed"); }

Status ShmRingLink::start(Reactor& reactor) {
  TL_ASSERT(reactor_ == nullptr, "a link is started once");
  reactor_ = &reactor;
  last_heard_ = reactor.now();
  if (closed_) return closed_error();
  return watch_.start(reactor, socket_.get(), POLLIN | POLLRDHUP | POLLHUP, &ShmRingLink::on_socket, this);
}

void ShmRingLink::on_socket(void* context, std::uint32_t) {
  static_cast<ShmRingLink*>(context)->drain_socket();
}

void ShmRingLink::drain_socket() {
  std::array<std::byte, 64> bytes;
  for (int i = 0; i < kWakeupsDrainedMax; ++i) {
    if (closed_) return;
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0 || (got < 0 && errno == EINTR)) continue;
    if (got < 0 && errno == EAGAIN) return;
    return peer_gone("peer process ended");
  }
  shut("the peer floods the socket with wakeups");
}

/// What the peer left is still received: it is as valid as ever, and the acks among it were earned. The words
/// are frozen first, so that this ends even if the peer is not as gone as its socket says.
void ShmRingLink::peer_gone(const char* reason) {
  look();
  if (closed_) return;
  if (!gone_) {
    gone_ = true;
    gone_reason_ = reason;
  }
  if (all_read()) shut(gone_reason_);
}

bool ShmRingLink::all_read() const { return read_ == produced_seen_ && control_read_ == control_seen_; }

Error ShmRingLink::nothing_left() {
  if (!closed_ && gone_ && all_read()) shut(gone_reason_);
  return closed_ ? closed_error() : Error(ReplicationErrc::link_empty);
}

Error ShmRingLink::closed_error() {
  if (closed_) close_reported_ = true;
  return Error(ReplicationErrc::link_closed, closed_ ? close_reason_ : gone_reason_);
}

Error ShmRingLink::fail(Error error) {
  shut(error.message());
  return error;
}

void ShmRingLink::close(const std::string& reason) {
  if (closed_) return;
  flush();  // what was published before close() still reaches the peer
  shut(reason.empty() ? "closed" : reason);
  close_reported_ = true;
}

/// Idempotent: the first reason stays.
void ShmRingLink::shut(const std::string& reason) {
  if (closed_) return;
  closed_ = true;
  close_reason_ = reason;
  mine_.closed.store(1, std::memory_order_release);
  mine_.parked.store(kShmAwake, std::memory_order_relaxed);
  watch_.stop();
  // The end of the socket wakes a parked peer.
  ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

}  // namespace tidelock
