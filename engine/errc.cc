#include <string>

#include <tidelock/engine/errc.h>

namespace tidelock {
namespace {

class Category final : public std::error_category {
 public:
  [[nodiscard]] const char* name() const noexcept override { return "tidelock.engine"; }
  [[nodiscard]] std::string message(int value) const override {
    switch (static_cast<EngineErrc>(value)) {
      case EngineErrc::not_found:
        return "no such key";
      case EngineErrc::key_size:
        return "keys have 1 to 65536 bytes";
      case EngineErrc::value_too_large:
        return "the value is larger than value_bytes_max";
      case EngineErrc::read_only:
        return "this node is a replica; write to the primary";
      case EngineErrc::out_of_memory:
        return "the shard's memory limit or the machine's memory is used up";
      case EngineErrc::closed:
        return "the engine is closed";
      case EngineErrc::bad_option:
        return "an option is out of its range";
      case EngineErrc::wrong_shard:
        return "no such shard, or another shard's receipt";
      case EngineErrc::history_lost:
        return "the receipt's history is not the one that this node follows";
      case EngineErrc::busy:
        return "too many calls are in flight; wait for a completion";
      case EngineErrc::not_written:
        return "nothing was written; try again";
      case EngineErrc::not_ready:
        return "this node does not know yet what its group has; it finds out once enough of the others are "
               "there";
    }
    return "unknown engine error " + std::to_string(value);
  }
};

}  // namespace

std::error_code make_error_code(EngineErrc code) {
  static const Category category;
  return {static_cast<int>(code), category};
}

}  // namespace tidelock
