// IdStream: files of token ids, joined. An id that the model's vocabulary lacks is found before training where
// possible, and is never trained on: every id that is read is checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/data/id_file.h"
#include "engine/data/token_stream.h"

namespace trainer::data {

class IdStream final : public TokenStream {
 public:
  /// `limit`: ids must be below it; 0: whatever fits i32. Raises DataError for a file that id_layout refuses.
  IdStream(const std::vector<std::string>& paths, std::optional<TokenType> type, std::int64_t limit);

  std::int64_t num_tokens() const override { return num_tokens_; }
  /// Raises DataError with file, offset and what to do at an id that is not below the limit.
  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override;

  /// Reads ids only to check them: all of them; or all of at most 64 MiB, and of more some 16 MiB in blocks spread over
  /// the files, with both ends of each.
  enum class Check { samples, all };
  void check(Check check) const;

 private:
  struct File {
    IdLayout layout;
    std::int64_t start = 0;  // of its first id in the whole
  };

  void read_part(std::size_t file, std::int64_t first, std::int64_t count, std::int32_t* out) const;
  void check_part(std::int64_t first, std::int64_t count) const;
  void suspect_wide_ids(std::size_t file) const;
  [[noreturn]] void fail(std::size_t file, std::int64_t index, std::uint32_t id) const;

  Corpus corpus_;
  std::optional<TokenType> type_;
  std::int64_t limit_;
  std::vector<File> files_;
  std::int64_t num_tokens_ = 0;
};

}  // namespace trainer::data
