// Three processes, a node of a group each. The primary's is killed at any moment while it writes, another one
// is promoted, and has all that was acknowledged; whoever was killed comes back empty and learns.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <tidelock/engine/engine.h>

#include "engine/group_fixture.h"

using namespace tidelock;
using namespace tidelock::test;

namespace {

constexpr std::uint32_t kProcesses = 3;
constexpr std::uint32_t kKeysMax = 1 << 20;
constexpr std::uint32_t kWritesARound = 400;

enum class Order : int { none, write, promote, check, settle, leads };

/// What the processes share: orders go down, answers come up, and what was acknowledged is known to all,
/// whoever dies.
struct Board {
  struct Node {
    std::atomic<Order> order{Order::none};
    std::atomic<int> answer{-1};  ///< -1: none yet
  };
  Node nodes[kProcesses + 1];
  std::atomic<std::uint32_t> next_key{0};
  std::atomic<std::uint32_t> checked{0};
  std::atomic<std::uint8_t> acknowledged[kKeysMax];
};

Board* make_board() {
  void* const memory =
      ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return new (memory) Board;
}

std::string text_of(std::uint32_t key) { return "key" + std::to_string(key); }

/// Writes one after the other, and says of each that it was acknowledged.
int write_some(Engine& engine, Board& board) {
  for (std::uint32_t i = 0; i < kWritesARound; ++i) {
    const std::uint32_t key = board.next_key.fetch_add(1);
    if (key >= kKeysMax) return 1;
    if (engine.put(text_of(key), "of " + text_of(key))) board.acknowledged[key].store(1);
  }
  return 0;
}

/// How many of the acknowledged are not there, or are not what was written.
int count_missing(Engine& engine, Board& board) {
  int missing = 0;
  std::string value;
  const std::uint32_t keys = std::min(board.next_key.load(), kKeysMax);
  for (std::uint32_t key = 0; key < keys; ++key) {
    if (board.acknowledged[key].load() == 0) continue;
    board.checked.fetch_add(1);
    const auto read = engine.get(text_of(key), value, {{}, {}, {}, kPatience, ReadLevel::linearizable});
    if (!read || value != "of " + text_of(key)) ++missing;
  }
  return missing;
}

int settled(const Engine& engine) {
  return eventually([&] {
    for (const ShardRole& role : engine.roles())
      if (role.role == GroupRole::none || !role.memory) return false;
    return true;
  })
             ? 0
             : 1;
}

[[noreturn]] void serve(const Options& options, Board& board) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const auto engine = Engine::open(options);
  Board::Node& node = board.nodes[options.node];
  while (engine) {
    int answer = 0;
    switch (node.order.exchange(Order::none)) {
      case Order::none:
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      case Order::write:
        answer = write_some(**engine, board);
        break;
      case Order::promote:
        answer = (*engine)->promote(kPatience) ? 0 : 1;
        break;
      case Order::check:
        answer = count_missing(**engine, board);
        break;
      case Order::settle:
        answer = settled(**engine);
        break;
      case Order::leads:
        answer = (*engine)->roles()[0].role == GroupRole::leading ? 1 : 0;
        break;
    }
    node.answer.store(answer);
  }
  ::_exit(1);
}

class NodeProcesses {
 public:
  NodeProcesses() : board_(make_board()), pids_(kProcesses + 1, 0) {
    for (std::uint32_t node = 1; node <= kProcesses; ++node) addresses_.push_back({node, unique_path()});
    for (std::uint32_t node = 1; node <= kProcesses; ++node) start(node);
  }
  NodeProcesses(const NodeProcesses&) = delete;
  NodeProcesses& operator=(const NodeProcesses&) = delete;
  ~NodeProcesses() {
    for (std::uint32_t node = 1; node <= kProcesses; ++node) kill(node);
    ::munmap(board_, sizeof(Board));
  }

  void start(std::uint32_t node) {
    board_->nodes[node].order = Order::none;
    pids_[node] = ::fork();
    REQUIRE(pids_[node] >= 0);
    if (pids_[node] == 0) serve(node_options(addresses_, node, {}), *board_);
  }
  void kill(std::uint32_t node) {
    if (pids_[node] <= 0) return;
    ::kill(pids_[node], SIGKILL);
    while (::waitpid(pids_[node], nullptr, 0) < 0 && errno == EINTR) {
    }
    pids_[node] = 0;
  }
  void tell(std::uint32_t node, Order order) {
    board_->nodes[node].answer = -1;
    board_->nodes[node].order = order;
  }
  /// What it waits for itself has a deadline, and it may have much to look through.
  int ask(std::uint32_t node, Order order) {
    tell(node, order);
    for (int patience = 0; patience < 5; ++patience) {
      if (eventually([&] { return board_->nodes[node].answer >= 0; })) break;
    }
    return board_->nodes[node].answer;
  }
  /// 0: none yet.
  std::uint32_t leader() {
    for (std::uint32_t node = 1; node <= kProcesses; ++node) {
      if (ask(node, Order::leads) == 1) return node;
    }
    return 0;
  }
  [[nodiscard]] Board& board() const { return *board_; }

 private:
  Board* board_;
  std::vector<pid_t> pids_;
  std::vector<NodeAddress> addresses_;
};

int rounds_wanted() {
  const char* const text = std::getenv("TIDELOCK_KILL_ROUNDS");
  return text != nullptr ? std::max(1, std::atoi(text)) : 10;
}

}  // namespace

TEST_SUITE_BEGIN("engine/group_processes");

TEST_CASE("kill -9 of the primary at any moment loses nothing that was acknowledged") {
  NodeProcesses nodes;
  std::uint32_t state = static_cast<std::uint32_t>(::getpid());
  const auto random = [&state](std::uint32_t below) {
    state = state * 1664525U + 1013904223U;
    return (state >> 8) % below;
  };
  for (std::uint32_t node = 1; node <= kProcesses; ++node) REQUIRE(nodes.ask(node, Order::settle) == 0);
  std::uint32_t leader = 0;
  REQUIRE(eventually([&] { return (leader = nodes.leader()) != 0; }));
  const int rounds = rounds_wanted();
  for (int round = 0; round < rounds; ++round) {
    CAPTURE(round);
    const std::uint32_t begun = nodes.board().next_key;
    nodes.tell(leader, Order::write);
    REQUIRE(eventually([&] { return nodes.board().next_key > begun + random(20); }));
    std::this_thread::sleep_for(std::chrono::microseconds(random(20'000)));
    nodes.kill(leader);
    const std::uint32_t killed = leader;
    leader = (killed + random(2)) % kProcesses + 1;
    if (leader == killed) leader = killed % kProcesses + 1;
    REQUIRE(nodes.ask(leader, Order::promote) == 0);
    REQUIRE(nodes.ask(leader, Order::check) == 0);
    nodes.start(killed);
    REQUIRE(nodes.ask(killed, Order::settle) == 0);
  }
  CHECK(nodes.board().checked > 0);
  MESSAGE(rounds << " rounds, " << nodes.board().next_key.load() << " writes");
}

TEST_SUITE_END();
