// Three kinds of stream over a corpus: bytes, characters, flat ids.
#include "engine/data/token_stream.h"

#include <algorithm>
#include <cstring>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/utf8.h"

namespace trainer::data {
namespace {

[[noreturn]] void fail(const Corpus::File& file, std::size_t offset, const std::string& what) {
  throw DataError(file.path + ": offset " + std::to_string(offset) + ": " + what);
}

class BytesStream final : public TokenStream {
 public:
  explicit BytesStream(const std::vector<std::string>& paths) : corpus_(paths) {}

  std::int64_t num_tokens() const override { return corpus_.bytes(); }

  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    for (std::size_t file = count > 0 ? corpus_.file_at(first) : 0; count > 0; ++file) {
      const Corpus::File& from = corpus_.files()[file];
      const std::int64_t skip = first - from.start;
      const std::int64_t part = std::min(count, static_cast<std::int64_t>(from.text.size()) - skip);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(from.text.data()) + skip;
      for (std::int64_t i = 0; i < part; ++i) out[i] = bytes[i];
      first += part, count -= part, out += part;
    }
  }

 private:
  Corpus corpus_;
};

// Where the characters of one file lie.
struct CharIndex {
  static constexpr std::int64_t kStride = 1024;

  std::int64_t start = 0;  // of its first character in the whole
  std::int64_t chars = 0;
  std::vector<std::int64_t> marks;  // byte offset of every kStride-th character; empty if all are one byte
};

CharIndex index_chars(const Corpus::File& file, std::int64_t start, std::vector<std::uint8_t>& seen) {
  CharIndex index{start, 0, {}};
  for (std::size_t at = 0; at < file.text.size();) {
    index.marks.push_back(static_cast<std::int64_t>(at));
    std::int64_t left = CharIndex::kStride;
    for (; left > 0 && at < file.text.size(); --left) {
      const char32_t character = next_code_point(file.text, at);
      if (character == kNotUtf8) fail(file, at, "is not UTF-8, which the chars tokenizer wants; `tokenizer: bytes` takes any file");
      seen[character] = 1;
    }
    index.chars += CharIndex::kStride - left;
  }
  if (index.chars == static_cast<std::int64_t>(file.text.size())) index.marks = {};
  return index;
}

class CharsStream final : public TokenStream {
 public:
  explicit CharsStream(const std::vector<std::string>& paths) : corpus_(paths), seen_(kNumCodePoints) {
    for (const Corpus::File& file : corpus_.files()) {
      files_.push_back(index_chars(file, num_tokens_, seen_));
      num_tokens_ += files_.back().chars;
    }
    corpus_.drop_pages();
  }

  std::vector<char32_t> alphabet() const {
    std::vector<char32_t> characters;
    for (char32_t character = 0; character < kNumCodePoints; ++character) {
      if (seen_[character]) characters.push_back(character);
    }
    return characters;
  }

  void set_tokenizer(std::shared_ptr<const CharsTokenizer> tokenizer) {
    tokenizer_ = std::move(tokenizer);
    for (char32_t character : alphabet()) {
      if (tokenizer_->id_of(character) < 0) fail_unknown(character);
    }
    seen_ = {};
  }

  std::int64_t num_tokens() const override { return num_tokens_; }

  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    for (auto file = count > 0 ? file_at(first) : 0; count > 0; ++file) {
      const std::string_view text = corpus_.files()[file].text;
      const std::int64_t part = std::min(count, files_[file].start + files_[file].chars - first);
      std::size_t at = byte_of(files_[file], text, first - files_[file].start);
      for (std::int64_t i = 0; i < part; ++i) out[i] = tokenizer_->id_of(next_code_point(text, at));
      first += part, count -= part, out += part;
    }
  }

 private:
  std::size_t file_at(std::int64_t token) const {
    const auto after =
        std::upper_bound(files_.begin(), files_.end(), token, [](std::int64_t at, const CharIndex& each) { return at < each.start; });
    return static_cast<std::size_t>(after - files_.begin()) - 1;
  }

  static std::size_t byte_of(const CharIndex& index, std::string_view text, std::int64_t character) {
    if (index.marks.empty()) return static_cast<std::size_t>(character);
    auto at = static_cast<std::size_t>(index.marks[static_cast<std::size_t>(character / CharIndex::kStride)]);
    for (std::int64_t i = character % CharIndex::kStride; i > 0; --i) next_code_point(text, at);
    return at;
  }

  [[noreturn]] void fail_unknown(char32_t character) const {
    std::string form;
    append_utf8(form, character);
    for (const Corpus::File& file : corpus_.files()) {
      const std::size_t at = file.text.find(form);
      if (at != std::string_view::npos) fail(file, at, "the character " + name_of_code_point(character) + " is not in the training text");
    }
    CHECK(false, "a character that was seen is nowhere");
    throw;
  }

  Corpus corpus_;
  std::vector<CharIndex> files_;
  std::int64_t num_tokens_ = 0;
  std::vector<std::uint8_t> seen_;  // by code point
  std::shared_ptr<const CharsTokenizer> tokenizer_;
};

template <typename Id>
class FlatStream final : public TokenStream {
 public:
  FlatStream(const std::vector<std::string>& paths, std::int64_t limit) : corpus_(paths), limit_(limit > 0 ? limit : INT32_MAX) {
    for (const Corpus::File& file : corpus_.files()) {
      const std::size_t rest = file.text.size() % sizeof(Id);
      if (rest != 0) fail(file, file.text.size() - rest, "ends inside an id of " + std::to_string(sizeof(Id)) + " bytes");
    }
  }

  std::int64_t num_tokens() const override { return corpus_.bytes() / kIdBytes; }

  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    for (std::size_t file = count > 0 ? corpus_.file_at(first * kIdBytes) : 0; count > 0; ++file) {
      const Corpus::File& from = corpus_.files()[file];
      const std::int64_t skip = first - from.start / kIdBytes;
      const std::int64_t part = std::min(count, static_cast<std::int64_t>(from.text.size()) / kIdBytes - skip);
      copy(from, skip, part, out);
      first += part, count -= part, out += part;
    }
  }

 private:
  static constexpr std::int64_t kIdBytes = sizeof(Id);

  void copy(const Corpus::File& file, std::int64_t skip, std::int64_t count, std::int32_t* out) const {
    const char* from = file.text.data() + skip * kIdBytes;
    Id largest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      Id id;
      std::memcpy(&id, from + i * kIdBytes, sizeof id);
      largest = std::max(largest, id);
      out[i] = static_cast<std::int32_t>(id);
    }
    if (static_cast<std::int64_t>(largest) < limit_) return;
    for (std::int64_t i = 0; i < count; ++i) {
      Id id;
      std::memcpy(&id, from + i * kIdBytes, sizeof id);
      if (static_cast<std::int64_t>(id) < limit_) continue;
      fail(file, static_cast<std::size_t>((skip + i) * kIdBytes),
           "token id " + std::to_string(id) + " is outside of the vocabulary of " + std::to_string(limit_));
    }
  }

  Corpus corpus_;
  std::int64_t limit_;
};

}  // namespace

std::shared_ptr<const TokenStream> bytes_stream(const std::vector<std::string>& paths) { return std::make_shared<BytesStream>(paths); }

CharsText chars_stream(const std::vector<std::string>& paths, std::shared_ptr<const CharsTokenizer> tokenizer) {
  auto stream = std::make_shared<CharsStream>(paths);
  if (!tokenizer) tokenizer = std::make_shared<CharsTokenizer>(stream->alphabet());
  stream->set_tokenizer(tokenizer);
  return {stream, tokenizer};
}

std::shared_ptr<const TokenStream> flat_stream(const std::vector<std::string>& paths, int id_bytes, std::int64_t id_limit) {
  CHECK(id_bytes == 2 || id_bytes == 4, "ids have 2 or 4 bytes");
  if (id_bytes == 2) return std::make_shared<FlatStream<std::uint16_t>>(paths, id_limit);
  return std::make_shared<FlatStream<std::uint32_t>>(paths, id_limit);
}

}  // namespace trainer::data
