#include <string>

#include <tidelock/reactor/errc.h>

namespace tidelock {
namespace {

const char* describe(ReactorErrc code) {
  switch (code) {
    case ReactorErrc::deadline_exceeded:
      return "deadline exceeded: the outcome is not known yet";
    case ReactorErrc::cancelled:
      return "the fiber was cancelled";
    case ReactorErrc::closed:
      return "closed";
    case ReactorErrc::out_of_fibers:
      return "no free fiber stack: raise max_fibers (and vm.max_map_count), or wait for a fiber to end";
    case ReactorErrc::out_of_operations:
      return "all operation slots are in flight: raise max_operations, or wait for a completion";
    case ReactorErrc::lane_full:
      return "the lane to that core is full: wait for the target, or raise lane_slots";
    case ReactorErrc::not_on_reactor:
      return "no reactor runs on this thread: call it from a fiber, or submit to a ReactorGroup";
    case ReactorErrc::io_uring_unavailable:
      return "io_uring is not available: check sysctl kernel.io_uring_disabled and the seccomp profile";
    case ReactorErrc::bad_cpu_set:
      return "bad CPU set: ask for fewer reactors, or for CPUs in this process's affinity mask";
  }
  return "unknown reactor error";
}

class Category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "tidelock.reactor"; }
  [[nodiscard]] std::string message(int code) const override {
    return describe(static_cast<ReactorErrc>(code));
  }
};

}  // namespace

std::error_code make_error_code(ReactorErrc code) {
  static const Category category;
  return {static_cast<int>(code), category};
}

}  // namespace tidelock
