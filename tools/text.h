// Numbers and tables as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trainer::tools {

/// "1.5 GiB", "640 B".
std::string bytes_text(double bytes);
/// "124.4 million", "65,280".
std::string count_text(double count);
/// A whole number with its thousands apart.
std::string grouped(std::int64_t number);
/// "1.2 TFLOP".
std::string flops_text(double flops);

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

}  // namespace trainer::tools
