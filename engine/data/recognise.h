// What a file is, by its first bytes: so that a file of another program's format is refused by its name, not read as
// text or ids.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/data/data_file.h"
#include "engine/job/job.h"

namespace trainer::data {

/// As many first bytes as recognising takes.
inline constexpr std::size_t kHeadBytes = 4096;

struct FileKind {
  std::string name;        ///< "a gzip file"
  std::string advice;      ///< "unpack it with gunzip"; empty: it depends on what the data should be
  bool holds_ids = false;  ///< `format: tokens` reads it
};

/// The kind of a file of `bytes` bytes that begins with `head`; nothing if it is none that is known. Every mark is long
/// enough that token ids and text have it by chance less than once in a billion files.
std::optional<FileKind> recognise(std::string_view head, std::int64_t bytes);

/// Whether `head` is text that people read: at least 32 bytes, all printable ASCII, white space, or UTF-8.
bool is_plain_text(std::string_view head);

/// Raises DataError if the file is of a kind that `format` does not read.
void refuse_foreign(const DataFile& file, DataFormat format);

inline constexpr std::string_view kNumpyMagic = "\x93NUMPY";
inline constexpr std::int32_t kLlmcU16 = 20240520, kLlmcU32 = 20240801;  ///< first word of llm.c's files of ids
/// Little-endian, from byte `at` on. REQUIRES: it lies in `head`.
std::uint64_t little_endian(std::string_view head, std::size_t at, std::size_t bytes);

}  // namespace trainer::data
