/// How long the parts of a run on two machines may take, whatever the other machine does: one that always
/// makes a little progress ends like one that makes none.
#pragma once

#include <cstdint>

#include <tidelock/base/time.h>

#include "run_options.h"

namespace tidelock::tools {

struct RunLimits {
  Duration visitor = seconds(300);  ///< the primary's machine waits for the replica's
  Duration connect = seconds(60);   ///< the replica's machine looks for the primary's
  Duration hello = seconds(5);      ///< who has connected says who it is
  Duration answer = seconds(30);    ///< the primary says what to run
  Duration start = seconds(300);    ///< until both nodes are ready
  Duration base = seconds(120);     ///< for what takes time by its size, in addition to that
  Duration mebibyte = seconds(1);   ///< of the input: on its way, and loaded
  Duration record = milliseconds(10);
  Duration finish = seconds(300);  ///< from the load's end to the results
  Duration results = seconds(60);  ///< taken by the other machine

  /// For an input on its way.
  [[nodiscard]] Duration input(std::uint64_t bytes) const;
  /// From the first record to the load's end.
  [[nodiscard]] Duration load(const RunOptions& run, std::uint64_t records, std::uint64_t bytes) const;
};

}  // namespace tidelock::tools
