// Marks of formats, from their specifications; of pickles and safetensors files, which have none, what their first
// bytes must be.
#include "engine/data/recognise.h"

#include "engine/core/error.h"
#include "engine/core/utf8.h"

namespace trainer::data {
namespace {

using namespace std::string_view_literals;

constexpr const char* kReadAsTokens = "`format: tokens` reads the token ids of such a file";

struct Mark {
  std::string_view bytes;
  std::string_view name, advice;
};

constexpr Mark kMarks[] = {
    {"\x28\xB5\x2F\xFD"sv, "a zstd file", "unpack it with unzstd"},
    {"\xFD\x37zXZ\0"sv, "an xz file", "unpack it with unxz"},
    {"\x04\x22\x4D\x18"sv, "an lz4 file", "unpack it with unlz4"},
    {"7z\xBC\xAF\x27\x1C"sv, "a 7z archive", "unpack it with 7z x"},
    {"PAR1"sv, "a Parquet file", ""},
    {"ARROW1\0\0"sv, "an Arrow file", ""},
    {"FEA1"sv, "a Feather file", ""},
    {"\x89HDF\r\n\x1A\n"sv, "an HDF5 file", ""},
    {"MMIDIDX\0\0"sv, "the index of a Megatron dataset", "its ids are in the .bin file beside it"},
    {"GGUF"sv, "a GGUF model", ""},
    {"SQLite format 3\0"sv, "an SQLite database", ""},
    // torch.save before version 1.6: a pickle of PyTorch's magic number.
    {"\x80\x02\x8A\nl\xFC\x9C\x46\xF9 j\xA8P\x19."sv, "a PyTorch file", ""},
};

bool is_gzip(std::string_view head) {
  // Deflate, no reserved flags, one of the extra flags and operating systems of RFC 1952.
  if (head.size() < 18 || !head.starts_with("\x1F\x8B\x08"sv)) return false;
  const auto flags = static_cast<unsigned char>(head[3]), extra = static_cast<unsigned char>(head[8]),
             system = static_cast<unsigned char>(head[9]);
  return flags < 0x20 && (extra == 0 || extra == 2 || extra == 4) && (system <= 13 || system == 255);
}

bool is_bzip2(std::string_view head) {
  return head.size() > 4 && head.starts_with("BZh") && head.substr(4).starts_with("1AY&SY");
}

// A frame of protocol 4 or 5: its length is that of the file, but for what a pickle of large arrays has behind it.
bool is_pickle(std::string_view head, std::int64_t bytes) {
  if (!head.starts_with("\x80\x04\x95"sv) && !head.starts_with("\x80\x05\x95"sv)) return false;
  if (head.size() < 11) return false;
  const std::uint64_t frame = little_endian(head, 3, 8);
  return frame >= 4 && frame <= static_cast<std::uint64_t>(bytes) - 11;
}

bool is_safetensors(std::string_view head, std::int64_t bytes) {
  if (head.size() < 10 || !head.substr(8).starts_with("{\"")) return false;
  return little_endian(head, 0, 8) <= static_cast<std::uint64_t>(bytes) - 8;
}

std::optional<FileKind> recognise_zip(std::string_view head) {
  if (!head.starts_with("PK\x03\x04"sv)) return std::nullopt;
  std::string_view name;  // of the first file in it
  if (head.size() >= 30) name = head.substr(30, little_endian(head, 26, 2));
  if (name.ends_with(".npy")) return FileKind{"a NumPy archive (.npz)", ""};
  if (name.ends_with("data.pkl")) return FileKind{"a PyTorch file", ""};
  if (name == "[Content_Types].xml") return FileKind{"an Excel or Word document", ""};
  return FileKind{"a zip archive", "unpack it with unzip"};
}

std::optional<FileKind> recognise_llmc(std::string_view head) {
  if (head.size() < 12) return std::nullopt;
  const auto magic = static_cast<std::int32_t>(little_endian(head, 0, 4));
  if (magic == kLlmcU16 || magic == kLlmcU32) return FileKind{"an llm.c file of token ids", kReadAsTokens, true};
  if (magic == 20240522) return FileKind{"an llm.c file of multiple-choice questions", ""};
  return std::nullopt;
}

std::string advice_for(DataFormat format) {
  switch (format) {
    case DataFormat::text:
      return "`format: text` reads plain text";
    case DataFormat::tokens:
      return "write its token ids as a flat file (NumPy: ids.astype('uint16').tofile('ids.bin')) or with numpy.save";
    case DataFormat::table:
      return "write it as CSV";
    case DataFormat::idx:
      return "`format: idx` reads MNIST's files of images and labels";
    case DataFormat::tensors:
      return "`format: tensors` reads safetensors files";
    case DataFormat::documents:
    case DataFormat::chat:
    case DataFormat::completion:
    case DataFormat::labelled:
    case DataFormat::preference:
      return "rows are read from JSONL and Parquet";
  }
  return "";
}

}  // namespace

std::uint64_t little_endian(std::string_view head, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(head[at + i]);
  return value;
}

std::optional<FileKind> recognise(std::string_view head, std::int64_t bytes) {
  for (const Mark& mark : kMarks)
    if (head.starts_with(mark.bytes)) return FileKind{std::string(mark.name), std::string(mark.advice)};
  if (is_gzip(head)) return FileKind{"a gzip file", "unpack it with gunzip"};
  if (is_bzip2(head)) return FileKind{"a bzip2 file", "unpack it with bunzip2"};
  if (head.size() >= 263 && head.substr(257, 5) == "ustar") return FileKind{"a tar archive", "unpack it with tar -x"};
  if (head.starts_with(kNumpyMagic)) return FileKind{"a NumPy array (.npy)", kReadAsTokens, true};
  if (is_pickle(head, bytes)) return FileKind{"a Python pickle", ""};
  if (is_safetensors(head, bytes)) return FileKind{"a safetensors file", ""};
  if (auto kind = recognise_zip(head)) return kind;
  return recognise_llmc(head);
}

bool is_plain_text(std::string_view head) {
  constexpr std::size_t kLeast = 32, kLongestCharacter = 4;
  if (head.size() < kLeast) return false;
  for (std::size_t at = 0; at + kLongestCharacter <= head.size();) {  // the last character may be cut off
    const char32_t character = next_code_point(head, at);
    if (character == kNotUtf8 || character == 0x7F) return false;
    if (character < 0x20 && character != '\n' && character != '\r' && character != '\t' && character != '\f')
      return false;
  }
  return true;
}

void refuse_foreign(const DataFile& file, DataFormat format) {
  const std::string head = file.head(kHeadBytes);
  const auto refuse = [&](const std::string& name, const std::string& advice) {
    throw DataError(file.path() + ": is " + name + "; " + (advice.empty() ? advice_for(format) : advice));
  };
  const std::optional<FileKind> kind = recognise(head, file.bytes());
  if (kind && kind->holds_ids && format == DataFormat::tokens) return;
  if (format == DataFormat::tensors && is_safetensors(head, file.bytes())) return;
  if (kind) refuse(kind->name, kind->advice);
  if (format != DataFormat::tokens || !is_plain_text(head)) return;
  const bool json = head.front() == '{' || head.front() == '[';
  refuse(json ? "JSON" : "plain text", json ? "" : "`format: text` reads it, or " + advice_for(format));
}

}  // namespace trainer::data
