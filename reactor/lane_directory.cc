#include <tidelock/base/check.h>
#include <tidelock/reactor/lane_directory.h>

#include "lane.h"

namespace tidelock {

LaneDirectory::LaneDirectory(std::uint32_t cores) : cores_(cores) {
  TL_ASSERT(cores >= 1 && cores <= kCoresMax, "a group has 1 to 256 reactors");
  entries_ = std::make_unique<Entry[]>(cores);
  lanes_ = std::make_unique<std::atomic<Lane*>[]>(std::size_t{cores} * cores);
}

LaneDirectory::~LaneDirectory() {
  for (std::size_t i = 0; i < std::size_t{cores_} * cores_; ++i) {
    delete lanes_[i].load(std::memory_order_relaxed);
  }
}

Lane& LaneDirectory::add_lane(CoreId source, CoreId target, std::unique_ptr<Lane> lane) {
  TL_ASSERT(source.value < cores_ && target.value < cores_, "no such reactor in this group");
  std::atomic<Lane*>& place = cell(source, target);
  TL_ASSERT(place.load(std::memory_order_relaxed) == nullptr, "a lane is made once");
  Lane& made = *lane.release();
  place.store(&made, std::memory_order_release);
  return made;
}

}  // namespace tidelock
