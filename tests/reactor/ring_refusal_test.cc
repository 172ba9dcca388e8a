// A kernel that refuses io_uring_enter for a while: a seccomp supervisor answers for it, call by call.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <poll.h>
#include <thread>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "ring_fixture.h"

using namespace ring_test;

namespace {

/// Runs a thread whose submissions get the scripted answers first, and the kernel's own afterwards. An answer
/// is an errno value, or 0 for "nothing taken".
class RefusingKernel {
 public:
  /// False if this machine lets nobody supervise.
  bool run(std::function<void(RefusingKernel&)> body) {
    std::atomic<int> listener{-1};
    std::atomic<bool> ended{false};
    std::thread victim([&] {
      listener = supervise_this_thread();
      if (listener >= 0) body(*this);
      ended = true;
    });
    while (listener == -1) std::this_thread::yield();
    const bool supervised = listener >= 0;
    while (supervised && !ended) answer_next(listener);
    victim.join();
    if (supervised) ::close(listener);
    return supervised;
  }
  void script(std::deque<int> answers) {
    const std::lock_guard lock(mutex_);
    answers_ = std::move(answers);
  }
  /// EBUSY to every submission until the ring has entered for its events alone, as kernels before 5.19 do
  /// while completions wait for room.
  void be_busy_until_events() {
    const std::lock_guard lock(mutex_);
    busy_ = true;
  }

 private:
  static int supervise_this_thread() {
    constexpr auto kReturn = static_cast<std::uint16_t>(BPF_RET | BPF_K);
    std::array<sock_filter, 4> program{{
        {static_cast<std::uint16_t>(BPF_LD | BPF_W | BPF_ABS), 0, 0, offsetof(seccomp_data, nr)},
        {static_cast<std::uint16_t>(BPF_JMP | BPF_JEQ | BPF_K), 0, 1, __NR_io_uring_enter},
        {kReturn, 0, 0, SECCOMP_RET_USER_NOTIF},
        {kReturn, 0, 0, SECCOMP_RET_ALLOW},
    }};
    const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -2;
    const long fd =
        ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &filter);
    return fd < 0 ? -2 : static_cast<int>(fd);
  }

  void answer_next(int listener) {
    pollfd ready{listener, POLLIN, 0};
    if (::poll(&ready, 1, 10) != 1 || (ready.revents & POLLIN) == 0) return;
    seccomp_notif call{};
    if (::ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) != 0) return;
    seccomp_notif_resp answer{};
    answer.id = call.id;
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
    const std::lock_guard lock(mutex_);
    const bool submits = call.data.args[1] > 0;
    busy_ = busy_ && submits;
    if (busy_) {
      answer.flags = 0;
      answer.error = -EBUSY;
    } else if (submits && !answers_.empty()) {
      answer.flags = 0;
      answer.error = -answers_.front();
      answers_.pop_front();
    }
    ::ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
  }

  std::mutex mutex_;
  std::deque<int> answers_;
  bool busy_ = false;
};

void run_or_skip(const std::function<void(UringBackend&, RefusingKernel&)>& body) {
  RefusingKernel kernel;
  const bool ran = kernel.run([&](RefusingKernel& self) {
    auto ring = UringBackend::create({.entries = 8, .max_operations = 64});
    CHECK(ring);
    if (ring) body(**ring, self);
  });
  if (!ran) MESSAGE("skipped: this machine allows no seccomp supervisor");
}

constexpr IoRequest kNop{.kind = IoRequest::Kind::nop};

}  // namespace

TEST_CASE("reactor/ring: a submission that the kernel refuses for the moment is offered again") {
  run_or_skip([](UringBackend& ring, RefusingKernel& kernel) {
    Counter counter;
    kernel.script({EINTR, EAGAIN, EBUSY, 0, EINTR});
    for (int i = 0; i < 6; ++i) CHECK(ring.submit(kNop, counter));
    ring.flush();
    CHECK(ring.stats().busy_retries == 5);
    CHECK(ring.stats().submitted == 6);
    CHECK(ring.poll(64) == 6);
    CHECK(counter.completed == 6);
  });
}

TEST_CASE("reactor/ring: completions that stand in the kernel's way are kept, in order, for the next poll") {
  run_or_skip([](UringBackend& ring, RefusingKernel& kernel) {
    std::vector<int> order;
    struct Note final : IoCompletion {
      void on_completion(std::int32_t, bool) override { order->push_back(number); }
      std::vector<int>* order = nullptr;
      int number = 0;
    };
    std::array<Note, 12> notes;
    for (int i = 0; i < 12; ++i) {
      notes[static_cast<std::size_t>(i)].order = &order;
      notes[static_cast<std::size_t>(i)].number = i;
      if (i == 6) {
        ring.flush();
        kernel.be_busy_until_events();
      }
      CHECK(ring.submit(kNop, notes[static_cast<std::size_t>(i)]));
    }
    ring.flush();
    CHECK(ring.stats().submitted == 12);
    CHECK(order.empty());  // no handler runs within a flush
    CHECK(ring.has_work());
    CHECK(ring.wait(seconds(60)) == WaitEnd::completion);
    CHECK(ring.poll(4) == 4);
    CHECK(ring.poll(64) == 8);
    CHECK(order == std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  });
}

TEST_CASE("reactor/ring: under lasting refusal a flush gives up, and nothing staged is forgotten") {
  run_or_skip([](UringBackend& ring, RefusingKernel& kernel) {
    Pipe pipe;
    Recorder poll;
    Counter counter;
    auto token =
        ring.submit({.kind = IoRequest::Kind::poll, .fd = pipe.read_end(), .poll_events = POLLIN}, poll);
    CHECK(token);
    ring.flush();
    kernel.script(std::deque<int>(100'000, EAGAIN));
    std::uint32_t accepted = 0;
    while (accepted < 20 && ring.submit(kNop, counter)) ++accepted;
    CHECK(accepted == 8);
    if (token) ring.cancel(*token);  // finds the queue full, too
    CHECK(!ring.send_message(ring.fd(), 1, nullptr, nullptr));
    ring.flush();
    CHECK(ring.has_work());
    CHECK(counter.completed == 0);
    kernel.script({});
    CHECK(drive(ring, [&] { return counter.completed == 8 && poll.ended; }));
    CHECK(poll.results == std::vector<std::int32_t>{-ECANCELED});
    CHECK(!ring.has_work());
  });
}
