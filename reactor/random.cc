#include <bit>
#include <cerrno>

#include <sys/random.h>

#include <tidelock/base/check.h>
#include <tidelock/reactor/random.h>

namespace tidelock {
namespace {

// splitmix64 (Steele, Lea and Flood, 2014) spreads any seed, zero included, over the whole state.
std::uint64_t split_mix(std::uint64_t& state) {
  state += 0x9e37'79b9'7f4a'7c15ULL;
  std::uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58'476d'1ce4'e5b9ULL;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d0'49bb'1331'11ebULL;
  return mixed ^ (mixed >> 31);
}

__extension__ using Wide = unsigned __int128;

}  // namespace

Random::Random(std::uint64_t seed) : state_{} {
  for (std::uint64_t& word : state_) word = split_mix(seed);
}

std::uint64_t Random::next() {
  const std::uint64_t result = std::rotl(state_[0] + state_[3], 23) + state_[0];
  const std::uint64_t shifted = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = std::rotl(state_[3], 45);
  return result;
}

std::uint64_t Random::below(std::uint64_t bound) {
  TL_ASSERT(bound > 0, "an empty range holds no number");
  // The high half of next() * bound is uniform once the few low halves that would favour some results are
  // drawn again (Lemire, 2019).
  const std::uint64_t unfair = (0 - bound) % bound;
  while (true) {
    const Wide product = static_cast<Wide>(next()) * bound;
    if (static_cast<std::uint64_t>(product) >= unfair) return static_cast<std::uint64_t>(product >> 64);
  }
}

double Random::unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

std::uint64_t entropy64() {
  std::uint64_t value = 0;
  ssize_t got = 0;
  // Eight bytes come whole or not at all (getrandom(2)).
  do {
    got = ::getrandom(&value, sizeof value, 0);
  } while (got < 0 && errno == EINTR);
  TL_ASSERT(got == static_cast<ssize_t>(sizeof value), "getrandom failed: the kernel is older than 3.17");
  return value;
}

}  // namespace tidelock
