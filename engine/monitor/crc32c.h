// CRC-32C (Castagnoli), and its masked form, which TFRecord files hold.
#pragma once

#include <cstdint>
#include <string_view>

namespace trainer {

/// Polynomial 0x1EDC6F41, reflected. Source: RFC 3720, appendix B.4: 32 bytes of zeros give 0x8A9136AA.
std::uint32_t crc32c(std::string_view bytes);

/// Rotated right by 15 bits plus a constant, so that the checksum of data with checksums in it is no trivial one.
constexpr std::uint32_t masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U; }

}  // namespace trainer
