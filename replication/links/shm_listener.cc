// The listening side: the socket's place in the file system, and peers up to their hello.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <optional>
#include <poll.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>

#include "shm_handshake.h"
#include "shm_socket.h"

namespace tidelock {
namespace {

/// Peers that have connected and said nothing. Beyond them the kernel's backlog waits.
constexpr std::size_t kSilentMax = 16;
/// Of them, processes of other users, whose hellos are awaited only to be refused.
constexpr std::ptrdiff_t kForeignMax = 2;

// ---- the path -------------------------------------------------------------------------------------------

/// Two starting processes must not both take a stale socket for theirs. A lock on the directory leaves no
/// file behind; whoever holds it for long (any user can) only costs us this patience.
class DirectoryLock {
 public:
  explicit DirectoryLock(const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    fd_.reset(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (int i = 0; fd_.valid() && i < 100 && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
      ::poll(nullptr, 0, 10);
    }
  }

 private:
  UniqueFd fd_;  // closing it unlocks
};

/// What stands at a path where bind() met something.
enum class Occupant { stale, listening, not_a_socket, foreign };

Occupant probe(const std::string& path, const UnixAddress& address, int& code) {
  code = EADDRINUSE;
  struct stat status {};
  if (!address.abstract && ::lstat(path.c_str(), &status) == 0 && !S_ISSOCK(status.st_mode)) {
    return Occupant::not_a_socket;
  }
  auto socket = unix_socket();
  if (!socket || ::connect(socket->get(), address.get(), address.bytes) == 0) return Occupant::listening;
  code = errno;
  if (code == ECONNREFUSED || code == ENOENT) return Occupant::stale;
  return code == EACCES || code == EPERM ? Occupant::foreign : Occupant::listening;
}

Error in_use(Occupant occupant, const std::string& path) {
  const char* what = "another process listens on '";
  if (occupant == Occupant::not_a_socket) what = "a file that is no socket is in the way at '";
  if (occupant == Occupant::foreign) what = "another user's socket is in the way at '";
  return Error::from_errno(EADDRINUSE, what + path + "'; choose another --socket");
}

Status bind_to(int fd, const std::string& path, const UnixAddress& address) {
  for (int attempt = 0; ::bind(fd, address.get(), address.bytes) != 0; ++attempt) {
    if (errno != EADDRINUSE) {
      return Error::from_errno(errno, "cannot make the socket '" + path +
                                          "'; check that its directory exists and "
                                          "is writable, or choose another --socket");
    }
    int code = 0;
    const Occupant occupant = probe(path, address, code);
    if (occupant != Occupant::stale || address.abstract || attempt > 0) return in_use(occupant, path);
    // Left behind by a process that was killed.
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
      return Error::from_errno(errno, "cannot remove the stale socket '" + path + "'");
    }
  }
  return {};
}

/// Which file it is, so that only that one is ever removed.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

std::optional<FileIdentity> identify(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileIdentity{status.st_dev, status.st_ino};
}

// ---- peers ----------------------------------------------------------------------------------------------

class ShmPending final : public PendingPeer {
 public:
  ShmPending(UniqueFd socket, const Hello& hello) : socket_(std::move(socket)), hello_(hello) {}
  [[nodiscard]] const Hello& hello() const override { return hello_; }
  Result<std::unique_ptr<Link>> accept(const Hello& ours, const LinkOptions& options) override {
    TL_ASSERT(socket_.valid(), "a pending peer is answered once");
    return answer_hello(std::move(socket_), hello_, ours, options);
  }
  void refuse(const Refusal& refusal) override {
    TL_ASSERT(socket_.valid(), "a pending peer is answered once");
    send_refusal(socket_.get(), refusal);
    socket_.reset();
  }

 private:
  UniqueFd socket_;
  Hello hello_;
};

class ShmListener final : public PeerListener {
 public:
  ShmListener(std::string path, UniqueFd socket, std::optional<FileIdentity> file)
      : path_(std::move(path)), socket_(std::move(socket)), file_(file) {
    silent_.reserve(kSilentMax);
  }
  ~ShmListener() override {
    if (file_ && identify(path_) == file_) ::unlink(path_.c_str());
  }

  Result<std::unique_ptr<PendingPeer>> accept(Duration timeout) override;
  void shutdown() override {
    stopped_.store(true, std::memory_order_release);
    ::shutdown(socket_.get(), SHUT_RDWR);  // ends the poll in accept()
  }

 private:
  struct Silent {
    UniqueFd socket;
    Instant deadline;
    bool foreign;
  };
  Status wait_for_peers(Instant deadline);
  Status take_connections();
  Result<std::unique_ptr<PendingPeer>> next_hello();

  std::string path_;
  UniqueFd socket_;
  std::optional<FileIdentity> file_;
  std::vector<Silent> silent_;
  std::atomic<bool> stopped_{false};
};

/// Until somebody connects or speaks, or a silent peer's time is up.
Status ShmListener::wait_for_peers(Instant deadline) {
  std::array<pollfd, kSilentMax + 1> entries{};
  nfds_t count = 0;
  for (const Silent& peer : silent_) {
    entries[count++] = {peer.socket.get(), POLLIN, 0};
    deadline = std::min(deadline, peer.deadline);
  }
  if (silent_.size() < kSilentMax) entries[count++] = {socket_.get(), POLLIN, 0};
  const Duration left = deadline - control_now();
  const std::int64_t left_ms = std::clamp<std::int64_t>((left.ns + 999'999) / 1'000'000, 0, 60'000);
  if (::poll(entries.data(), count, static_cast<int>(left_ms)) >= 0 || errno == EINTR) return {};
  return Error::from_errno(errno, "poll on a listening socket");
}

/// At most kSilentMax at a time, the ones turned away included: whoever connects without end must not keep
/// accept() from its deadline and from the peers that wait.
Status ShmListener::take_connections() {
  for (std::size_t i = 0; i < kSilentMax && silent_.size() < kSilentMax; ++i) {
    UniqueFd peer(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!peer.valid()) {
      const int code = errno;
      if (code == EAGAIN || stopped_.load(std::memory_order_acquire)) return {};
      if (code == EINTR || code == ECONNABORTED) continue;
      // The connection stays in the backlog, so that a caller who tries again at once would spin.
      ::poll(nullptr, 0, 20);
      return Error::from_errno(code, "cannot accept a replica; raise the limit on open files (ulimit -n)");
    }
    const bool foreign = !check_peer_user(peer.get());
    const auto told =
        std::count_if(silent_.begin(), silent_.end(), [](const Silent& s) { return s.foreign; });
    if (foreign && told >= kForeignMax) continue;  // closed without a word
    silent_.push_back({std::move(peer), control_now() + kHandshakeStep, foreign});
  }
  return {};
}

/// The first silent peer that has spoken well. Those that spoke badly, hung up or let their time pass go.
Result<std::unique_ptr<PendingPeer>> ShmListener::next_hello() {
  for (auto peer = silent_.begin(); peer != silent_.end();) {
    auto hello = receive_hello(peer->socket.get(), Instant{0});
    if (!hello && hello.error() == ReactorErrc::deadline_exceeded && control_now() < peer->deadline) {
      ++peer;
      continue;
    }
    UniqueFd socket = std::move(peer->socket);
    const bool foreign = peer->foreign;
    peer = silent_.erase(peer);
    if (foreign) {
      if (hello)
        send_refusal(socket.get(), {RefusalReason::credentials, ::geteuid(), peer_user(socket.get())});
      continue;
    }
    if (hello) return std::unique_ptr<PendingPeer>(std::make_unique<ShmPending>(std::move(socket), *hello));
  }
  return ReactorErrc::deadline_exceeded;
}

Result<std::unique_ptr<PendingPeer>> ShmListener::accept(Duration timeout) {
  const Instant deadline = control_now() + timeout;
  for (;;) {
    if (stopped_.load(std::memory_order_acquire))
      return Error(ReactorErrc::closed, "the listener was shut down");
    TL_TRY(take_connections());
    if (auto pending = next_hello()) return pending;
    if (control_now() >= deadline) return Error(ReactorErrc::deadline_exceeded, "no replica connected");
    TL_TRY(wait_for_peers(deadline));
  }
}

}  // namespace

Result<std::unique_ptr<PeerListener>> shm_listen(const std::string& path) {
  TL_TRY(const UnixAddress address, unix_address(path));
  TL_TRY(auto socket, unix_socket());
  std::optional<DirectoryLock> lock;
  std::optional<FileIdentity> file;
  if (!address.abstract) {
    lock.emplace(path);
    // On Linux bind() gives the file the socket's own mode, less the umask: it is never open to others.
    ::fchmod(socket.get(), S_IRUSR | S_IWUSR);
  }
  TL_TRY(bind_to(socket.get(), path, address));
  if (!address.abstract) file = identify(path);
  constexpr int kBacklog = 128;
  if (::listen(socket.get(), kBacklog) != 0) {
    const int code = errno;
    if (file) ::unlink(path.c_str());
    return Error::from_errno(code, "cannot listen on '" + path + "'");
  }
  return std::unique_ptr<PeerListener>(std::make_unique<ShmListener>(path, std::move(socket), file));
}

}  // namespace tidelock
