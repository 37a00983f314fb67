// A sequence is a run of codes: for each id, 4·id + 2·(it is a target) + (it is the first). So a store is one stream
// of numbers, which the cache of ids holds as it is.
#include "engine/data/row_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/data/id_cache.h"
#include "engine/data/rows.h"

namespace trainer::data {
namespace {

constexpr std::size_t kEncodedBytes = 8 << 20, kEncodedRows = 8192;  // of rows that are encoded at once
constexpr std::size_t kMostMistakes = 10;
constexpr std::int64_t kScan = 1 << 16;
constexpr std::int32_t kFirst = 1, kTrained = 2, kFactor = 4;

struct Row {
  std::string text, place;
  std::vector<std::int32_t> codes = {};
  std::optional<std::string> mistake = {};
};

void encode(Row& row, const RowFormat& format) {
  try {
    const EncodedRow encoded = format.encode(row.text);
    CHECK(!encoded.ids.empty() && encoded.ids.size() == encoded.trained.size(), "every id of a row is a target or not");
    row.codes.reserve(encoded.ids.size());
    for (std::size_t i = 0; i < encoded.ids.size(); ++i)
      row.codes.push_back(kFactor * encoded.ids[i] + (encoded.trained[i] ? kTrained : 0) +
                          (i == 0 || i == encoded.second ? kFirst : 0));
  } catch (const DataError& error) {
    row.mistake = error.what();
  }
  row.text = {};
}

/// The rows on threads; what is no mistake of a row is raised again.
void encode_all(std::vector<Row>& rows, const RowFormat& format, int threads) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(threads));
  const auto work = [&](std::size_t thread) {
    try {
      for (std::size_t i; (i = next++) < rows.size();) encode(rows[i], format);
    } catch (...) {
      errors[thread] = std::current_exception();
      next = rows.size();
    }
  };
  std::vector<std::thread> team;
  for (std::size_t i = 1; i < errors.size(); ++i) team.emplace_back(work, i);
  work(0);
  for (std::thread& thread : team) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Reads and encodes the rows of files, and gives their codes in order.
class RowEncoding {
 public:
  RowEncoding(const std::vector<std::string>& paths, const RowFormat& format, const Tokenizing& options,
              const TakeIds& take)
      : paths_(paths), format_(format), columns_(format.columns()), options_(options), take_(take) {
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    threads_ = std::max(1, options.threads > 0 ? options.threads : cores);
    for (const std::string& path : paths) all_bytes_ += DataFile(path).bytes();
  }

  void run() {
    try {
      std::int64_t before = 0;  // bytes of the files that are done
      for (const std::string& path : paths_) before += read(path, before);
    } catch (const DataError& error) {  // behind the rows of the block
      finish_block(0);
      mistakes_.emplace_back(error.what());
    }
    finish_block(all_bytes_);
    if (!mistakes_.empty()) fail();
  }

 private:
  // The bytes of the file.
  std::int64_t read(const std::string& path, std::int64_t before) {
    const std::unique_ptr<Rows> rows = open_rows(path, columns_);
    std::string text;
    while (mistakes_.size() < kMostMistakes && rows->next(text)) {
      bytes_ += text.size();
      block_.push_back({std::move(text), rows->place()});
      if (bytes_ >= kEncodedBytes || block_.size() >= kEncodedRows) finish_block(before + rows->bytes_read());
    }
    return DataFile(path).bytes();
  }

  void finish_block(std::int64_t done) {
    encode_all(block_, format_, threads_);
    for (const Row& row : block_) {
      if (row.mistake && mistakes_.size() < kMostMistakes) mistakes_.push_back(row.place + ": " + *row.mistake);
      if (mistakes_.empty()) take_(row.codes);
    }
    block_.clear();
    bytes_ = 0;
    if (options_.progress) options_.progress(std::min(done, all_bytes_), all_bytes_);
  }

  [[noreturn]] void fail() const {
    const bool more = mistakes_.size() >= kMostMistakes;
    throw DataError(
        fmt::format("{}{}", fmt::join(mistakes_, "\n"), more ? "\n(the rows behind them were not read)" : ""));
  }

  const std::vector<std::string>& paths_;
  const RowFormat& format_;
  const RowColumns columns_;
  const Tokenizing& options_;
  const TakeIds& take_;
  int threads_;
  std::int64_t all_bytes_ = 0;
  std::vector<Row> block_;
  std::size_t bytes_ = 0;  // of the block's text
  std::vector<std::string> mistakes_;
};

/// Raised by one where codes of the same rows become others.
constexpr std::uint64_t kRowsRevision = 1;

Hash128 key_of(const std::vector<std::string>& paths, const RowFormat& format, const std::string& folder) {
  std::string facts = "rows, revision " + std::to_string(kRowsRevision) + ", " + format.facts();
  for (const std::string& path : paths) {
    const DataFile file(path);
    facts += "\n" + std::to_string(file.bytes()) + " " + content_hash(file, folder).str();
  }
  return hash_of(facts);
}

std::shared_ptr<const TokenStream> codes_of(const std::vector<std::string>& paths, const RowFormat& format,
                                            const Tokenizing& options) {
  const auto encode_into = [&](const TakeIds& take) { RowEncoding(paths, format, options, take).run(); };
  if (options.cache.empty()) return ids_in_memory(encode_into);
  return cached_ids(options.cache, key_of(paths, format, options.cache), kFactor * format.vocab_size(), encode_into,
                    options.say);
}

}  // namespace

RowStore::RowStore(std::shared_ptr<const TokenStream> codes, int sequences)
    : codes_(std::move(codes)), sequences_(sequences) {
  std::vector<std::int32_t> some(static_cast<std::size_t>(kScan));
  const std::int64_t end = codes_->num_tokens();
  for (std::int64_t at = 0; at < end; at += kScan) {
    const std::int64_t count = std::min(kScan, end - at);
    codes_->read(at, count, some.data());
    for (std::int64_t i = 0; i < count; ++i)
      if (some[static_cast<std::size_t>(i)] & kFirst) starts_.push_back(at + i);
  }
  starts_.push_back(end);
  CHECK((starts_.size() - 1) % static_cast<std::size_t>(sequences_) == 0, "every row has as many sequences");
}

void RowStore::read(std::int64_t first, std::int64_t count, std::int32_t* ids, std::uint8_t* trained) const {
  codes_->read(first, count, ids);
  for (std::int64_t i = 0; i < count; ++i) {
    trained[i] = (ids[i] & kTrained) != 0;
    ids[i] /= kFactor;
  }
}

std::shared_ptr<const RowStore> encoded_rows(const std::vector<std::string>& paths, const RowFormat& format,
                                             const Tokenizing& options) {
  return std::make_shared<RowStore>(codes_of(paths, format, options), format.sequences());
}

void cache_rows(const std::vector<std::string>& paths, const RowFormat& format, const Tokenizing& options) {
  codes_of(paths, format, options);
}

std::string place_of_row(const std::vector<std::string>& paths, std::int64_t row) {
  for (const std::string& path : paths) {
    const std::unique_ptr<Rows> rows = open_rows(path);
    for (std::string text; rows->next(text); --row)
      if (row == 0) return rows->place();
  }
  return paths.front();
}

}  // namespace trainer::data
