// libFuzzer: whatever an RDMA peer may put into rdma_cm's private data or say on the queue pair.
#include <cstddef>
#include <cstdint>
#include <span>

#include "rdma_decoders.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tidelock::test::RdmaDecodeCounts counts;
  tidelock::test::decode_rdma_bytes(std::as_bytes(std::span(data, size)), counts);
  return 0;
}
