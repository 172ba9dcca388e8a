/// The states of a connection, and the trace of its last transitions that errors and `tidelock link` show.
/// Thread:   owner core
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <tidelock/base/time.h>

namespace tidelock {

enum class ConnectionState : std::uint8_t {
  idle,
  resolving,
  connecting,
  local_ready,
  ready,
  draining,
  closed,
  failed
};
[[nodiscard]] const char* to_string(ConnectionState state);

struct ConnectionTransition {
  ConnectionState state = ConnectionState::idle;
  Instant at{};
  std::string why;
};

/// The last 16, oldest first.
class TransitionTrace {
 public:
  static constexpr std::size_t kKept = 16;
  void add(ConnectionState state, Instant at, std::string why);
  [[nodiscard]] std::vector<ConnectionTransition> list() const;
  /// "idle +0 us, resolving +12 us (...), ...": times since the first one kept, then how long the last lasts.
  [[nodiscard]] std::string text(Instant now) const;

 private:
  std::array<ConnectionTransition, kKept> kept_;
  std::uint64_t added_ = 0;
};

}  // namespace tidelock
