#include <atomic>
#include <thread>
#include <utility>

#include "ring_fixture.h"

using namespace ring_test;

namespace {

struct Failures {
  static void record(void* context, std::uint64_t data) {
    static_cast<Failures*>(context)->data.push_back(data);
  }
  std::vector<std::uint64_t> data;
};

struct Messages {
  static void record(void* context, std::uint64_t data) {
    static_cast<Messages*>(context)->data.push_back(data);
  }
  std::vector<std::uint64_t> data;
};

/// A thread with a ring of its own, as a reactor has one.
template <class Body>
class RingThread {
 public:
  explicit RingThread(Body body)
      : thread_([this, run = std::move(body)]() mutable {
          auto ring = UringBackend::create({.entries = 8});
          fd_.store(ring ? (*ring)->fd() : -2);
          if (ring) run(**ring);
        }) {
    while (fd_.load() == -1) std::this_thread::yield();
    REQUIRE(fd_.load() >= 0);
  }
  ~RingThread() { thread_.join(); }
  [[nodiscard]] int fd() const { return fd_.load(); }

 private:
  std::atomic<int> fd_{-1};
  std::thread thread_;
};

bool has_messages(const UringBackend& ring) {
  if (!ring.features().msg_ring) MESSAGE("skipped: no MSG_RING");
  return ring.features().msg_ring;
}

}  // namespace

TEST_CASE("reactor/ring: messages reach another thread's ring in order, none lost") {
  constexpr std::uint64_t kMessages = 20'000;
  auto sender = make_ring({.entries = 8, .max_operations = 64});
  if (!has_messages(*sender)) return;
  Messages arrived;
  {
    RingThread target([&arrived](UringBackend& ring) {
      ring.on_message(&Messages::record, &arrived);
      drive(ring, [&] { return arrived.data.size() == kMessages; });
    });
    Failures failures;
    for (std::uint64_t i = 1; i <= kMessages; ++i) {
      bool sent = false;
      REQUIRE(drive(*sender, [&] {
        return sent = sent || sender->send_message(target.fd(), i, &Failures::record, &failures).has_value();
      }));
    }
    CHECK(drive(*sender, [&] { return sender->in_flight() == 0; }));
    CHECK(failures.data.empty());
  }
  REQUIRE(arrived.data.size() == kMessages);
  bool in_order = true;
  for (std::uint64_t i = 0; i < kMessages; ++i) in_order = in_order && arrived.data[i] == i + 1;
  CHECK(in_order);
}

TEST_CASE(
    "reactor/ring: a wakeup ends the target's sleep, is not reported and leaves its sender nothing to reap") {
  auto sender = make_ring({.entries = 8});
  if (!has_messages(*sender)) return;
  Messages arrived;
  std::atomic<int> sleeping{0};
  std::atomic<bool> woken{false};
  {
    RingThread target([&](UringBackend& ring) {
      ring.on_message(&Messages::record, &arrived);
      sleeping = 1;
      woken = ring.wait(seconds(60)) == WaitEnd::completion;
      ring.poll(64);
    });
    while (sleeping == 0) std::this_thread::yield();
    Failures failures;
    REQUIRE(sender->send_message(target.fd(), 0, &Failures::record, &failures));
    CHECK(sender->in_flight() == 0);
    CHECK(!sender->has_work());
    CHECK(sender->poll(64) == 0);
    CHECK(failures.data.empty());
  }
  CHECK(woken);
  CHECK(arrived.data.empty());
}

TEST_CASE("reactor/ring: a message to a ring that is gone comes back to its sender") {
  auto sender = make_ring({.entries = 8});
  if (!has_messages(*sender)) return;
  auto other = make_ring({.entries = 8});
  const int gone = other->fd();
  other.reset();
  Failures wakeups;
  Failures messages;
  REQUIRE(sender->send_message(gone, 0, &Failures::record, &wakeups));
  REQUIRE(sender->send_message(gone, 42, &Failures::record, &messages));
  REQUIRE(drive(*sender, [&] { return wakeups.data.size() == 1 && messages.data.size() == 1; }));
  CHECK(wakeups.data.front() == 0);
  CHECK(messages.data.front() == 42);
  CHECK(sender->in_flight() == 0);
}

TEST_CASE("reactor/ring: a message to a descriptor that is no ring comes back to its sender") {
  auto sender = make_ring({.entries = 8});
  if (!has_messages(*sender)) return;
  Pipe pipe;
  Failures failures;
  REQUIRE(sender->send_message(pipe.read_end(), 7, &Failures::record, &failures));
  REQUIRE(drive(*sender, [&] { return failures.data.size() == 1; }));
  CHECK(failures.data.front() == 7);
}

TEST_CASE("reactor/ring: a target whose CQ is full still gets every message") {
  auto sender = make_ring({.entries = 8, .max_operations = 1024});
  if (!has_messages(*sender)) return;
  auto target = make_ring({.entries = 8});
  Messages arrived;
  Failures failures;
  target->on_message(&Messages::record, &arrived);
  for (std::uint64_t i = 1; i <= 500; ++i) {
    REQUIRE(sender->send_message(target->fd(), i, &Failures::record, &failures));
  }
  REQUIRE(drive(*sender, [&] { return sender->in_flight() == 0; }));
  REQUIRE(drive(*target, [&] { return arrived.data.size() + failures.data.size() == 500; }));
  CHECK(failures.data.empty());
  CHECK(target->stats().cq_overflows > 0);
  for (std::uint64_t i = 0; i < arrived.data.size(); ++i) CHECK(arrived.data[i] == i + 1);
}

TEST_CASE("reactor/ring: with all message slots in flight a message is refused, a wakeup is not") {
  auto sender = make_ring({.entries = 8, .max_operations = 1});
  if (!has_messages(*sender)) return;
  auto target = make_ring({.entries = 8});
  REQUIRE(sender->send_message(target->fd(), 1, nullptr, nullptr));
  const Status refused = sender->send_message(target->fd(), 2, nullptr, nullptr);
  REQUIRE(!refused);
  CHECK(refused.error().code().value() == EAGAIN);
  CHECK(sender->send_message(target->fd(), 0, nullptr, nullptr));
  REQUIRE(drive(*sender, [&] { return sender->in_flight() == 0; }));
  CHECK(sender->send_message(target->fd(), 2, nullptr, nullptr));
  REQUIRE(drive(*sender, [&] { return sender->in_flight() == 0; }));
}

TEST_CASE("reactor/ring: more senders of wakeups than are remembered still learn of their failures") {
  constexpr std::size_t kSenders = 1100;
  auto sender = make_ring({.entries = 8, .max_operations = 512});
  if (!has_messages(*sender)) return;
  std::vector<Failures> failures(kSenders);
  for (Failures& each : failures) REQUIRE(sender->send_message(-1, 0, &Failures::record, &each));
  REQUIRE(drive(*sender, [&] {
    for (const Failures& each : failures) {
      if (each.data.size() != 1) return false;
    }
    return true;
  }));
}

TEST_CASE("reactor/ring: a thread without a ring sends messages and wakeups") {
  auto target = make_ring({.entries = 8});
  if (!target->features().host_msg_ring) {
    MESSAGE("skipped: no SEND_MSG_RING registration");
    return;
  }
  Messages arrived;
  target->on_message(&Messages::record, &arrived);
  std::atomic<int> sent{0};
  std::thread host([&, fd = target->fd()] {
    for (const std::uint64_t data : {5ULL, 0ULL, 6ULL}) {
      if (UringBackend::send_from_host(fd, data)) ++sent;
    }
  });
  CHECK(drive(*target, [&] { return arrived.data.size() == 2; }));
  host.join();
  CHECK(sent == 3);
  CHECK(arrived.data == std::vector<std::uint64_t>{5, 6});
  CHECK(!UringBackend::send_from_host(-1, 5));
}

TEST_CASE("reactor/ring: with MSG_RING turned off sends are refused and a notice says what is done instead") {
  auto ring = make_ring({.allow_msg_ring = false});
  CHECK(!ring->features().msg_ring);
  CHECK(!ring->features().host_msg_ring);
  const Status refused = ring->send_message(ring->fd(), 1, nullptr, nullptr);
  REQUIRE(!refused);
  CHECK(refused.error().code().value() == EOPNOTSUPP);
  REQUIRE(!ring->notices().empty());
  CHECK(ring->notices().back().find("eventfd") != std::string::npos);
}
