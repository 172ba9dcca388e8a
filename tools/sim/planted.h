/// Faults that a test plants into what production runs. Nothing is planted by default.
/// Thread:   one
/// Lifetime: the policies outlive the run
#pragma once

#include <tidelock/replication/primary.h>
#include <tidelock/replication/replica.h>

#include "node_table.h"

namespace tidelock::sim {

struct Planted {
  const ApplyPolicy* apply = nullptr;
  const AckPolicy* ack = nullptr;
  const TablePolicy* table = nullptr;
  /// False: a core goes to sleep without a second look at its sources.
  bool looks_before_sleep = true;
  /// True: a primary has a link on its core before its peer's hello was answered.
  bool attaches_before_answer = false;
  /// True: a group's faults take more memories at once than it can bear.
  bool loses_too_much = false;
};

}  // namespace tidelock::sim
