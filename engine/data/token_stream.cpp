// Two kinds of stream over a corpus of text: bytes and characters.
#include "engine/data/token_stream.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/data/recognise.h"

namespace trainer::data {
namespace {

void require_text(const Corpus& corpus) {
  for (const Corpus::File& file : corpus.files()) refuse_foreign(file.data, DataFormat::text);
}

class BytesStream final : public TokenStream {
 public:
  explicit BytesStream(const std::vector<std::string>& paths) : corpus_(paths) { require_text(corpus_); }

  std::int64_t num_tokens() const override { return corpus_.bytes(); }

  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    std::uint8_t bytes[16384];
    for (std::size_t file = count > 0 ? corpus_.file_at(first) : 0; count > 0;) {
      const Corpus::File& from = corpus_.files()[file];
      const std::int64_t skip = first - from.start;
      const std::int64_t part = std::min({count, from.data.bytes() - skip, static_cast<std::int64_t>(sizeof bytes)});
      from.data.read(skip, bytes, static_cast<std::size_t>(part));
      for (std::int64_t i = 0; i < part; ++i) out[i] = bytes[i];
      first += part, count -= part, out += part;
      if (skip + part == from.data.bytes()) ++file;
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

// Calls visit(character) for each character of a file; visit gets its offset too. Raises DataError at what is not
// UTF-8.
template <typename Visit>
void for_each_character(const DataFile& file, Visit&& visit) {
  constexpr std::size_t kLongest = 4;  // bytes of a character
  BlockReader blocks(file);
  std::int64_t start = 0;  // of the block
  std::string_view text = blocks.next(0);
  for (std::size_t at = 0; true;) {
    const std::size_t end = blocks.at_end() ? text.size() : text.size() - std::min(text.size(), kLongest - 1);
    while (at < end) {
      const std::int64_t offset = start + static_cast<std::int64_t>(at);
      const char32_t character = next_code_point(text, at);
      if (character == kNotUtf8)
        file.fail(offset, "is not UTF-8, which the chars tokenizer wants; `tokenizer: bytes` takes any text");
      visit(character, offset);
    }
    if (blocks.at_end()) return;
    start += static_cast<std::int64_t>(at);
    text = blocks.next(start);
    at = 0;
  }
}

class CharsStream final : public TokenStream {
 public:
  /// Without a tokenizer, of the characters that the text has.
  CharsStream(const std::vector<std::string>& paths, std::shared_ptr<const CharsTokenizer> tokenizer)
      : corpus_(paths), tokenizer_(std::move(tokenizer)) {
    require_text(corpus_);
    std::vector<std::uint8_t> seen(tokenizer_ ? 0 : kNumCodePoints);  // by code point
    for (const Corpus::File& file : corpus_.files()) add(file.data, seen);
    if (!tokenizer_) tokenizer_ = std::make_shared<CharsTokenizer>(alphabet_of(seen));
  }

  const std::shared_ptr<const CharsTokenizer>& tokenizer() const { return tokenizer_; }
  std::int64_t num_tokens() const override { return num_tokens_; }

  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    std::string text;
    for (auto file = count > 0 ? file_at(first) : 0; count > 0; ++file) {
      const CharIndex& index = files_[file];
      const std::int64_t part = std::min(count, index.start + index.chars - first);
      read_part(corpus_.files()[file].data, index, first - index.start, part, text, out);
      first += part, count -= part, out += part;
    }
  }

 private:
  void add(const DataFile& file, std::vector<std::uint8_t>& seen) {
    CharIndex index{num_tokens_, 0, {}};
    const auto count = [&](std::int64_t offset) {
      if (index.chars++ % CharIndex::kStride == 0) index.marks.push_back(offset);
    };
    if (tokenizer_) {
      for_each_character(file, [&](char32_t character, std::int64_t offset) {
        if (tokenizer_->id_of(character) < 0)
          file.fail(offset, "the character " + name_of_code_point(character) + " is not in the training text");
        count(offset);
      });
    } else {
      for_each_character(file, [&](char32_t character, std::int64_t offset) {
        seen[character] = 1;
        count(offset);
      });
    }
    if (index.chars == file.bytes()) index.marks = {};
    num_tokens_ += index.chars;
    files_.push_back(std::move(index));
  }

  static std::vector<char32_t> alphabet_of(const std::vector<std::uint8_t>& seen) {
    std::vector<char32_t> characters;
    for (char32_t character = 0; character < kNumCodePoints; ++character)
      if (seen[character]) characters.push_back(character);
    return characters;
  }

  std::size_t file_at(std::int64_t token) const {
    const auto after = std::upper_bound(files_.begin(), files_.end(), token,
                                        [](std::int64_t at, const CharIndex& each) { return at < each.start; });
    return static_cast<std::size_t>(after - files_.begin()) - 1;
  }

  // Characters [first, first + count) of a file. `text` is memory to read into.
  void read_part(const DataFile& file, const CharIndex& index, std::int64_t first, std::int64_t count,
                 std::string& text, std::int32_t* out) const {
    std::int64_t begin = first, end = first + count, skip = 0;  // in bytes; and characters before the first
    if (!index.marks.empty()) {
      const auto last = static_cast<std::size_t>((first + count - 1) / CharIndex::kStride) + 1;
      begin = index.marks[static_cast<std::size_t>(first / CharIndex::kStride)];
      end = last < index.marks.size() ? index.marks[last] : file.bytes();
      skip = first % CharIndex::kStride;
    }
    text.resize(static_cast<std::size_t>(end - begin));
    file.read(begin, text.data(), text.size());
    std::size_t at = 0;
    for (std::int64_t i = -skip; i < count; ++i) {
      const std::size_t offset = at;
      const char32_t character = at < text.size() ? next_code_point(text, at) : kNotUtf8;
      const std::int32_t id = character == kNotUtf8 ? -1 : tokenizer_->id_of(character);
      if (id < 0)
        file.fail(begin + static_cast<std::int64_t>(offset),
                  "there is another text here than when the file was opened: it was changed while it was in use");
      if (i >= 0) out[i] = id;
    }
  }

  Corpus corpus_;
  std::shared_ptr<const CharsTokenizer> tokenizer_;
  std::vector<CharIndex> files_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace

std::shared_ptr<const TokenStream> bytes_stream(const std::vector<std::string>& paths) {
  return std::make_shared<BytesStream>(paths);
}

CharsText chars_stream(const std::vector<std::string>& paths, std::shared_ptr<const CharsTokenizer> tokenizer) {
  auto stream = std::make_shared<CharsStream>(paths, std::move(tokenizer));
  return {stream, stream->tokenizer()};
}

}  // namespace trainer::data
