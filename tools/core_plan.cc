#include "core_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include <tidelock/reactor/errc.h>

namespace tidelock::tools {

Result<CorePlan> plan_cores(const std::vector<std::uint32_t>& usable, std::uint32_t shards, bool pin,
                            bool overprovisioned) {
  CorePlan plan;
  plan.shards =
      shards != 0 ? shards : std::max<std::uint32_t>(1, static_cast<std::uint32_t>(usable.size() / 2));
  const std::size_t wanted = std::size_t{plan.shards} * 2;
  if (overprovisioned || usable.size() < wanted) {
    if (pin && !overprovisioned) {
      return Error(
          ReactorErrc::bad_cpu_set,
          fmt::format(
              "--pin needs two CPUs a shard: {} for --shards {}, and this process may use {}: take fewer "
              "shards, widen its CPU set, or use --overprovisioned",
              wanted, plan.shards, usable.size()));
    }
    plan.overprovisioned = true;
    plan.notice = fmt::format("{} reactors share {} CPU{}: none spins, so each message pays for a wakeup",
                              wanted, usable.size(), usable.size() == 1 ? "" : "s");
    return plan;
  }
  const auto middle = usable.begin() + plan.shards;
  plan.primary.assign(usable.begin(), middle);
  plan.replica.assign(middle, middle + plan.shards);
  return plan;
}

Result<CorePlan> plan_node_cores(const std::vector<std::uint32_t>& usable, std::uint32_t shards, bool pin,
                                 bool overprovisioned) {
  CorePlan plan;
  plan.shards =
      shards != 0 ? shards : std::max<std::uint32_t>(1, static_cast<std::uint32_t>(usable.size() / 2));
  if (overprovisioned || usable.size() < plan.shards) {
    if (pin && !overprovisioned) {
      return Error(
          ReactorErrc::bad_cpu_set,
          fmt::format("--pin needs a CPU a shard: {} here, and this process may use {}: take fewer shards "
                      "at the primary, widen the CPU set, or use --overprovisioned",
                      plan.shards, usable.size()));
    }
    plan.overprovisioned = true;
    plan.notice =
        fmt::format("{} reactor{} without a CPU of {} own: none spins, so each message pays for a wakeup",
                    plan.shards, plan.shards == 1 ? "" : "s", plan.shards == 1 ? "its" : "their");
    return plan;
  }
  plan.primary.assign(usable.begin(), usable.begin() + plan.shards);
  plan.replica = plan.primary;
  return plan;
}

}  // namespace tidelock::tools
