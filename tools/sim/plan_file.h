/// A plan as text: for `--plan`, for what `--shrink` leaves, and for the failures that are kept.
/// Thread:   any
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <tidelock/base/result.h>

#include "plan.h"
#include "shape.h"

namespace tidelock::sim {

struct PlanFile {
  WorldKind world = WorldKind::streams;
  std::uint64_t seed = 1;
  std::string checker;  ///< that fails with it; empty: not said
  std::string planted;  ///< the test's name of the fault that is planted; empty: none
  LessLoad load;
  std::vector<Fault> plan;
};

[[nodiscard]] std::string plan_text(const PlanFile& file);
/// Lines that are empty or begin with # say nothing.
/// Errors:   EINVAL, naming the line
[[nodiscard]] Result<PlanFile> parse_plan(std::string_view text);
/// Errors:   the file's, and those of parse_plan()
[[nodiscard]] Result<PlanFile> read_plan(const std::string& path);
[[nodiscard]] Status write_plan(const std::string& path, const PlanFile& file);

}  // namespace tidelock::sim
