// libFuzzer: arbitrary bytes through every decoder of the wire format. As random bytes hardly ever have a
// right CRC, each input is tried a second time with its CRCs put right, so that the checks behind them are
// reached.
#include <cstddef>
#include <cstdint>
#include <vector>

#include <tidelock/reactor/header_sum.h>

#include "wire_decoders.h"
#include "wire_seeds.h"

using namespace tidelock;

namespace {

/// Each kind of message ends with its checksum.
void repair(std::vector<std::byte> bytes, std::size_t size, test::DecodeCounts& counts) {
  if (bytes.size() < size) return;
  const std::size_t at = size - 4;
  const bool has_sum = size == kFrameHeaderBytes || size == kControlFrameBytes;
  store(bytes.data() + at, has_sum ? header_sum(Bytes(bytes).first(at)) : crc32c(0, Bytes(bytes).first(at)));
  test::decode_everything(bytes, counts);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  test::DecodeCounts counts;
  test::decode_everything(bytes, counts);
  const std::vector<std::byte> copy(bytes.begin(), bytes.end());
  for (const std::size_t message : {std::size_t{kFrameHeaderBytes}, std::size_t{kControlFrameBytes},
                                    std::size_t{kHelloBytes}, std::size_t{kRefusalBytes}}) {
    repair(copy, message, counts);
  }
  if (copy.size() >= kEntryHeaderBytes) {  // one entry that fills the input
    std::vector<std::byte> entry = copy;
    store(entry.data(), crc32c(0, Bytes(entry).subspan(4)));
    test::decode_entries(entry, counts);
  }
  std::vector<std::byte> range = copy;
  if (test::repair_range(range)) test::decode_ranges(range, counts);
  return 0;
}
