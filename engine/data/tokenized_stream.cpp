// A stream of the ids of text under a tokenizer.json.
#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "engine/core/error.h"
#include "engine/data/id_cache.h"
#include "engine/data/recognise.h"
#include "engine/data/token_stream.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::data {
namespace {

constexpr std::size_t kBlock = 4 << 20;  // bytes of text that are encoded at once, where text can be cut

using Ids = std::vector<std::int32_t>;

// A part of a file, and its ids.
struct Part {
  const DataFile* file;
  std::int64_t offset;
  std::string text;
  Ids ids = {};
};

void encode(Part& part, const FileTokenizer& tokenizer) {
  try {
    part.ids = tokenizer.encode(part.text);
  } catch (const DataError& error) {
    throw DataError(part.file->path() + ": behind offset " + std::to_string(part.offset) + ": " + error.what());
  }
  part.text = {};
}

// The parts on threads. The first error is raised again.
void encode_all(std::vector<Part>& parts, const FileTokenizer& tokenizer, int threads) {
  std::atomic<std::size_t> next{0};
  std::exception_ptr error;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i; (i = next++) < parts.size();) {
      try {
        encode(parts[i], tokenizer);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = parts.size();
      }
    }
  };
  std::vector<std::thread> team;
  for (int i = 1; i < threads && static_cast<std::size_t>(i) < parts.size(); ++i) team.emplace_back(work);
  work();
  for (std::thread& thread : team) thread.join();
  if (error) std::rethrow_exception(error);
}

/// Encodes the files of a corpus one after another and gives their ids in order.
class Encoding {
 public:
  Encoding(const Corpus& corpus, const FileTokenizer& tokenizer, const Tokenizing& options, const TakeIds& take)
      : corpus_(corpus), tokenizer_(tokenizer), options_(options), take_(take) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    threads_ = std::max(1, options.threads > 0 ? options.threads : cores);
  }

  void run() {
    for (const Corpus::File& file : corpus_.files()) add(file);
  }

 private:
  // As many blocks at a time as there are threads. A block without a place to cut grows.
  void add(const Corpus::File& from) {
    const DataFile& file = from.data;
    std::vector<Part> parts;
    std::string rest;
    for (std::int64_t at = 0; at < file.bytes() || !rest.empty();) {
      const auto size =
          static_cast<std::size_t>(std::min<std::int64_t>(static_cast<std::int64_t>(kBlock), file.bytes() - at));
      const std::size_t old = rest.size();
      rest.resize(old + size);
      file.read(at, rest.data() + old, size);
      at += static_cast<std::int64_t>(size);
      const bool last = at == file.bytes();
      const std::size_t cut = last ? rest.size() : tokenizer_.text_tokenizer().last_cut(rest);
      if (cut > 0) {
        parts.push_back({&file, at - static_cast<std::int64_t>(rest.size()), rest.substr(0, cut)});
        rest.erase(0, last ? cut : cut + tokenizer_.text_tokenizer().cut_gap());
      }
      if (!last && parts.size() < static_cast<std::size_t>(threads_)) continue;
      encode_all(parts, tokenizer_, threads_);
      for (const Part& part : parts) take_(part.ids);
      parts.clear();
      if (options_.progress) options_.progress(from.start + at, corpus_.bytes());
    }
  }

  const Corpus& corpus_;
  const FileTokenizer& tokenizer_;
  const Tokenizing& options_;
  const TakeIds& take_;
  int threads_;
};

class IdsInMemory final : public TokenStream {
 public:
  explicit IdsInMemory(Ids ids) : ids_(std::move(ids)) {}
  std::int64_t num_tokens() const override { return static_cast<std::int64_t>(ids_.size()); }
  void read(std::int64_t first, std::int64_t count, std::int32_t* out) const override {
    std::copy_n(ids_.begin() + first, count, out);
  }

 private:
  Ids ids_;
};

/// Raised by one where ids of the same text and tokenizer become others.
constexpr std::uint64_t kRevision = 1;

/// Of everything that the ids depend on: the tokenizer, and the contents of the files in their order.
Hash128 key_of(const Corpus& corpus, const FileTokenizer& tokenizer, const std::string& folder) {
  std::string facts = "revision " + std::to_string(kRevision) + ", special tokens are text, " + tokenizer.json();
  for (const Corpus::File& file : corpus.files())
    facts += "\n" + std::to_string(file.data.bytes()) + " " + content_hash(file.data, folder).str();
  return hash_of(facts);
}

}  // namespace

std::shared_ptr<const TokenStream> ids_in_memory(const std::function<void(const TakeIds&)>& make) {
  Ids ids;
  make([&](std::span<const std::int32_t> part) { ids.insert(ids.end(), part.begin(), part.end()); });
  ids.shrink_to_fit();
  return std::make_shared<IdsInMemory>(std::move(ids));
}

std::shared_ptr<const TokenStream> tokenized_stream(const std::vector<std::string>& paths,
                                                    const FileTokenizer& tokenizer, const Tokenizing& options) {
  const Corpus corpus(paths);
  for (const Corpus::File& file : corpus.files()) refuse_foreign(file.data, DataFormat::text);
  const auto encode_into = [&](const TakeIds& take) { Encoding(corpus, tokenizer, options, take).run(); };
  if (!options.cache.empty())
    return cached_ids(options.cache, key_of(corpus, tokenizer, options.cache), tokenizer.vocab_size(), encode_into,
                      options.say);
  return ids_in_memory(encode_into);
}

}  // namespace trainer::data
