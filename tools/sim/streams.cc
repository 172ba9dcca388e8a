#include "streams.h"

#include <algorithm>
#include <bit>

namespace tidelock::sim {

Random Streams::make(std::string_view name, std::uint64_t entity) const {
  constexpr std::uint64_t kPrime = 0x100'0000'01b3ULL;  // FNV-1a; Random spreads what comes out
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325ULL;
  const auto add = [&hash](std::uint64_t word) {
    for (int i = 0; i < 8; ++i, word >>= 8) hash = (hash ^ (word & 0xff)) * kPrime;
  };
  add(seed_);
  add(entity);
  for (const char letter : name) hash = (hash ^ static_cast<unsigned char>(letter)) * kPrime;
  return Random(hash);
}

Duration draw_magnitude(Random& random, Duration least, Duration most) {
  const auto low = static_cast<std::uint64_t>(std::max<std::int64_t>(least.ns, 1));
  const auto high = std::max(low, static_cast<std::uint64_t>(most.ns));
  const auto doublings = static_cast<std::uint64_t>(std::bit_width(high / low));
  const std::uint64_t from = low << random.below(doublings);
  return {static_cast<std::int64_t>(std::min(high, from + random.below(from)))};
}

}  // namespace tidelock::sim
