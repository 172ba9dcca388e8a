/// The table of `tidelock link`.
/// Thread:   any
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>

namespace tidelock::tools {

/// `nodes`: what engines answered (inspect_client.h). With `before`, of `seconds` ago, counters become rates.
/// Errors:   EBADMSG: that is not what an engine says
Result<std::string> format_links(const std::vector<nlohmann::json>& nodes,
                                 const std::vector<nlohmann::json>& before = {}, double seconds = 0);

}  // namespace tidelock::tools
