// Tokenizers: text to ids and back. What a tokenizer learned from its text goes into the checkpoint as JSON, so
// that a model can be sampled without the text.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::tokenizer {
class TextTokenizer;
}

namespace trainer::data {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocab_size() const = 0;
  /// Whether what it encodes is text for people.
  virtual bool reads_text() const { return true; }
  /// Raises DataError, with the offset in `text`, at what has no id.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  /// Raises DataError for an id outside of the vocabulary.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  /// Its state; make_tokenizer takes it back.
  virtual std::string json() const = 0;
};

/// Ids are the bytes, 0 to 255. Where the data is rows, kEnd ends a text; it stands for no byte.
class BytesTokenizer final : public Tokenizer {
 public:
  static constexpr std::int32_t kEnd = 256;

  explicit BytesTokenizer(bool has_end = false) : has_end_(has_end) {}

  std::int64_t vocab_size() const override { return kEnd + (has_end_ ? 1 : 0); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string json() const override;

 private:
  bool has_end_;
};

/// Ids are the indices of characters in a sorted alphabet. A character is a Unicode code point of the UTF-8 text;
/// text that is not UTF-8 has none, and wants the bytes tokenizer.
class CharsTokenizer final : public Tokenizer {
 public:
  /// REQUIRES: `alphabet` ascends.
  explicit CharsTokenizer(std::vector<char32_t> alphabet);

  std::int64_t vocab_size() const override { return static_cast<std::int64_t>(alphabet_.size()); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string json() const override;

  /// The id of a character, or -1.
  std::int32_t id_of(char32_t character) const { return character < ids_.size() ? ids_[character] : -1; }

 private:
  std::vector<char32_t> alphabet_;
  std::vector<std::int32_t> ids_;  // by code point
};

/// A tokenizer.json. Special tokens that are written in a text are text. Its state is a hash of the file, not the file:
/// make_tokenizer needs it.
class FileTokenizer final : public Tokenizer {
 public:
  /// `path`: the file, or a folder with a tokenizer.json. Raises DataError, IoError.
  explicit FileTokenizer(const std::string& path);

  std::int64_t vocab_size() const override;
  std::vector<std::int32_t> encode(std::string_view text) const override;
  /// Ids without a token, which a model with a larger vocabulary may draw, stand for nothing.
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string json() const override;

  const tokenizer::TextTokenizer& text_tokenizer() const { return *tokenizer_; }
  /// For streams of ids that are decoded as they come.
  const std::shared_ptr<const tokenizer::TextTokenizer>& shared() const { return tokenizer_; }

 private:
  std::shared_ptr<const tokenizer::TextTokenizer> tokenizer_;
  std::string hash_;
};

/// Ids written as decimal numbers, for data that is ids: its text is known to whoever made it. decode() puts a space
/// before each.
class NumbersTokenizer final : public Tokenizer {
 public:
  explicit NumbersTokenizer(std::int64_t vocab_size) : vocab_size_(vocab_size) {}

  std::int64_t vocab_size() const override { return vocab_size_; }
  bool reads_text() const override { return false; }
  /// Spaces or commas may be between ids.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  std::string json() const override;

 private:
  std::int64_t vocab_size_;
};

/// From what json() gave; that of a FileTokenizer takes the file `path`, which must have the same contents. Raises
/// DataError if it is none of that.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view json, const std::string& path = "");

}  // namespace trainer::data
