#include "shrink.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tidelock::sim {
namespace {

constexpr std::int64_t kShortestNs = 1'000;

class Shrinking {
 public:
  explicit Shrinking(const ShrinkOptions& options) : options_(options), shrunk_{options.plan, {}, 0, false} {}

  Shrunk run() {
    cut();
    shorten();
    lessen(&LessLoad::calls, options_.calls);
    lessen(&LessLoad::clients, options_.clients);
    return std::move(shrunk_);
  }

 private:
  [[nodiscard]] bool over() const { return shrunk_.runs >= options_.runs_max; }

  /// Keeps `plan` if it still fails.
  bool keep(std::vector<Fault> plan) {
    if (over()) return false;
    ++shrunk_.runs;
    if (!options_.fails(plan, shrunk_.load)) return false;
    shrunk_.plan = std::move(plan);
    return true;
  }

  /// Without one of `pieces` pieces after the other; once none can go, of smaller ones.
  void cut() {
    if (!shrunk_.plan.empty() && keep({})) {
      shrunk_.least = true;
      return;
    }
    for (std::size_t pieces = 2; !over() && !shrunk_.plan.empty();) {
      const std::size_t size = shrunk_.plan.size();
      pieces = std::min(pieces, size);
      bool any = false;
      // From the end: what comes late is the least likely to matter for what comes before.
      for (std::size_t piece = pieces; piece-- > 0 && !over();) {
        const std::size_t count = shrunk_.plan.size();
        const std::size_t from = size * piece / pieces;
        const std::size_t to = std::min(count, size * (piece + 1) / pieces);
        if (from >= to) continue;
        std::vector<Fault> rest = shrunk_.plan;
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(from),
                   rest.begin() + static_cast<std::ptrdiff_t>(to));
        any = keep(std::move(rest)) || any;
      }
      if (any) {
        pieces = std::max<std::size_t>(pieces / 2, 2);
      } else if (pieces == size) {
        shrunk_.least = !over();
        return;
      } else {
        pieces *= 2;
      }
    }
    shrunk_.least = shrunk_.plan.empty();
  }

  void shorten() {
    for (std::size_t i = 0; i < shrunk_.plan.size(); ++i) {
      while (!over() && shrunk_.plan[i].length.ns >= 2 * kShortestNs) {
        std::vector<Fault> shorter = shrunk_.plan;
        shorter[i].length.ns /= 2;
        if (!keep(std::move(shorter))) break;
      }
    }
  }

  /// Halves what was drawn as long as that still fails, then takes an eighth off at a time.
  void lessen(std::uint32_t LessLoad::*which, std::uint32_t drawn) {
    for (const std::uint32_t part : {2U, 8U}) {
      while (!over() && drawn > 1) {
        LessLoad less = shrunk_.load;
        less.*which = drawn - std::max(drawn / part, 1U);
        ++shrunk_.runs;
        if (!options_.fails(shrunk_.plan, less)) break;
        shrunk_.load = less;
        drawn = less.*which;
      }
    }
  }

  const ShrinkOptions& options_;
  Shrunk shrunk_;
};

}  // namespace

Shrunk shrink(const ShrinkOptions& options) { return Shrinking(options).run(); }

}  // namespace tidelock::sim
