/// A reactor's door to a kernel that is not there: every request is refused.
/// Thread:   one
#pragma once

#include <cerrno>

#include <tidelock/reactor/io_backend.h>

namespace tidelock::sim {

class SimIo final : public IoBackend {
 public:
  Result<IoToken> submit(const IoRequest&, IoCompletion&) override {
    return Error::from_errno(EOPNOTSUPP, "a simulated node has no kernel");
  }
  void cancel(IoToken) override {}
  std::uint32_t poll(std::uint32_t) override { return 0; }
  void flush() override {}
  [[nodiscard]] bool has_work() const override { return false; }
  [[nodiscard]] std::uint32_t in_flight() const override { return 0; }
};

}  // namespace tidelock::sim
