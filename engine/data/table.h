// Table: numbers in CSV files, decoded once into f32 rows.
//
// A line is a row; cells are numbers, parted by commas, with or without quotes; blank lines are passed over. Every
// row has as many cells as the first. One column is the target, the others are the features, in their order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "engine/data/dataset.h"

namespace trainer::data {

/// A column by number, from 0 or, below 0, from the end; or by name, and then each file's first line is its header.
using Column = std::variant<std::int64_t, std::string>;

struct TableOptions {
  Column target = std::int64_t{-1};
  DType target_dtype = DType::i32;  ///< i32: class ids, whole numbers from 0; f32: values to regress
  std::int64_t num_classes = 0;     ///< a class id must be below it; 0 allows all
};

/// Per feature (x − mean) / deviation; a deviation of 0 counts as 1.
struct Scaling {
  std::vector<double> mean, deviation;
};

class Table {
 public:
  /// Raises DataError with file, line and column at what is not as above.
  Table(const std::vector<std::string>& paths, TableOptions options);

  std::int64_t num_rows() const { return num_rows_; }
  std::int64_t num_features() const { return num_features_; }
  DType target_dtype() const { return options_.target_dtype; }
  const float* features(std::int64_t row) const { return features_.data() + row * num_features_; }
  const void* target(std::int64_t row) const;

  /// Of rows [0, rows): mean and deviation (of the population), in f64.
  Scaling scaling(std::int64_t rows) const;
  void scale(const Scaling& scaling);

 private:
  friend class TableReader;

  TableOptions options_;
  std::int64_t num_rows_ = 0, num_features_ = 0;
  std::vector<float> features_;        // [num_rows, num_features]
  std::vector<std::int32_t> classes_;  // [num_rows], by target_dtype
  std::vector<float> values_;
};

/// A sample is a row: `features` f32 [num_features] and `targets` [].
std::shared_ptr<const Dataset> table_rows(std::shared_ptr<const Table> table);

}  // namespace trainer::data
