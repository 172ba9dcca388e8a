#include "transport.h"

#include <tidelock/engine/errc.h>
#include <tidelock/replication/shm.h>

namespace tidelock {

Result<std::unique_ptr<Transport>> make_transport(const Options& options, ReactorGroup&,
                                                  const std::vector<std::unique_ptr<Shard>>&) {
  if (options.link == LinkKind::verbs) {
    return Error(EngineErrc::bad_option,
                 "Options::link is verbs; this library was built without the verbs link: use shm");
  }
  return make_shm_transport();
}

}  // namespace tidelock
