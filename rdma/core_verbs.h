/// A core's rdma-core objects, in creation order.
/// Thread:   see core.h
#pragma once

#include <array>
#include <memory>
#include <vector>

#include <tidelock/rdma/core.h>

#include "handles.h"
#include "memory.h"
#include "queue_pair.h"

namespace tidelock {

struct RdmaCore::Verbs {
  static constexpr int kBatch = 32;

  RdmaHandle<ibv_context> context;
  RdmaHandle<ibv_pd> pd;
  RdmaHandle<ibv_comp_channel> completion_channel;
  RdmaHandle<ibv_cq> cq;
  std::unique_ptr<PageMemory> arena;
  RdmaHandle<ibv_mr> arena_mr;
  std::vector<RdmaHandle<ibv_mr>> registered;
  RdmaHandle<rdma_event_channel> cm_channel;
  RdmaHandle<rdma_cm_id> keeper;  ///< see keep_device_open()
  QueuePairShape shape;

  /// Completions that has_work() found, for the next poll. It looks in this way because verbs has no peek.
  std::array<ibv_wc, kBatch> fetched;
  int fetched_count = 0;
};

}  // namespace tidelock
