/// The errors of engine/. Those of the layers below pass through unchanged.
#pragma once

#include <system_error>

namespace tidelock {

enum class EngineErrc {
  not_found = 1,    ///< no such key at the state that was read
  key_size,         ///< keys have 1 to 65,536 bytes
  value_too_large,  ///< beyond Options::value_bytes_max
  read_only,        ///< writes go to the primary, which this node is not; the text names it where it is known
  out_of_memory,    ///< the shard's memory limit or the machine's memory is used up
  closed,           ///< the engine is closing
  bad_option,       ///< the detail names the option, its value and its range
  wrong_shard,      ///< a call for another shard's core, or a receipt of another shard
  history_lost,     ///< the receipt belongs to a history or epoch that this node does not follow
  busy,             ///< all slots for calls in flight are in use; wait for a completion. Nothing was done
  not_written,      ///< a write had no turn by its deadline, or before its fiber was cancelled
  not_ready,        ///< in a group: this node does not yet know, or knows no more, what its group has
};

std::error_code make_error_code(EngineErrc code);

}  // namespace tidelock

template <>
struct std::is_error_code_enum<tidelock::EngineErrc> : std::true_type {};
