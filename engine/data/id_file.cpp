// How the headers of id files (.npy, llm.c) are recognised and checked.
#include "engine/data/id_file.h"

#include <algorithm>
#include <charconv>

#include "engine/core/error.h"
#include "engine/data/recognise.h"

namespace trainer::data {
namespace {

int bytes_of(TokenType type) { return type == TokenType::u16 ? 2 : 4; }

// A header decides; a job that says otherwise is mistaken in one of two ways, and both are named.
void check_type(const DataFile& file, const std::string& kind, int id_bytes, std::optional<TokenType> type) {
  if (!type || bytes_of(*type) == id_bytes) return;
  const std::string held = id_bytes == 2 ? "u16" : "u32";
  throw DataError(file.path() + ": is " + kind + " of " + held + " ids, where the job says data.token_type: " +
                  std::string(name_of(*type)) + "; write `token_type: " + held + "`, or leave it out");
}

void check_length(const DataFile& file, const IdLayout& layout) {
  const std::int64_t there = (file.bytes() - layout.first_byte) / layout.id_bytes,
                     rest = (file.bytes() - layout.first_byte) % layout.id_bytes;
  if (there < layout.ids)
    file.fail(file.bytes(), "ends after " + std::to_string(there) + " of the " + std::to_string(layout.ids) +
                                " ids that its header announces");
  if (there > layout.ids || rest > 0)
    file.fail(layout.first_byte + layout.ids * layout.id_bytes,
              "has bytes behind the " + std::to_string(layout.ids) + " ids that its header announces");
}

// ---- NumPy ----

// The value of a key in the dictionary that a header is: what follows `'key':`.
std::string_view value_of(std::string_view header, std::string_view key) {
  const std::string quoted = "'" + std::string(key) + "'";
  std::size_t at = header.find(quoted);
  if (at == std::string_view::npos) return {};
  at = header.find_first_not_of(" :", at + quoted.size());
  return at == std::string_view::npos ? std::string_view() : header.substr(at);
}

// The numbers of "(1000, 4)"; "(1000,)" has one.
std::vector<std::int64_t> shape_of(std::string_view text) {
  std::vector<std::int64_t> shape;
  const std::size_t close = text.find(')');
  if (!text.starts_with('(') || close == std::string_view::npos) return shape;
  for (std::size_t at = 1; (at = text.find_first_of("0123456789", at)) < close;) {
    std::int64_t size = -1;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + close, size);
    shape.push_back(error == std::errc() ? size : -1);
    at = static_cast<std::size_t>(end - text.data());
  }
  return shape;
}

IdLayout numpy_layout(const DataFile& file, std::string_view head, std::optional<TokenType> type) {
  constexpr std::size_t kVersion = 6, kLength = 8;
  const int version = head.size() > kVersion ? head[kVersion] : 0;
  const std::size_t length_bytes = version == 1 ? 2 : 4, start = kLength + length_bytes;
  if (version < 1 || version > 3 || head.size() < start) file.fail(kVersion, "is a NumPy array of an unknown version");
  const std::uint64_t length = little_endian(head, kLength, length_bytes);
  if (length > head.size() - start)
    file.fail(kLength,
              "is a NumPy array with a header of " + std::to_string(length) + " bytes, which is cut off or too long");
  const std::string_view header = head.substr(start, length);

  const std::string_view descr = value_of(header, "descr");
  const std::string dtype(descr.starts_with('\'') ? descr.substr(1, std::min(descr.size(), descr.find('\'', 1)) - 1)
                                                  : "of records");
  if (dtype != "<u2" && dtype != "<u4" && dtype != "<i4")
    file.fail(start,
              "is a NumPy array of " + dtype + ", not of ids; save ids.astype('uint16') or ids.astype('uint32')");
  const std::vector<std::int64_t> shape = shape_of(value_of(header, "shape"));
  if (shape.size() != 1 || value_of(header, "fortran_order").empty())
    file.fail(start,
              "is a NumPy array of " + std::to_string(shape.size()) + " dims; save the ids in one, as ids.ravel()");
  const IdLayout layout{static_cast<std::int64_t>(start + length), shape[0], dtype == "<u2" ? 2 : 4, false};
  if (layout.ids < 0) file.fail(start, "is a NumPy array with a size that is too large");
  check_type(file, "a NumPy array", layout.id_bytes, type);
  check_length(file, layout);
  return layout;
}

// ---- llm.c ----

IdLayout llmc_layout(const DataFile& file, std::string_view head, std::optional<TokenType> type) {
  constexpr std::int64_t kHeader = 256 * 4;
  if (file.bytes() < kHeader) file.fail(file.bytes(), "ends inside the header of an llm.c file");
  const bool wide = little_endian(head, 0, 4) == kLlmcU32;
  const IdLayout layout{kHeader, static_cast<std::int64_t>(little_endian(head, 8, 4)), wide ? 4 : 2, false};
  check_type(file, "an llm.c file", layout.id_bytes, type);
  check_length(file, layout);
  return layout;
}

}  // namespace

IdLayout id_layout(const DataFile& file, std::optional<TokenType> type) {
  refuse_foreign(file, DataFormat::tokens);
  const std::string head = file.head(kHeadBytes);
  if (head.starts_with(kNumpyMagic)) return numpy_layout(file, head, type);
  if (recognise(head, file.bytes())) return llmc_layout(file, head, type);
  const int id_bytes = bytes_of(type.value_or(TokenType::u16));
  const std::int64_t rest = file.bytes() % id_bytes;
  if (rest != 0) file.fail(file.bytes() - rest, "ends inside an id of " + std::to_string(id_bytes) + " bytes");
  return {0, file.bytes() / id_bytes, id_bytes, true};
}

}  // namespace trainer::data
