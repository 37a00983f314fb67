// Constants of the manifest's text form, which its writer and its reader share.
#pragma once

#include <string_view>

namespace trainer::checkpoint {

inline constexpr std::string_view kFormatName = "trainer-checkpoint";
inline constexpr int kFormatVersion = 1;
inline constexpr std::string_view kBeforeChecksum = ",\n  \"checksum\": \"";
inline constexpr std::string_view kAfterChecksum = "\"\n}\n";

}  // namespace trainer::checkpoint
