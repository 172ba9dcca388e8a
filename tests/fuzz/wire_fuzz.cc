// libFuzzer: arbitrary bytes through every decoder of the wire format. As random bytes hardly ever have a
// right CRC, each input is tried a second time with its CRCs put right, so that the checks behind them are
// reached.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "wire_decoders.h"

using namespace tidelock;

namespace {

/// Where each kind of message has its CRC, and what it covers.
void repair(std::vector<std::byte> bytes, std::size_t size, test::DecodeCounts& counts) {
  if (bytes.size() < size) return;
  const std::size_t at = size - 4;
  store(bytes.data() + at, crc32c(0, Bytes(bytes).first(at)));
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
  return 0;
}
