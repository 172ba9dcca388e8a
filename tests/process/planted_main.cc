// The program with one fault planted: its replica acknowledges a batch as applied before it applies it.
#include <tidelock/replication/replica.h>

#include "tool_main.h"

namespace {

class AcknowledgeFirst final : public tidelock::ApplyPolicy {
 public:
  [[nodiscard]] std::uint32_t turns_acknowledged_early() const override { return 1'000; }
};

}  // namespace

int main(int argc, char** argv) {
  const AcknowledgeFirst planted;
  return tidelock::tools::tool_main(argc, argv, &planted);
}
