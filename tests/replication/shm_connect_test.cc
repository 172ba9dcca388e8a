// How two processes come by a link: the socket's place, the handshake, and peers that break its rules.
#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <poll.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <tidelock/reactor/errc.h>
#include <tidelock/replication/errc.h>

#include "shm_socket.h"
#include "shm_test_support.h"

namespace tidelock::testing {
namespace {

constexpr Duration kPatience = seconds(120);

bool names(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// shm_connect on a thread of its own; both sides of a handshake wait for each other.
class Connecting {
 public:
  explicit Connecting(const std::string& path, const Hello& hello = hello_of(NodeRole::replica))
      : thread_([this, path, hello] {
          result_.emplace(make_shm_transport()->connect(path, hello, kPatience, &refusal_));
        }) {}
  ~Connecting() {
    if (thread_.joinable()) thread_.join();
  }
  Result<ConnectedPeer>& result() {
    if (thread_.joinable()) thread_.join();
    return *result_;
  }
  /// After result().
  [[nodiscard]] const std::optional<Refusal>& refusal() const { return refusal_; }

 private:
  std::optional<Result<ConnectedPeer>> result_;
  std::optional<Refusal> refusal_;
  std::thread thread_;
};

/// A peer without manners: a bare socket.
UniqueFd raw_connect(const std::string& path) {
  auto address = unix_address(path);
  auto socket = unix_socket();
  REQUIRE(address);
  REQUIRE(socket);
  REQUIRE(::connect(socket->get(), address->get(), address->bytes) == 0);
  return *std::move(socket);
}

std::array<std::byte, kHelloBytes> encoded(const Hello& hello) {
  std::array<std::byte, kHelloBytes> bytes;
  encode_hello(hello, bytes);
  return bytes;
}

Status say(int fd, Bytes message, int passed = -1) {
  return send_message(fd, message, passed, control_now() + kPatience);
}

Result<Refusal> await_refusal(int fd) {
  std::array<std::byte, 256> bytes;
  TL_TRY(const std::size_t got, receive_message(fd, bytes, nullptr, control_now() + kPatience));
  return decode_refusal(Bytes(bytes).first(got));
}

/// A good peer is served now, whatever came before it.
void check_serves(PeerListener& listener, const std::string& path) {
  Connecting connecting(path);
  auto pending = listener.accept(kPatience);
  REQUIRE(pending);
  auto link = (*pending)->accept(hello_of(NodeRole::primary), {256 << 10, 4});
  REQUIRE(link);
  CHECK(connecting.result().has_value());
}

}  // namespace

// ---- the socket's place ---------------------------------------------------------------------------------

TEST_CASE("replication/shm: the socket is its owner's alone and goes with the listener") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  const mode_t before = ::umask(0);
  auto listener = listen_at(path);
  ::umask(before);
  struct stat status {};
  REQUIRE(::lstat(path.c_str(), &status) == 0);
  CHECK(S_ISSOCK(status.st_mode));
  CHECK((status.st_mode & 07777) == 0600);
  listener.reset();
  CHECK(::lstat(path.c_str(), &status) != 0);
}

TEST_CASE("replication/shm: a listener removes only its own socket") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  REQUIRE(::unlink(path.c_str()) == 0);
  std::ofstream(path) << "somebody else's";
  listener.reset();
  CHECK(std::filesystem::exists(path));
}

TEST_CASE("replication/shm: a socket in use is refused, a stale one is taken over") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  SUBCASE("in use") {
    auto first = listen_at(path);
    const auto second = make_shm_transport()->listen(path, {});
    REQUIRE_FALSE(second);
    CHECK(second.error().code().value() == EADDRINUSE);
    CHECK(names(second.error().message(), "another process listens on '" + path));
    CHECK(names(second.error().message(), "--socket"));
    check_serves(*first, path);
  }
  SUBCASE("stale") {
    auto address = unix_address(path);
    REQUIRE(address);
    {
      auto dead = unix_socket();
      REQUIRE(dead);
      REQUIRE(::bind(dead->get(), address->get(), address->bytes) == 0);
    }
    REQUIRE(std::filesystem::exists(path));
    auto listener = listen_at(path);
    check_serves(*listener, path);
  }
  SUBCASE("a file that is no socket stays") {
    std::ofstream(path) << "precious";
    const auto listener = make_shm_transport()->listen(path, {});
    REQUIRE_FALSE(listener);
    CHECK(names(listener.error().message(), "no socket"));
    CHECK(std::filesystem::file_size(path) == 8);
  }
  SUBCASE("an abstract name in use") {
    const std::string name = "@tidelock-test-" + std::to_string(::getpid());
    auto first = listen_at(name);
    const auto second = make_shm_transport()->listen(name, {});
    REQUIRE_FALSE(second);
    CHECK(second.error().code().value() == EADDRINUSE);
    check_serves(*first, name);
  }
  SUBCASE("no such directory") {
    const auto listener = make_shm_transport()->listen(directory.file("missing") + "/socket", {});
    REQUIRE_FALSE(listener);
    CHECK(names(listener.error().message(), "directory"));
  }
}

TEST_CASE("replication/shm: a path that does not fit is refused with the limit") {
  const std::string path = "/tmp/" + std::string(110, 'x');
  for (const auto& message :
       {make_shm_transport()->listen(path, {}).error().message(),
        make_shm_transport()->connect(path, hello_of(NodeRole::replica), seconds(1)).error().message()}) {
    CHECK(names(message, "107"));
    CHECK(names(message, "115"));
  }
  CHECK(make_shm_transport()->listen("", {}).error().code().value() == EINVAL);
  CHECK(make_shm_transport()->listen("@", {}).error().code().value() == EINVAL);
}

// ---- the handshake --------------------------------------------------------------------------------------

TEST_CASE("replication/shm: two ends shake hands and carry batches under the agreed context") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  Hello replica = hello_of(NodeRole::replica);
  replica.last_lsn = Lsn{41};
  replica.history = {};
  replica.generation = {};
  Connecting connecting(path, replica);
  auto pending = listener->accept(kPatience);
  REQUIRE(pending);
  CHECK((*pending)->hello().last_lsn == Lsn{41});
  Hello primary = hello_of(NodeRole::primary);
  primary.shard = ShardId{0};  // the shard is the replica's to name
  auto link = (*pending)->accept(primary, {512 << 10, 8});
  REQUIRE(link);
  auto& peer = connecting.result();
  REQUIRE(peer);
  CHECK(peer->hello.ring_bytes == 512 << 10);
  CHECK(peer->hello.history == kContext.history);
  CHECK(std::string((*link)->kind()) == "shm");

  FrameHeader header;
  header.history = kContext.history;
  header.shard = kContext.shard;
  header.entries = 1;
  header.first_lsn = header.last_lsn = Lsn{42};
  const std::vector<std::byte> payload(800, std::byte{7});
  const std::array<Bytes, 1> ranges{Bytes(payload)};
  REQUIRE((*link)->publish(header, ranges));
  (*link)->flush();
  const auto batch = peer->link->receive();
  REQUIRE(batch);
  CHECK(batch->header.generation == kContext.generation);
  CHECK(std::memcmp(batch->payload.data(), payload.data(), payload.size()) == 0);
}

TEST_CASE("replication/shm: without a primary the replica knocks until its deadline and says what to do") {
  const TemporaryDirectory directory;
  const auto peer =
      make_shm_transport()->connect(directory.file("socket"), hello_of(NodeRole::replica), milliseconds(50));
  REQUIRE_FALSE(peer);
  CHECK(peer.error().code().value() == ENOENT);
  CHECK(names(peer.error().message(), directory.file("socket")));
  CHECK(names(peer.error().message(), "start the primary first"));
}

TEST_CASE("replication/shm: a primary that starts later is found") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  Connecting connecting(path);
  ::poll(nullptr, 0, 100);
  auto listener = listen_at(path);
  auto pending = listener->accept(kPatience);
  REQUIRE(pending);
  REQUIRE((*pending)->accept(hello_of(NodeRole::primary), {256 << 10, 4}));
  CHECK(connecting.result().has_value());
}

TEST_CASE("replication/shm: a primary that listens but never answers costs the replica its deadline") {
  const TemporaryDirectory directory;
  auto listener = listen_at(directory.file("socket"));
  const auto peer =
      make_shm_transport()->connect(directory.file("socket"), hello_of(NodeRole::replica), milliseconds(100));
  REQUIRE_FALSE(peer);
  CHECK(peer.error() == ReactorErrc::deadline_exceeded);
}

TEST_CASE("replication/shm: a refusal reaches the replica with both values") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  Connecting connecting(path);
  auto pending = listener->accept(kPatience);
  REQUIRE(pending);
  (*pending)->refuse({RefusalReason::shard_count, 8, 2});
  auto& peer = connecting.result();
  REQUIRE_FALSE(peer);
  CHECK(peer.error() == ReplicationErrc::refused);
  REQUIRE(connecting.refusal());
  CHECK(connecting.refusal()->reason == RefusalReason::shard_count);
  CHECK(connecting.refusal()->ours == 8);
  CHECK(connecting.refusal()->theirs == 2);
  CHECK(names(peer.error().message(), describe({RefusalReason::shard_count, 8, 2})));
}

TEST_CASE("replication/shm: accept ends by its deadline and by shutdown") {
  const TemporaryDirectory directory;
  auto listener = listen_at(directory.file("socket"));
  CHECK(listener->accept(milliseconds(20)).error() == ReactorErrc::deadline_exceeded);
  std::thread stopper([&] {
    ::poll(nullptr, 0, 50);
    listener->shutdown();
  });
  CHECK(listener->accept(kPatience).error() == ReactorErrc::closed);
  stopper.join();
  CHECK(listener->accept(kPatience).error() == ReactorErrc::closed);
}

TEST_CASE(
    "replication/shm: a ring that cannot be made is the primary's error, and the replica hears the end") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  Connecting connecting(path);
  auto pending = listener->accept(kPatience);
  REQUIRE(pending);
  CHECK((*pending)->accept(hello_of(NodeRole::primary), {12'345, 4}).error().code().value() == EINVAL);
  CHECK(connecting.result().error() == ReplicationErrc::link_closed);
}

TEST_CASE("replication/shm: a candidate is answered by a replica, and by who sends if it fetches") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  Hello asks = hello_of(NodeRole::candidate);
  asks.flags.promise = true;
  Hello answers = hello_of(NodeRole::replica);
  answers.flags.promise = true;
  bool legal = true;
  SUBCASE("a promise") {}
  SUBCASE("a fetch") {
    asks.flags = {};
    asks.flags.fetch = true;
    answers = hello_of(NodeRole::primary);
  }
  SUBCASE("a promise of who says that it leads") {
    answers = hello_of(NodeRole::primary);
    legal = false;
  }
  SUBCASE("a fetch from who would send nothing") {
    asks.flags = {};
    asks.flags.fetch = true;
    legal = false;
  }
  Connecting connecting(path, asks);
  auto pending = listener->accept(kPatience);
  REQUIRE(pending);
  CHECK((*pending)->hello().role == NodeRole::candidate);
  const auto link = (*pending)->accept(answers, {256 << 10, 4});
  CHECK(link.has_value() == legal);
  const auto& peer = connecting.result();
  REQUIRE(peer.has_value() == legal);
  if (!legal) CHECK(peer.error() == ReplicationErrc::refused);
  CHECK_FALSE(connecting.refusal());  // it was this side that did not like the answer
}

// ---- replicas that break the rules ----------------------------------------------------------------------

TEST_CASE("replication/shm: a hello that breaks the rules is refused and the next peer is served") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  const UniqueFd peer = raw_connect(path);
  auto hello = encoded(hello_of(NodeRole::replica));
  std::vector<std::byte> message(hello.begin(), hello.end());
  Refusal expected{RefusalReason::malformed, kHelloBytes, kHelloBytes};

  SUBCASE("noise") { std::fill(message.begin(), message.end(), std::byte{0xa5}); }
  SUBCASE("damaged") { message[70] ^= std::byte{1}; }
  SUBCASE("too short") {
    message.resize(20);
    expected.theirs = 20;
  }
  SUBCASE("a single byte") {
    message.resize(1);
    expected.theirs = 1;
  }
  SUBCASE("no wire version in common") {
    store<std::uint16_t>(message.data() + 4, 7);
    store<std::uint16_t>(message.data() + 6, 9);
    expected = {RefusalReason::version, kWireVersionMin << 16 | kWireVersionMax, 7 << 16 | 9};
  }
  SUBCASE("not a replica") {
    hello = encoded(hello_of(NodeRole::primary));
    message.assign(hello.begin(), hello.end());
    expected = {RefusalReason::role, 1, 1};
  }
  REQUIRE(say(peer.get(), message));
  const Instant give_up = control_now() + kPatience;
  do {
    CHECK(listener->accept(milliseconds(20)).error() == ReactorErrc::deadline_exceeded);
    pollfd answer{peer.get(), POLLIN, 0};
    if (::poll(&answer, 1, 0) == 1) break;
  } while (control_now() < give_up);
  const auto refusal = await_refusal(peer.get());
  REQUIRE(refusal);
  CHECK(refusal->reason == expected.reason);
  CHECK(refusal->ours == expected.ours);
  CHECK(refusal->theirs == expected.theirs);
  check_serves(*listener, path);
}

TEST_CASE("replication/shm: a hello that is too long, or brings descriptors, harms nobody") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  const UniqueFd long_winded = raw_connect(path);
  REQUIRE(say(long_winded.get(), std::vector<std::byte>(60'000)));
  const UniqueFd giver = raw_connect(path);
  REQUIRE(say(giver.get(), encoded(hello_of(NodeRole::primary)), giver.get()));
  const UniqueFd leaver = raw_connect(path);
  ::shutdown(leaver.get(), SHUT_RDWR);
  check_serves(*listener, path);
}

TEST_CASE("replication/shm: peers that say nothing do not keep others out") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  std::vector<UniqueFd> silent;
  // More than the listener looks after at a time: the first must have given way.
  for (int i = 0; i < 20; ++i) silent.push_back(raw_connect(path));
  check_serves(*listener, path);
}

TEST_CASE("replication/shm: a replica that never maps the ring costs the primary a bounded time") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto listener = listen_at(path);
  const UniqueFd peer = raw_connect(path);
  REQUIRE(say(peer.get(), encoded(hello_of(NodeRole::replica))));
  auto pending = listener->accept(kPatience);
  REQUIRE(pending);
  CHECK((*pending)->accept(hello_of(NodeRole::primary), {256 << 10, 4}).error() ==
        ReactorErrc::deadline_exceeded);
}

TEST_CASE("replication/shm: another user's process is turned away") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: needs root to become another user");
    return;
  }
  const std::string name = "@tidelock-user-test-" + std::to_string(::getpid());
  auto listener = listen_at(name);  // abstract: no file mode keeps anybody out
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    if (::setuid(65'534) != 0) ::_exit(2);
    const auto peer = make_shm_transport()->connect(name, hello_of(NodeRole::replica), kPatience);
    const std::string expected = describe({RefusalReason::credentials, 0, 65'534});
    const bool refused = !peer && peer.error() == ReplicationErrc::refused;
    ::_exit(refused && names(peer.error().message(), expected) ? 0 : 4);
  }
  int status = -1;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    CHECK(listener->accept(milliseconds(20)).error() == ReactorErrc::deadline_exceeded);
  }
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("replication/shm: another user's crowd does not keep accept from its deadline") {
  if (::geteuid() != 0) {
    MESSAGE("skipped: needs root to become another user");
    return;
  }
  constexpr int kCrowd = 64;  // fits the backlog
  constexpr int kAtATime = 16;
  const std::string name = "@tidelock-crowd-test-" + std::to_string(::getpid());
  auto listener = listen_at(name);
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  const UniqueFd ours(ends[0]);
  UniqueFd childs(ends[1]);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    // Connects the crowd, says so, is told that accept() is over, and exits with how many were turned away.
    const auto address = unix_address(name);
    std::array<int, kCrowd> crowd{};
    bool connected = address.has_value() && ::setuid(65'534) == 0;
    for (int& fd : crowd) {
      fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      connected = connected && ::connect(fd, address->get(), address->bytes) == 0;
    }
    std::byte told{1};
    if (!connected || ::send(childs.get(), &told, 1, 0) != 1 || ::recv(childs.get(), &told, 1, 0) != 1) {
      ::_exit(255);
    }
    int turned_away = 0;
    for (const int fd : crowd) {
      pollfd entry{fd, POLLIN, 0};
      if (::poll(&entry, 1, 0) == 1) ++turned_away;
    }
    ::_exit(turned_away);
  }
  childs.reset();
  REQUIRE(wait_ready(ours.get(), POLLIN, control_now() + kPatience));
  std::byte word{};
  REQUIRE(::recv(ours.get(), &word, 1, 0) == 1);
  CHECK(listener->accept(Duration{0}).error() == ReactorErrc::deadline_exceeded);
  REQUIRE(::send(ours.get(), &word, 1, MSG_NOSIGNAL) == 1);
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) > 0);
  CHECK(WEXITSTATUS(status) <= kAtATime);
}

// ---- primaries that break the rules ---------------------------------------------------------------------

namespace {

UniqueFd memfd(std::uint64_t bytes, int seals) {
  UniqueFd fd(::memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(fd.valid());
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

constexpr std::uint64_t kForgedRing = 256 << 10;
constexpr std::uint64_t kForgedTotal = shm_total_bytes(kForgedRing, 4);

/// Shared memory as an honest primary makes it, but for the header.
UniqueFd memfd_with(const ShmHeader& header, std::uint64_t bytes = kForgedTotal) {
  UniqueFd fd = memfd(bytes, F_SEAL_SHRINK | F_SEAL_GROW);
  REQUIRE(::pwrite(fd.get(), &header, sizeof header, 0) == sizeof header);
  return fd;
}

constexpr ShmHeader kHonest{kShmMagic, kShmLayoutVersion, 4, kForgedRing, kForgedTotal};

}  // namespace

TEST_CASE("replication/shm: a primary that hands over something else is left") {
  const TemporaryDirectory directory;
  const std::string path = directory.file("socket");
  auto address = unix_address(path);
  REQUIRE(address);
  auto listening = unix_socket();
  REQUIRE(listening);
  REQUIRE(::bind(listening->get(), address->get(), address->bytes) == 0);
  REQUIRE(::listen(listening->get(), 4) == 0);

  Hello answer = hello_of(NodeRole::primary);
  answer.ring_bytes = kForgedRing;
  auto message = encoded(answer);
  std::vector<std::byte> said(message.begin(), message.end());
  UniqueFd given;
  ReplicationErrc expected = ReplicationErrc::malformed;
  ShmHeader header = kHonest;

  SUBCASE("no seals: the pages could go away under the replica") { given = memfd(kForgedTotal, 0); }
  SUBCASE("sealed against growth only") { given = memfd(kForgedTotal, F_SEAL_GROW); }
  SUBCASE("shorter than its header says") { given = memfd_with(header, kForgedTotal - 4096); }
  SUBCASE("longer than its header says") { given = memfd_with(header, kForgedTotal + 4096); }
  SUBCASE("no bytes at all") { given = memfd(0, F_SEAL_SHRINK | F_SEAL_GROW); }
  SUBCASE("another magic") {
    header.magic ^= 1;
    given = memfd_with(header);
  }
  SUBCASE("another layout") {
    header.layout_version = 2;
    given = memfd_with(header);
    expected = ReplicationErrc::bad_version;
  }
  SUBCASE("lanes that do not fit") {
    header.control_slots = 256;
    given = memfd_with(header);
  }
  SUBCASE("lanes out of range") {
    header.control_slots = 0;
    given = memfd_with(header);
  }
  SUBCASE("a ring that is not what the hello said") {
    header.ring_bytes = 2 * kForgedRing;
    given = memfd_with(header);
  }
  SUBCASE("no descriptor") {}
  SUBCASE("a descriptor that is no memory") { given = *unix_socket(); }
  SUBCASE("a plain file") {
    given.reset(::open(directory.file("file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }
  SUBCASE("an answer that is neither hello nor refusal") { said.resize(50); }
  SUBCASE("a refusal that is damaged") {
    said.resize(kRefusalBytes);
    expected = ReplicationErrc::bad_magic;
  }
  SUBCASE("another replica") {
    answer.role = NodeRole::replica;
    message = encoded(answer);
    said.assign(message.begin(), message.end());
    expected = ReplicationErrc::refused;
  }

  Connecting connecting(path);
  REQUIRE(wait_ready(listening->get(), POLLIN, control_now() + kPatience));
  const UniqueFd peer(::accept4(listening->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  REQUIRE(peer.valid());
  std::array<std::byte, 256> hello;
  REQUIRE(receive_message(peer.get(), hello, nullptr, control_now() + kPatience));
  REQUIRE(say(peer.get(), said, given.get()));
  auto& result = connecting.result();
  REQUIRE_FALSE(result);
  CHECK_MESSAGE(result.error() == expected, result.error().message());
}

TEST_CASE("replication/shm: no page is filled in for a primary whose sizes contradict each other") {
  constexpr std::uint64_t kLargeRing = 64 << 20;
  constexpr std::uint64_t kLargeTotal = shm_total_bytes(kLargeRing, 4);
  std::uint64_t said = kLargeRing;
  ShmHeader header{kShmMagic, kShmLayoutVersion, 4, kLargeRing, kLargeTotal};
  SUBCASE("the hello says less") { said = kForgedRing; }
  SUBCASE("hello and header say less than there is") {
    said = kForgedRing;
    header = kHonest;
  }
  SUBCASE("another magic") { header.magic ^= 1; }
  const UniqueFd given = memfd_with(header, kLargeTotal);
  CHECK(ShmMemory::map_peers(given.get(), said).error() == ReplicationErrc::malformed);
  struct stat status {};
  REQUIRE(::fstat(given.get(), &status) == 0);
  CHECK(status.st_blocks * 512 <= 4096);
}

TEST_CASE("replication/shm: what a primary hands over is sealed and no larger than it says") {
  auto shared = ShmMemory::create({kForgedRing, 4});
  REQUIRE(shared);
  CHECK(::ftruncate(shared->get(), 0) != 0);
  CHECK(::ftruncate(shared->get(), 1 << 30) != 0);
  CHECK(::fcntl(shared->get(), F_ADD_SEALS, F_SEAL_WRITE) != 0);
  CHECK(ShmMemory::map_peers(shared->get(), kForgedRing).has_value());
}

}  // namespace tidelock::testing
