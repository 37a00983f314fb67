// Which reader a file takes, by its first bytes.
#include "engine/data/rows.h"

#include <optional>
#include <utility>

#include "engine/core/error.h"
#include "engine/data/parquet/parquet_rows.h"
#include "engine/data/recognise.h"
#include "engine/data/rows/bytes.h"
#include "engine/data/rows/compressed.h"
#include "engine/data/rows/text_rows.h"

namespace trainer::data {
namespace {

using namespace std::string_view_literals;

constexpr const char* kRead =
    "rows are read from JSONL and JSON arrays, plain or compressed by gzip or zstd, and from Parquet";

// More than any file has, and less than eight characters of text are when they are taken as a length.
constexpr std::int64_t kAnyLength = std::int64_t{1} << 48;

// `head` is what the file begins with, after decompression.
void refuse_foreign_rows(const std::string& path, std::string_view head, bool compressed) {
  if (const std::optional<FileKind> kind = recognise(head, kAnyLength))
    throw DataError(path + (compressed ? ": decompresses to " : ": is ") + kind->name + "; " +
                    (kind->advice.empty() ? kRead : kind->advice));
  if (head.starts_with("\xFF\xFE"sv) || head.starts_with("\xFE\xFF"sv))
    throw DataError(path + (compressed ? ": decompresses to" : ": is") + " UTF-16 text; save it as UTF-8");
}

}  // namespace

std::unique_ptr<Rows> open_rows(const std::string& path, const RowColumns& columns) {
  DataFile file(path);
  const std::string head = file.head(4);
  if (head == "PAR1" || head == "PARE") return parquet::parquet_rows(std::move(file), columns);
  const bool compressed = is_gzip(head) || is_zstd(head);
  Window window(open_bytes(std::move(file)));
  while (window.text().size() < kHeadBytes && window.more()) continue;
  refuse_foreign_rows(path, window.text().substr(0, kHeadBytes), compressed);
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // a byte order mark
  if (window.text().starts_with(kMark)) window.take(kMark.size());
  const std::size_t first = window.text().find_first_not_of(" \t\r\n");
  const bool array = first != std::string_view::npos && window.text()[first] == '[';
  return array ? array_rows(path, std::move(window)) : line_rows(path, std::move(window));
}

}  // namespace trainer::data
