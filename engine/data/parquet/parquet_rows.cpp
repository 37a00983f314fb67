// Builds each row by a walk over the schema: at each node the levels say whether it is null and how many items follow.
#include "engine/data/parquet/parquet_rows.h"

#include <algorithm>
#include <utility>

#include "engine/core/error.h"
#include "engine/data/parquet/column_reader.h"
#include "engine/data/parquet/json_values.h"
#include "engine/data/parquet/metadata.h"
#include "engine/data/parquet/mistakes.h"
#include "engine/data/parquet/schema.h"

namespace trainer::data::parquet {
namespace {

constexpr std::size_t kMagicBytes = 4, kTailBytes = 8;
constexpr std::int64_t kMostFooterBytes = std::int64_t{64} << 20;
constexpr const char* kCopyAgain = "; the file is damaged: copy or download it again";

void check_length(std::size_t row_bytes) {
  if (static_cast<std::int64_t>(row_bytes) > kMostRowBytes)
    throw Unsupported("the row is longer than " + std::to_string(kMostRowBytes >> 20) + " MiB");
}

class ParquetRows final : public Rows {
 public:
  ParquetRows(DataFile file, const RowColumns& columns) : file_(std::move(file)) {
    attempt(file_.path(), [&] { open(columns); });
  }

  bool next(std::string& row) override {
    if (row_ == footer_.num_rows) return false;
    ++row_;
    attempt(place(), [&] {
      while (left_in_group_ == 0) begin_group();
      --left_in_group_;
      write_row(row);
      if (left_in_group_ == 0) end_group();
    });
    return true;
  }

  std::string place() const override { return file_.path() + ": row " + std::to_string(row_); }

  /// In proportion to the rows, because the file has its columns one after another.
  std::int64_t bytes_read() const override {
    if (footer_.num_rows == 0) return file_.bytes();
    return static_cast<std::int64_t>(static_cast<__int128>(file_.bytes()) * row_ / footer_.num_rows);
  }

 private:
  template <typename Action>
  void attempt(const std::string& place, Action&& action) {
    const auto column = [&] { return at_ == nullptr ? "" : ": column " + at_->path; };
    try {
      action();
    } catch (const Damaged& mistake) {
      throw DataError(place + column() + ": " + mistake.what() + kCopyAgain);
    } catch (const Unsupported& mistake) {
      throw DataError(place + column() + ": " + mistake.what());
    }
  }

  void open(const RowColumns& columns);
  void read_footer_bytes();
  void begin_group();
  void end_group();
  void write_row(std::string& row);
  void write(const Node& node, std::string& row);
  void write_object(const Node& node, std::string& row);
  void write_items(const Node& node, std::string& row);
  void write_key(const Node& node, std::string& row);
  void write_value(const Node& node, std::string& row);
  void skip_entries(const Node& node, int below);
  bool goes_on(const Node& node);

  ColumnReader& column(std::size_t leaf) {
    at_ = &schema_.leaves[leaf];
    return *columns_[leaf];
  }

  DataFile file_;
  std::string footer_bytes_;
  Footer footer_;
  Schema schema_;                                       // `row` has only the columns to read
  std::vector<std::unique_ptr<ColumnReader>> columns_;  // by leaf; null: not read
  std::size_t next_group_ = 0;                          // where in the footer
  std::int64_t row_ = 0, left_in_group_ = 0;
  const Leaf* at_ = nullptr;  // the current column, for messages
};

void ParquetRows::read_footer_bytes() {
  const std::string head = file_.head(kMagicBytes);
  if (head == "PARE") throw Unsupported("is an encrypted Parquet file; write it without encryption");
  std::string tail(kTailBytes, '\0');
  if (file_.bytes() < static_cast<std::int64_t>(kMagicBytes + kTailBytes))
    throw Damaged("is too short for a Parquet file");
  const std::int64_t tail_at = file_.bytes() - static_cast<std::int64_t>(kTailBytes);
  file_.read(tail_at, tail.data(), tail.size());
  if (tail.substr(4) == "PARE") throw Unsupported("is an encrypted Parquet file; write it without encryption");
  if (tail.substr(4) != "PAR1") throw Damaged("ends without Parquet's footer");
  const auto length = static_cast<std::int64_t>(number_of<std::uint32_t>(tail));
  if (length > tail_at - static_cast<std::int64_t>(kMagicBytes)) throw Damaged("has a footer longer than the file");
  if (length > kMostFooterBytes) throw Unsupported("has a footer of more than 64 MiB; write it with fewer row groups");
  footer_bytes_.resize(static_cast<std::size_t>(length));
  file_.read(tail_at - length, footer_bytes_.data(), footer_bytes_.size());
}

void ParquetRows::open(const RowColumns& columns) {
  read_footer_bytes();
  footer_ = read_footer(footer_bytes_);
  if (footer_.encrypted) throw Unsupported("is an encrypted Parquet file; write it without encryption");
  next_group_ = footer_.row_groups;
  schema_ = make_schema(footer_.schema);
  columns_.resize(schema_.leaves.size());
  std::vector<Node>& fields = schema_.row.children;
  const auto has = [&](const std::string& name) {
    return std::ranges::find(fields, name, &Node::name) != fields.end();
  };
  const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (!columns.needed.empty() && std::ranges::all_of(columns.needed, has))
    std::erase_if(fields, [&](const Node& field) {
      return !is_in(columns.needed, field.name) && !is_in(columns.optional, field.name);
    });
  for (const Node& field : fields)
    for (std::size_t leaf = field.first_leaf; leaf < field.last_leaf; ++leaf)
      if (!schema_.leaves[leaf].unsupported.empty()) {
        at_ = &schema_.leaves[leaf];
        throw Unsupported(at_->unsupported +
                          ", which is not read; write the file without it, or with text in its place");
      }
}

void ParquetRows::begin_group() {
  at_ = nullptr;
  const RowGroup group = read_row_group(footer_bytes_, schema_.leaves.size(), next_group_);
  left_in_group_ = group.num_rows;
  for (const Node& field : schema_.row.children)
    for (std::size_t leaf = field.first_leaf; leaf < field.last_leaf; ++leaf) {
      at_ = &schema_.leaves[leaf];
      columns_[leaf].reset();  // frees its memory first
      columns_[leaf] = std::make_unique<ColumnReader>(file_, *at_, group.columns[leaf]);
    }
}

void ParquetRows::end_group() {
  for (const Node& field : schema_.row.children)
    for (std::size_t leaf = field.first_leaf; leaf < field.last_leaf; ++leaf)
      if (!column(leaf).at_end()) throw Damaged("has more rows than its row group");
}

void ParquetRows::write_row(std::string& row) {
  row.clear();
  for (const Node& field : schema_.row.children)
    for (std::size_t leaf = field.first_leaf; leaf < field.last_leaf; ++leaf) {
      if (column(leaf).at_end()) throw Damaged("has fewer rows than its row group");
      if (column(leaf).repetition() != 0) throw Damaged("has a list that belongs to no row");
    }
  write_object(schema_.row, row);
  check_length(row.size());
}

// Skips the one entry of each leaf that stands for a null or an empty list. REQUIRES: its definition is below `below`.
void ParquetRows::skip_entries(const Node& node, int below) {
  for (std::size_t leaf = node.first_leaf; leaf < node.last_leaf; ++leaf) {
    ColumnReader& reader = column(leaf);
    if (reader.definition() >= below) throw Damaged("has a value where the columns beside it have none");
    reader.advance();
  }
}

void ParquetRows::write(const Node& node, std::string& row) {
  check_length(row.size());
  if (node.first_leaf == node.last_leaf) {  // a group without fields has no levels
    row += "{}";
    return;
  }
  if (node.optional && column(node.first_leaf).definition() < node.definition) {
    row += "null";
    return skip_entries(node, node.definition);
  }
  switch (node.shape) {
    case Node::Shape::leaf:
      return write_value(node, row);
    case Node::Shape::object:
      return write_object(node, row);
    case Node::Shape::list:
    case Node::Shape::map:
      return write_items(node, row);
  }
}

void ParquetRows::write_object(const Node& node, std::string& row) {
  row += '{';
  bool first = true;
  for (const Node& field : node.children) {
    if (!std::exchange(first, false)) row += ", ";
    row += field.key;
    row += ' ';
    write(field, row);
  }
  row += '}';
}

// Whether another item of the list follows; all leaves below must agree.
bool ParquetRows::goes_on(const Node& node) {
  const bool more = column(node.first_leaf).repetition() == node.item_repetition;
  for (std::size_t leaf = node.first_leaf + 1; leaf < node.last_leaf; ++leaf)
    if ((column(leaf).repetition() == node.item_repetition) != more)
      throw Damaged("has lists of other lengths than the columns beside it");
  return more;
}

void ParquetRows::write_items(const Node& node, std::string& row) {
  const bool map = node.shape == Node::Shape::map;
  row += map ? '{' : '[';
  if (column(node.first_leaf).definition() < node.item_definition) {
    skip_entries(node, node.item_definition);
  } else {
    bool first = true;
    do {
      if (!std::exchange(first, false)) row += ", ";
      if (map) write_key(node.children[0], row);
      write(node.children.back(), row);
    } while (goes_on(node));
  }
  row += map ? '}' : ']';
}

// Keys of JSON objects are strings, so numbers are put in quotes.
void ParquetRows::write_key(const Node& node, std::string& row) {
  const std::size_t start = row.size();
  write(node, row);
  const char first = row[start];
  if (first == '{' || first == '[' || row.compare(start, std::string::npos, "null") == 0)
    throw Unsupported("has a map whose keys are neither text nor numbers");
  if (first != '"') {
    row.insert(start, 1, '"');
    row += '"';
  }
  row += ": ";
}

void ParquetRows::write_value(const Node& node, std::string& row) {
  ColumnReader& reader = column(node.first_leaf);
  if (reader.definition() != reader.leaf().most_definition) throw Damaged("has no value where one must be");
  const std::string_view value = reader.value();
  check_length(row.size() + value.size());
  append_value(row, reader.leaf(), value);
  reader.advance();
}

}  // namespace

std::unique_ptr<Rows> parquet_rows(DataFile file, const RowColumns& columns) {
  return std::make_unique<ParquetRows>(std::move(file), columns);
}

}  // namespace trainer::data::parquet
