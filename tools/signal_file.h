/// SIGINT and SIGTERM as something to poll, for a thread that waits for other files as well.
/// Thread:   the program's first, before it starts others: they inherit what is blocked
#pragma once

#include <tidelock/base/result.h>

#include "file_handle.h"

namespace tidelock::tools {

/// Blocks both and opens a signalfd for them.
/// Errors:   those of signalfd
Result<FileHandle> block_signals();
/// From here on they end the process again.
void unblock_signals();

}  // namespace tidelock::tools
