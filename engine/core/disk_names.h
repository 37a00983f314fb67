// DiskNames: how the tensors of a model folder are called and lie in its files, where that is not as in the graph.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace trainer {

struct DiskNames {
  std::vector<std::string> prefixes{};                         ///< the first with which a name begins is taken away
  std::vector<std::pair<std::string, std::string>> renamed{};  ///< ends of names in files, and what they are here
  /// Ends of the graph's names, and what they are in files. With `{}` a number is there: each index of the first dim is
  /// a tensor of its own.
  std::vector<std::pair<std::string, std::string>> in_files{};
  std::vector<std::string> transposed{};  ///< globs over the graph's names (name_matches): matrices that lie [in, out]
  std::vector<std::string> ignored{};     ///< globs over names in files: tensors that are not the model's
  /// Names in files of tensors that are written twice, and the graph's tensor that they are: not read, but written.
  std::vector<std::pair<std::string, std::string>> copies{};
};

}  // namespace trainer
