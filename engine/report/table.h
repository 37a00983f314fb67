// Tables as people read them; numbers in them by engine/core/amounts.h.
#pragma once

#include <string>
#include <vector>

#include "engine/core/amounts.h"

namespace trainer::report {

/// Rows whose columns line up: those of numbers to the right, the first and those of words to the left.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { add(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  /// Each line is indented by `indent` blanks.
  std::string str(int indent = 2) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace trainer::report
