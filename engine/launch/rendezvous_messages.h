// The messages of a rendezvous (rendezvous.h), as bytes. All have a size that the reader knows beforehand, so nothing
// that is read says how much to read or to allocate. Numbers are little-endian, texts padded with zeros.
//
//   hello     magic "trnrcome", version, world size, rank, local rank (4 each), token, host, fingerprint (64 each)
//   accepted  magic "trnrhere", version (4), token (64)
//   welcome   magic "trnrwelc", version, world size, 1 if the ranks are together, bytes of the payload (4 each), token
//             (64), payload (1024);
//             then, if together, host, fingerprint (64 each) and local rank (4) of every rank
//
// A rank says hello, rank 0 answers accepted at once and welcome when all ranks are there, the rank answers '+'. From
// then on the connection carries the frames of control_frames.h, which are of the same version. A new version keeps the
// size of hello, so that old and new tell each other their versions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::rendezvous {

inline constexpr std::uint32_t kVersion = 2;   ///< 1 closed its connections after the welcome
inline constexpr std::size_t kText = 64;       ///< bytes of a token, host or fingerprint at most
inline constexpr std::size_t kPayload = 1024;  ///< bytes of a payload at most
inline constexpr std::size_t kHelloBytes = 8 + 4 * 4 + 3 * kText;
inline constexpr std::size_t kAcceptedBytes = 8 + 4 + kText;
inline constexpr std::size_t kWelcomeBytes = 8 + 4 * 4 + kText + kPayload;  ///< without the places
inline constexpr std::size_t kPlaceBytes = 2 * kText + 4;

struct Hello {
  std::uint32_t version = kVersion;
  std::uint32_t world_size = 0;
  std::uint32_t rank = 0;
  std::int32_t local_rank = -1;  ///< -1: not known
  std::string token, host, fingerprint;
  friend bool operator==(const Hello&, const Hello&) = default;
};

struct Welcome {
  std::uint32_t version = kVersion;
  std::uint32_t world_size = 0;
  bool together = false;  ///< else the payload says why not
  std::string token, payload;
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct RankPlace {
  std::string host, fingerprint;
  std::int32_t local_rank = -1;
  friend bool operator==(const RankPlace&, const RankPlace&) = default;
};

/// REQUIRES: texts and payload no longer than above, printable (a token: any bytes but 0).
std::string print(const Hello& hello);
std::string print_accepted(std::string_view token);
std::string print(const Welcome& welcome);
std::string print(const std::vector<RankPlace>& places);

/// The message, if `bytes` is one, to the last byte: print() gives the same bytes.
std::optional<Hello> parse_hello(std::string_view bytes);
/// Whether `bytes` is what rank 0 of this version answers to a hello with that token.
bool is_accepted(std::string_view bytes, std::string_view token);
std::optional<Welcome> parse_welcome(std::string_view bytes);
/// REQUIRES: bytes.size() is a multiple of kPlaceBytes.
std::optional<std::vector<RankPlace>> parse_places(std::string_view bytes);

/// Why a rendezvous of `world_size` ranks with that token does not take `hello`; empty if it does. Of a wrong token
/// nothing else is looked at.
std::string refusal_of(const Hello& hello, std::string_view token, int world_size);

/// In a time that does not depend on where they differ. REQUIRES: no longer than kText.
bool same_token(std::string_view a, std::string_view b);

/// As much of it as a message takes, with "?" for what cannot be printed.
std::string fitting(std::string_view text, std::size_t bytes);

}  // namespace trainer::rendezvous
