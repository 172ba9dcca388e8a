#include "stall.h"

#include <chrono>
#include <fcntl.h>
#include <string>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

using namespace tidelock;

namespace {

constexpr Duration kThreshold = milliseconds(5);
using SteadyClock = std::chrono::steady_clock;

int stall_signal() { return SIGRTMIN + 3; }

/// Collects what is written to stderr meanwhile.
class StderrCapture {
 public:
  StderrCapture() {
    REQUIRE(::pipe2(ends_, O_NONBLOCK) == 0);
    saved_ = ::dup(STDERR_FILENO);
    REQUIRE(saved_ >= 0);
    ::dup2(ends_[1], STDERR_FILENO);
  }
  ~StderrCapture() {
    restore();
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  StderrCapture(const StderrCapture&) = delete;
  StderrCapture& operator=(const StderrCapture&) = delete;
  std::string take() {
    restore();
    std::string text;
    char buffer[4096];
    for (ssize_t bytes = 0; (bytes = ::read(ends_[0], buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<std::size_t>(bytes));
    }
    return text;
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    ::dup2(saved_, STDERR_FILENO);
    ::close(saved_);
    saved_ = -1;
  }
  int ends_[2] = {-1, -1};
  int saved_ = -1;
};

/// Does nothing useful until `done()` or half a minute has passed.
template <class Predicate>
bool hang_until(Predicate&& done) {
  const auto patience = SteadyClock::now() + std::chrono::seconds(30);
  while (!done()) {
    if (SteadyClock::now() > patience) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

}  // namespace

TEST_CASE("reactor/stall: a loop that hangs is counted once and its place is printed") {
  StderrCapture capture;
  std::uint64_t stalls = 0;
  bool seen = false;
  bool counted_again = false;
  std::thread([&] {
    auto detector = StallDetector::start(stall_signal(), kThreshold);
    if (!detector) return;
    (*detector)->tick();
    seen = hang_until([&] { return (*detector)->stalls() == 1; });
    // The same stall goes on for many thresholds.
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    stalls = (*detector)->stalls();
    (*detector)->tick();
    counted_again = hang_until([&] { return (*detector)->stalls() == 2; });
  }).join();
  const std::string text = capture.take();
  CHECK(seen);
  CHECK(stalls == 1);
  CHECK(counted_again);
  CHECK(text.find("has not turned its reactor for at least 5000 us") != std::string::npos);
  // Rate: one backtrace a second, however many signals.
  const std::size_t first = text.find("tidelock: thread");
  CHECK(first != std::string::npos);
  CHECK(text.find('\n', text.find('\n') + 1) != std::string::npos);
}

TEST_CASE(
    "reactor/stall: a thread that sleeps on purpose is not stalled, and watched again after its next turn") {
  StderrCapture capture;
  std::uint64_t while_asleep = 99;
  bool seen = false;
  std::thread([&] {
    auto detector = StallDetector::start(stall_signal(), kThreshold);
    if (!detector) return;
    (*detector)->tick();
    (*detector)->about_to_sleep();
    // The preparation may have been long on a loaded machine: what counts is that nothing is added from here.
    const std::uint64_t before = (*detector)->stalls();
    const auto end = SteadyClock::now() + std::chrono::milliseconds(100);
    while (SteadyClock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    while_asleep = (*detector)->stalls() - before;
    (*detector)->tick();
    seen = hang_until([&] { return (*detector)->stalls() > before; });
  }).join();
  capture.take();
  CHECK(while_asleep == 0);
  CHECK(seen);
}

TEST_CASE("reactor/stall: nothing is counted before the first turn") {
  std::uint64_t stalls = 99;
  std::thread([&] {
    auto detector = StallDetector::start(stall_signal(), kThreshold);
    if (!detector) return;
    const auto end = SteadyClock::now() + std::chrono::milliseconds(50);
    while (SteadyClock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stalls = (*detector)->stalls();
  }).join();
  CHECK(stalls == 0);
}

TEST_CASE("reactor/stall: detectors of several threads share a signal and come and go") {
  StderrCapture capture;
  std::atomic<int> seen{0};
  const auto hang = [&] {
    for (int round = 0; round < 10; ++round) {
      auto detector = StallDetector::start(stall_signal(), milliseconds(1));
      if (!detector) return;
      (*detector)->tick();
      if (hang_until([&] { return (*detector)->stalls() == 1; })) ++seen;
    }
  };
  std::thread one(hang);
  std::thread two(hang);
  one.join();
  two.join();
  capture.take();
  CHECK(seen == 20);
}

TEST_CASE("reactor/stall: a signal that is taken, or none of the realtime ones, is refused") {
  auto plain = StallDetector::start(SIGUSR1, kThreshold);
  REQUIRE(!plain);
  CHECK(plain.error().code().value() == EINVAL);
  auto short_one = StallDetector::start(stall_signal(), microseconds(999));
  REQUIRE(!short_one);
  CHECK(short_one.error().code().value() == EINVAL);
  struct sigaction action {};
  struct sigaction former {};
  action.sa_handler = [](int) {};
  REQUIRE(::sigaction(SIGRTMIN + 4, &action, &former) == 0);
  auto taken = StallDetector::start(SIGRTMIN + 4, kThreshold);
  REQUIRE(!taken);
  CHECK(taken.error().code().value() == EBUSY);
  ::sigaction(SIGRTMIN + 4, &former, nullptr);
}
