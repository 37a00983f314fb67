// TextTokenizer: a tokenizer.json at work. Its ids are those of Hugging Face's `tokenizers` 0.23.3, always; so is the
// text it decodes to. Truncation and padding, which the file may ask for, are left to the code that makes samples.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/bpe.h"

namespace trainer::tokenizer {

struct TokenizerFile;

struct EncodeOptions {
  bool special = false;  ///< adds the special tokens of the post-processor
  bool ranges = false;   ///< fills Tokens::ranges; those of added special tokens are empty
  PlainText plain = {};  ///< where special tokens that are written in the text are text
};

/// The tokenizer.json in a folder, or `path` itself. Raises DataError for a folder without one.
std::string tokenizer_file_in(const std::string& path);

class TextTokenizer {
 public:
  /// Reads a tokenizer.json, or the one in a folder. Raises DataError, IoError.
  static std::shared_ptr<const TextTokenizer> read(const std::string& path);
  /// The same of the file's text; `name` is its name in messages.
  static std::shared_ptr<const TextTokenizer> parse(std::string_view text, const std::string& name);
  ~TextTokenizer();

  /// One more than the largest id.
  std::int64_t vocab_size() const { return static_cast<std::int64_t>(texts_.size()); }
  bool has(std::int32_t id) const;
  bool is_special(std::int32_t id) const;
  /// The id of a token as tokenizer.json writes it, added or not; or kNoToken.
  std::int32_t find(std::string_view token) const;
  /// The token of an id as the decoder gets it. REQUIRES: has(id).
  std::string_view token(std::int32_t id) const { return texts_[static_cast<std::size_t>(id)]; }

  /// Raises DataError, with the offset, for text that is not UTF-8. Any number of threads.
  Tokens encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Ids without a token are left out. Bytes that are no UTF-8 become U+FFFD.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// The largest offset, at most text.size(), at which the text can be cut so that both parts together have the ids of
  /// the whole; 0 where no such place is known. The second part leaves out the first cut_gap() bytes behind the cut:
  /// the space that the tokenizer puts before a text by itself.
  std::size_t last_cut(std::string_view text) const;
  std::size_t cut_gap() const { return prepends_ ? 1 : 0; }

 private:
  explicit TextTokenizer(std::unique_ptr<TokenizerFile> file, const std::string& name);

  using ScratchHandle = std::unique_ptr<Bpe::Scratch, void (*)(Bpe::Scratch*)>;
  struct Encoding;
  void normalize_added(const std::string& name);
  bool can_cut(bool words_apart);
  bool is_between_words(std::string_view text, std::size_t at) const;
  void encode_found(const Piece& piece, Encoding& encoding) const;
  void encode_piece(const Piece& piece, Encoding& encoding) const;
  void put_added(const Piece& piece, const AddedToken& token, Encoding& encoding) const;

  std::unique_ptr<TokenizerFile> file_;
  std::vector<std::string_view> texts_;  // by id; of an id without a token the data is null
  std::vector<bool> special_;            // by id: skipped where special tokens are
  std::unique_ptr<TokenFinder> raw_, normalized_;
  std::unique_ptr<Bpe> bpe_;
  bool can_cut_ = false, prepends_ = false;
  mutable std::mutex mutex_;
  mutable std::vector<ScratchHandle> scratches_;  // not in use
};

/// Decodes ids as they come, and gives text only when all bytes of its characters are there.
class StreamDecoder {
 public:
  StreamDecoder(std::shared_ptr<const TextTokenizer> tokenizer, bool skip_special)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// The text that the id completes.
  std::string add(std::int32_t id);
  /// What is left, as decode() would have it.
  std::string finish();

 private:
  std::string rest(bool all);

  std::shared_ptr<const TextTokenizer> tokenizer_;
  bool skip_special_;
  std::vector<std::int32_t> ids_;  // those that the next text may depend on
  std::size_t given_ids_ = 0;      // of these, whose text was given
  int broken_ = 0;                 // ids since then after which the text ended in U+FFFD
};

}  // namespace trainer::tokenizer
