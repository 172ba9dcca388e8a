// What an engine shows of its links: to its embedder, and on a socket to other processes of its user.
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <tidelock/engine/errc.h>

#include "engine_fixture.h"
#include "has.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

LinkInfo only_link(const Engine& engine) {
  const auto links = engine.links();
  REQUIRE(links.size() == 1);
  return links[0];
}

/// A client of an inspection socket.
class Asking {
 public:
  explicit Asking(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (path[0] == '@') address.sun_path[0] = '\0';
    const std::size_t bytes = offsetof(sockaddr_un, sun_path) + path.size() + (path[0] == '@' ? 0 : 1);
    const timeval patience{60, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ =
        ::connect(fd_, reinterpret_cast<const sockaddr*>(&address), static_cast<socklen_t>(bytes)) == 0;
  }
  ~Asking() { ::close(fd_); }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
  [[nodiscard]] bool connected() const { return connected_; }
  /// The answer's line; empty if the other side hung up.
  std::string ask(const std::string& request) {
    static_cast<void>(::send(fd_, request.data(), request.size(), MSG_NOSIGNAL));
    std::string line;
    for (char c = 0; ::recv(fd_, &c, 1, 0) == 1;) {
      if (c == '\n') return line;
      line += c;
    }
    return "";
  }

 private:
  int fd_;
  bool connected_ = false;
};

}  // namespace

TEST_SUITE_BEGIN("engine/inspect");

TEST_CASE("each side of a link names the other, and counts what the link carried") {
  const Pair pair;
  REQUIRE(pair.primary->put("key", "value", {AckLevel::applied, kPatience}).has_value());
  const LinkInfo at_primary = only_link(*pair.primary);
  CHECK(at_primary.peer_node == 2);
  CHECK(at_primary.kind == "shm");
  CHECK(at_primary.description == "shm");
  CHECK(at_primary.state == "attached");
  CHECK(at_primary.generation == 1);
  CHECK(at_primary.batches_out == 1);
  CHECK(at_primary.bytes_out > 0);
  CHECK(at_primary.control_in > 0);
  REQUIRE(at_primary.transitions.size() == 1);
  CHECK(at_primary.transitions[0].state == "attached");
  const LinkInfo at_replica = only_link(*pair.replica);
  CHECK(at_replica.peer_node == 1);
  CHECK(at_replica.generation == 1);
  CHECK(at_replica.batches_in == 1);
  CHECK(pair.primary->link_count() == 1);
  // On a reactor nobody may wait for the others: what was seen last.
  in_fiber(*pair.primary, {0}, [&] { CHECK(only_link(*pair.primary).batches_out == 1); });
}

TEST_CASE("a link that was lost stays in sight, and its successor continues the story") {
  const std::string path = unique_path();
  const auto primary = open(primary_options(path));
  {
    auto replica = open(replica_options(path));
    REQUIRE(replica->close(kPatience).has_value());
    CHECK(only_link(*replica).state == "closed");
    CHECK(eventually([&] { return only_link(*primary).state == "closed"; }));
  }
  const auto replica = open(replica_options(path));
  CHECK(eventually([&] { return only_link(*primary).state == "attached"; }));
  const LinkInfo info = only_link(*primary);
  CHECK(info.generation == 2);
  REQUIRE(info.transitions.size() == 3);
  CHECK(info.transitions[0].state == "attached");
  CHECK(info.transitions[1].state == "closed");
  CHECK(!info.transitions[1].detail.empty());
  CHECK(info.transitions[2].state == "attached");
  CHECK(info.transitions[0].age_ns >= info.transitions[2].age_ns);
}

TEST_CASE("a replica says that it looks for its primary again") {
  const std::string path = unique_path();
  auto primary = open(primary_options(path));
  const auto replica = open(replica_options(path));
  primary.reset();
  CHECK(eventually([&] { return only_link(*replica).state == "reconnecting"; }));
}

TEST_CASE("the inspection socket answers its one request, line by line") {
  const std::string path = unique_path();
  Options options = primary_options(path);
  options.inspect = path + "-inspect";
  const auto primary = open(options);
  const auto replica = open(replica_options(path));
  Asking asking(options.inspect);
  REQUIRE(asking.connected());
  for (int i = 0; i < 3; ++i) {
    const std::string line = asking.ask("links\n");
    CHECK(has(line, "\"role\":\"primary\""));
    CHECK(has(line, "\"pid\":" + std::to_string(::getpid())));
    CHECK(has(line, "\"peer_node\":2"));
    CHECK(has(line, "\"state\":\"attached\""));
  }
}

TEST_CASE("the inspection socket puts up with those who ask nonsense, or nothing") {
  const std::string path = unique_path();
  Options options = small_options();
  options.inspect = path;
  auto engine = open(options);
  Asking silent(path);
  Asking nonsense(path);
  CHECK(has(nonsense.ask("get /\n"), "error"));
  Asking endless(path);
  CHECK(endless.ask(std::string(1 << 12, 'x')).empty());  // hung up on
  CHECK(has(nonsense.ask("links\n"), "\"links\":[]"));
  // Neither keeps the engine from closing, and nothing answers afterwards.
  REQUIRE(engine->close(kPatience).has_value());
  CHECK_FALSE(Asking(path).connected());
}

TEST_CASE("an inspection socket in the file system is its user's, and goes with the engine") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("tidelock-inspect-test-" + std::to_string(::getpid())))
          .string();
  Options options = small_options();
  options.inspect = path;
  {
    const auto engine = open(options);
    struct stat status {};
    REQUIRE(::lstat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0600);
    const auto second = Engine::open(options);
    REQUIRE(!second.has_value());
    CHECK(has(second.error().message(), path));
    CHECK(Asking(path).connected());
  }
  CHECK_FALSE(std::filesystem::exists(path));
}

TEST_CASE("an abstract name that somebody has is an event, and the engine works without") {
  const std::string path = unique_path();
  Options options = small_options();
  options.inspect = path + "-taken";
  REQUIRE(options.inspect[0] == '@');
  const auto first = open(options);
  const auto second = Engine::open(options);
  REQUIRE(second.has_value());
  CHECK(has_event(**second, "cannot listen on '" + options.inspect));
  CHECK((*second)->put("key", "value").has_value());
  CHECK(Asking(options.inspect).connected());  // to the first
}

TEST_CASE("a file that is no socket, named as the inspection socket, is refused and survives") {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("tidelock-inspect-file-" + std::to_string(::getpid())))
          .string();
  std::ofstream(path) << "precious";
  Options options = small_options();
  options.inspect = path;
  const auto refused = Engine::open(options);
  REQUIRE_FALSE(refused);
  CHECK(has(refused.error().message(), "is no socket"));
  std::string kept;
  std::ifstream(path) >> kept;
  CHECK(kept == "precious");
  std::filesystem::remove(path);
}

TEST_SUITE_END();
