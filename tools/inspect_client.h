/// Asks running engines for their links, by their inspection sockets (Options::inspect).
/// Thread:   one owner; each call ends within a few seconds
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <tidelock/base/result.h>

namespace tidelock::tools {

/// The abstract sockets of that name's form that somebody listens at, as /proc/net/unix lists them:
/// "@tidelock- inspect-<pid>", by pid. Others' nodes may be among them.
std::vector<std::string> find_inspection_sockets(const std::string& proc_net_unix);
/// Of this machine, or rather of this network namespace.
std::vector<std::string> find_inspection_sockets();

/// What the engine at `path` says of itself and its links.
/// Errors:   nobody there; another user's; ETIMEDOUT; EBADMSG: no answer of an engine
Result<nlohmann::json> inspect(const std::string& path);

}  // namespace tidelock::tools
