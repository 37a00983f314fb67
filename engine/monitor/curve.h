// Curve: the course of a number over any number of steps in a fixed number of columns, for one line of text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer {

class Curve {
 public:
  /// `columns`: even, at least 2.
  explicit Curve(std::size_t columns) : columns_(columns) {}

  /// The next value. When the columns are full each two become one, so that all have the same number of values.
  void add(double value);
  /// A block character a column, from the lowest (▁) to the highest (█). UTF-8.
  std::string text() const;
  std::size_t size() const { return sums_.size(); }

 private:
  std::size_t columns_;
  std::vector<double> sums_;  // of per_column_ values each, but for the last
  std::int64_t per_column_ = 1;
  std::int64_t in_last_ = 0;
};

}  // namespace trainer
