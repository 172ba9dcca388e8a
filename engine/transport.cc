#include "transport.h"

#include <tidelock/replication/shm.h>

#include "verbs_transport.h"

namespace tidelock {

Result<std::unique_ptr<Transport>> make_transport(const Options& options, ReactorGroup& group,
                                                  const std::vector<std::unique_ptr<Shard>>& shards,
                                                  EventLog& events) {
  if (options.link == LinkKind::verbs) return make_verbs_transport(options, group, shards, events);
  return make_shm_transport();
}

}  // namespace tidelock
