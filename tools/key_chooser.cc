#include "key_chooser.h"

#include <algorithm>
#include <cmath>

namespace tidelock::tools {
namespace {

constexpr double kTheta = 0.99;

double zeta(std::uint64_t n) {
  double sum = 0;
  for (std::uint64_t i = 1; i <= n; ++i) sum += 1.0 / std::pow(static_cast<double>(i), kTheta);
  return sum;
}

}  // namespace

KeyChooser::KeyChooser(KeyDistribution distribution, std::uint64_t keys, std::uint64_t seed)
    : distribution_(distribution), keys_(keys), random_(seed) {
  if (distribution_ != KeyDistribution::zipfian) return;
  zeta_ = zeta(keys);
  alpha_ = 1.0 / (1.0 - kTheta);
  eta_ = keys < 3 ? 1.0
                  : (1.0 - std::pow(2.0 / static_cast<double>(keys), 1.0 - kTheta)) / (1.0 - zeta(2) / zeta_);
}

std::uint64_t KeyChooser::next() {
  if (distribution_ == KeyDistribution::uniform) return random_.below(keys_);
  const double u = random_.unit();
  const double uz = u * zeta_;
  std::uint64_t rank = 0;
  if (uz >= 1.0 + std::pow(0.5, kTheta)) {
    rank = static_cast<std::uint64_t>(static_cast<double>(keys_) * std::pow(eta_ * u - eta_ + 1.0, alpha_));
  } else if (uz >= 1.0) {
    rank = 1;
  }
  return std::min(rank, keys_ - 1);
}

}  // namespace tidelock::tools
