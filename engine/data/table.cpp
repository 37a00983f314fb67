// How CSV files are parsed into rows.
#include "engine/data/table.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/data/data_file.h"
#include "engine/data/recognise.h"

namespace trainer::data {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

std::string quoted(std::string_view text) {
  return "\"" + std::string(text.substr(0, 40)) + (text.size() > 40 ? "…\"" : "\"");
}

// One cell after another of one line.
class Cells {
 public:
  explicit Cells(std::string_view line) : rest_(line) {}

  bool next(std::string_view& cell) {
    if (done_) return false;
    std::size_t end = rest_.find(',');
    const std::size_t quote = rest_.find_first_not_of(" \t");
    if (quote != std::string_view::npos && rest_[quote] == '"' && quote < end) {
      const std::size_t closing = rest_.find('"', quote + 1);
      end = rest_.find(',', closing == std::string_view::npos ? rest_.size() : closing);
    }
    done_ = end == std::string_view::npos;
    cell = trimmed(rest_.substr(0, end));
    if (!done_) rest_.remove_prefix(end + 1);
    if (cell.size() >= 2 && cell.front() == '"' && cell.back() == '"') cell = trimmed(cell.substr(1, cell.size() - 2));
    return true;
  }

 private:
  std::string_view rest_;
  bool done_ = false;
};

// What from_chars leaves out: a number too small for the type, which is 0 or subnormal, and one too large, which is
// infinite.
template <typename Number>
Number nearest_number(const std::string& cell) {
  if constexpr (std::is_same_v<Number, float>) return std::strtof(cell.c_str(), nullptr);
  return static_cast<Number>(std::strtod(cell.c_str(), nullptr));
}

template <typename Number>
bool parse_number(std::string_view cell, Number& value) {
  if (cell.starts_with('+')) cell.remove_prefix(1);
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  if (error == std::errc::result_out_of_range) value = nearest_number<Number>(std::string(cell));
  return error != std::errc::invalid_argument && end == cell.data() + cell.size() && std::isfinite(value);
}

}  // namespace

/// Fills a table file by file.
class TableReader {
 public:
  TableReader(Table& table) : table_(table) {}

  void read(const std::string& path) {
    const DataFile file(path);
    refuse_foreign(file, DataFormat::table);
    path_ = &file.path();
    line_ = 0;
    bool header = std::holds_alternative<std::string>(table_.options_.target);
    for_each_line(file, [&](std::string_view line) {
      ++line_;
      if (line.empty()) return;
      header ? read_header(line) : read_row(line);
      header = false;
    });
  }

 private:
  // Lines without white space around them.
  template <typename Visit>
  static void for_each_line(const DataFile& file, Visit&& visit) {
    constexpr std::string_view kMark = "\xEF\xBB\xBF";  // a byte order mark, as spreadsheets write it
    BlockReader blocks(file);
    std::int64_t start = 0;  // of the block
    std::string_view text = blocks.next(0);
    std::size_t at = text.starts_with(kMark) ? kMark.size() : 0;
    while (at < text.size() || !blocks.at_end()) {
      const std::size_t end = text.find('\n', at);
      if (end == std::string_view::npos && !blocks.at_end()) {
        start += static_cast<std::int64_t>(std::exchange(at, 0));
        text = blocks.next(start);
        continue;
      }
      visit(trimmed(text.substr(at, end - at)));
      at = std::min(end, text.size() - 1) + 1;
    }
  }

  [[noreturn]] void fail(std::int64_t column, const std::string& what) const {
    std::string place = *path_ + ":" + std::to_string(line_) + ": ";
    if (column >= 0) place += "column " + std::to_string(column) + ": ";
    throw DataError(place + what);
  }

  void read_header(std::string_view line) {
    std::vector<std::string> names;
    Cells cells(line);
    for (std::string_view cell; cells.next(cell);) names.emplace_back(cell);
    if (!names_.empty() && names != names_) fail(-1, "the header differs from that of the first file");
    const std::string& target = std::get<std::string>(table_.options_.target);
    const auto found = std::find(names.begin(), names.end(), target);
    if (found == names.end()) fail(-1, "no column is named " + quoted(target));
    target_ = found - names.begin();
    names_ = std::move(names);
    set_columns(static_cast<std::int64_t>(names_.size()));
  }

  void set_columns(std::int64_t columns) {
    num_columns_ = columns;
    if (const auto* number = std::get_if<std::int64_t>(&table_.options_.target)) {
      target_ = *number < 0 ? *number + columns : *number;
      if (target_ < 0 || target_ >= columns)
        fail(-1, "has " + std::to_string(columns) + " columns, and none is number " + std::to_string(*number));
    }
    if (columns < 2) fail(-1, "has one column, which leaves no features");
    table_.num_features_ = columns - 1;
  }

  void read_row(std::string_view line) {
    if (num_columns_ == 0) set_columns(std::count(line.begin(), line.end(), ',') + 1);
    Cells cells(line);
    std::int64_t column = 0;
    for (std::string_view cell; cells.next(cell); ++column) {
      if (column == num_columns_)
        fail(-1, "has more than the " + std::to_string(num_columns_) + " cells of the rows before");
      column == target_ ? add_target(cell, column) : table_.features_.push_back(number<float>(cell, column));
    }
    if (column < num_columns_)
      fail(-1, "has " + std::to_string(column) + " cells, where the rows before have " + std::to_string(num_columns_));
    ++table_.num_rows_;
  }

  template <typename Number>
  Number number(std::string_view cell, std::int64_t column) const {
    Number value = 0;
    if (parse_number(cell, value)) return value;
    const bool first = table_.num_rows_ == 0 && names_.empty();
    fail(column, quoted(cell) + " is not a finite number" +
                     (first ? "; a header is read where the target is a column's name" : ""));
  }

  void add_target(std::string_view cell, std::int64_t column) {
    if (table_.options_.target_dtype == DType::f32) return table_.values_.push_back(number<float>(cell, column));
    const double value = number<double>(cell, column);
    const std::int64_t limit = table_.options_.num_classes > 0 ? table_.options_.num_classes : INT32_MAX;
    if (value != std::floor(value) || value < 0 || value >= static_cast<double>(limit)) {
      fail(column, quoted(cell) + " is not a class id from 0 to " + std::to_string(limit - 1));
    }
    table_.classes_.push_back(static_cast<std::int32_t>(value));
  }

  Table& table_;
  const std::string* path_ = nullptr;
  std::int64_t line_ = 0;
  std::int64_t num_columns_ = 0;  // 0 until known
  std::int64_t target_ = 0;
  std::vector<std::string> names_;
};

Table::Table(const std::vector<std::string>& paths, TableOptions options) : options_(std::move(options)) {
  CHECK(options_.target_dtype == DType::i32 || options_.target_dtype == DType::f32, "targets are i32 or f32");
  TableReader reader(*this);
  for (const std::string& path : paths) reader.read(path);
}

const void* Table::target(std::int64_t row) const {
  return options_.target_dtype == DType::i32 ? static_cast<const void*>(&classes_[static_cast<std::size_t>(row)])
                                             : &values_[static_cast<std::size_t>(row)];
}

Scaling Table::scaling(std::int64_t rows) const {
  const auto columns = static_cast<std::size_t>(num_features_);
  Scaling scaling{std::vector<double>(columns, 0.0), std::vector<double>(columns, 0.0)};
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < columns; ++i) scaling.mean[i] += features(row)[i];
  }
  for (double& mean : scaling.mean) mean /= static_cast<double>(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::size_t i = 0; i < columns; ++i) {
      const double off = features(row)[i] - scaling.mean[i];
      scaling.deviation[i] += off * off;
    }
  }
  for (double& deviation : scaling.deviation) {
    deviation = std::sqrt(deviation / static_cast<double>(rows));
    if (deviation == 0) deviation = 1;
  }
  return scaling;
}

void Table::scale(const Scaling& scaling) {
  CHECK(static_cast<std::int64_t>(scaling.mean.size()) == num_features_, "a scaling has the table's features");
  float* next = features_.data();
  for (std::int64_t row = 0; row < num_rows_; ++row) {
    for (std::size_t i = 0; i < scaling.mean.size(); ++i, ++next) {
      *next = static_cast<float>((*next - scaling.mean[i]) / scaling.deviation[i]);
    }
  }
}

namespace {

class TableRows final : public Dataset {
 public:
  explicit TableRows(std::shared_ptr<const Table> table)
      : table_(std::move(table)),
        fields_{{"features", DType::f32, Shape{table_->num_features()}}, {"targets", table_->target_dtype(), Shape{}}} {
  }

  std::int64_t num_samples() const override { return table_->num_rows(); }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    std::memcpy(out[0], table_->features(sample), static_cast<std::size_t>(fields_[0].bytes()));
    std::memcpy(out[1], table_->target(sample), static_cast<std::size_t>(fields_[1].bytes()));
  }

 private:
  std::shared_ptr<const Table> table_;
  std::vector<SampleField> fields_;
};

}  // namespace

std::shared_ptr<const Dataset> table_rows(std::shared_ptr<const Table> table) {
  return std::make_shared<TableRows>(std::move(table));
}

}  // namespace trainer::data
