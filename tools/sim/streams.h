/// Random numbers for everything in a run, each purpose with a stream of its own: one that is added, or draws
/// more, moves no other. Integers only: a double's rounding may differ from one machine to the next.
/// Thread:   one
#pragma once

#include <cstdint>
#include <string_view>

#include <tidelock/base/time.h>
#include <tidelock/reactor/random.h>

namespace tidelock::sim {

class Streams {
 public:
  explicit Streams(std::uint64_t seed) : seed_(seed) {}
  /// `entity`: which node, link or client of the purpose `name`.
  [[nodiscard]] Random make(std::string_view name, std::uint64_t entity) const;
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

 private:
  std::uint64_t seed_;
};

/// Uniform in [least, most].
[[nodiscard]] inline std::int64_t draw(Random& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most - least) + 1));
}
[[nodiscard]] inline Duration draw(Random& random, Duration least, Duration most) {
  return {draw(random, least.ns, most.ns)};
}
/// Each power of two between the two is as likely: short ones are drawn as often as long ones.
[[nodiscard]] Duration draw_magnitude(Random& random, Duration least, Duration most);
[[nodiscard]] inline bool one_in(Random& random, std::uint64_t n) { return random.below(n) == 0; }

}  // namespace tidelock::sim
