// TokenStream: a corpus as one long run of ids, any part of which can be asked for. Ids are made from the files'
// bytes when asked, so a corpus takes no memory beyond the page cache. Any number of threads may read.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/data/files.h"
#include "engine/data/tokenizer.h"

namespace trainer::data {

class TokenStream {
 public:
  virtual ~TokenStream() = default;
  virtual std::int64_t num_tokens() const = 0;
  /// Ids [first, first + count). Raises DataError at a bad one, IoError where a file has become shorter. REQUIRES: they
  /// are in [0, num_tokens()).
  virtual void read(std::int64_t first, std::int64_t count, std::int32_t* out) const = 0;
};

std::shared_ptr<const TokenStream> bytes_stream(const std::vector<std::string>& paths);

/// Text under the chars tokenizer. One pass over the text finds its alphabet, unless `tokenizer` is given: then the
/// pass checks that the text has no other characters. Text of more than one byte a character gets an index, of the
/// place of every 1024th.
struct CharsText {
  std::shared_ptr<const TokenStream> stream;
  std::shared_ptr<const CharsTokenizer> tokenizer;
};
CharsText chars_stream(const std::vector<std::string>& paths,
                       std::shared_ptr<const CharsTokenizer> tokenizer = nullptr);

/// How text becomes ids.
struct Tokenizing {
  std::string cache{};  ///< folder of a cache of ids (id_cache.h); empty: they are held in memory
  int threads = 0;      ///< 0: as many as there are cores; where the tokenizer allows text to be cut
  std::function<void(std::int64_t done, std::int64_t all)> progress{};  ///< bytes of text
  std::function<void(const std::string&)> say{};                        ///< of waiting, and of a damaged cache
};

/// Takes ids, in order.
using TakeIds = std::function<void(std::span<const std::int32_t>)>;

/// The ids that `make` gives, held in memory.
std::shared_ptr<const TokenStream> ids_in_memory(const std::function<void(const TakeIds&)>& make);

/// Text under a tokenizer.json, each file a text of its own: all is encoded here, if the cache does not have its ids.
/// Raises DataError at text that is not UTF-8, IoError where the cache cannot be written.
std::shared_ptr<const TokenStream> tokenized_stream(const std::vector<std::string>& paths,
                                                    const FileTokenizer& tokenizer, const Tokenizing& options = {});

}  // namespace trainer::data
