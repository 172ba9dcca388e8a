/// What the tests of the ring share.
#pragma once

#include <chrono>
#include <memory>
#include <unistd.h>
#include <vector>

#include <doctest/doctest.h>

#include <tidelock/reactor/ring.h>

namespace ring_test {

using namespace tidelock;

struct Recorder final : IoCompletion {
  void on_completion(std::int32_t result, bool more) override {
    results.push_back(result);
    ended = !more;
  }
  std::vector<std::int32_t> results;
  bool ended = false;
};

struct Counter final : IoCompletion {
  void on_completion(std::int32_t result, bool) override {
    ++completed;
    if (result < 0) ++failed;
  }
  std::uint32_t completed = 0;
  std::uint32_t failed = 0;
};

class Pipe {
 public:
  Pipe() { REQUIRE(::pipe(ends_) == 0); }
  ~Pipe() {
    close_read();
    close_write();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  [[nodiscard]] int read_end() const { return ends_[0]; }
  [[nodiscard]] int write_end() const { return ends_[1]; }
  void close_read() { close_end(ends_[0]); }
  void close_write() { close_end(ends_[1]); }

 private:
  static void close_end(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
  int ends_[2] = {-1, -1};
};

inline std::unique_ptr<UringBackend> make_ring(const UringOptions& options = {}) {
  auto ring = UringBackend::create(options);
  if (!ring) FAIL(ring.error().message());
  return std::move(*ring);
}

/// Far beyond what a loaded machine takes.
inline constexpr auto kPatience = std::chrono::seconds(120);

/// Turns the ring until `done()`; false if that does not come.
template <class Predicate>
bool drive(UringBackend& ring, Predicate&& done) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    ring.flush();
    if (ring.poll(64) == 0) ring.wait(milliseconds(10));
  }
  return true;
}

}  // namespace ring_test
