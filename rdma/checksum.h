/// CRC32C (Castagnoli; RFC 3720) of this layer's headers, through isa-l.
/// Thread:   any
#pragma once

#include <cstdint>

#include <isa-l/crc.h>

#include <tidelock/base/bytes.h>

namespace tidelock {

[[nodiscard]] inline std::uint32_t header_crc(Bytes bytes) {
  // isa-l neither inverts nor writes; its signature predates const.
  auto* from = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes.data()));
  return ~::crc32_iscsi(from, static_cast<int>(bytes.size()), 0xffff'ffffU);
}

}  // namespace tidelock
