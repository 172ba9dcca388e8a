// What shm.h makes of the parts of this folder.
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include <sys/socket.h>

#include <tidelock/replication/shm.h>

#include "shm_handshake.h"
#include "shm_link.h"
#include "shm_memory.h"
#include "shm_socket.h"

namespace tidelock {
namespace {

class ShmTransport final : public Transport {
 public:
  Result<std::unique_ptr<PeerListener>> listen(const std::string& address,
                                               const LinkOptions& options) override {
    TL_TRY(check_shm_options(options));
    return shm_listen(address);
  }
  Result<ConnectedPeer> connect(const std::string& address, const Hello& ours, Duration timeout,
                                std::optional<Refusal>* refusal) override {
    return shm_connect(address, ours, timeout, interrupted_, refusal);
  }
  void interrupt() override { interrupted_ = true; }
  [[nodiscard]] const char* kind() const override { return "shm"; }

 private:
  std::atomic<bool> interrupted_{false};
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport() { return std::make_unique<ShmTransport>(); }

Result<ShmPair> shm_pair(const FrameContext& context, const LinkOptions& options) {
  std::array<int, 2> ends{-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0) {
    return Error::from_errno(errno,
                             "cannot make a pair of sockets; raise the limit on open files (ulimit -n)");
  }
  UniqueFd primary(ends[0]);
  UniqueFd replica(ends[1]);
  TL_TRY(const UniqueFd shared, ShmMemory::create(options));
  TL_TRY(auto here, ShmMemory::map_own(shared.get(), options));
  TL_TRY(auto there, ShmMemory::map_peers(shared.get(), options.ring_bytes));
  return ShmPair{
      std::make_unique<ShmRingLink>(NodeRole::primary, std::move(primary), std::move(here), context),
      std::make_unique<ShmRingLink>(NodeRole::replica, std::move(replica), std::move(there), context)};
}

}  // namespace tidelock
