// How lengths are grouped: two lengths are one model if every node has the same attributes; boundaries are bisected.
#include "engine/compile/lengths.h"

#include <map>

#include "engine/compile/model_graph.h"

namespace trainer {
namespace {

/// Graphs at different lengths. What a model computes is its nodes' attributes; shapes follow from the length.
class Models {
 public:
  explicit Models(const LoadedJob& loaded) : job_(loaded.job), tree_(graph_tree(loaded)) {}

  bool same(std::int64_t a, std::int64_t b) { return attributes_at(a) == attributes_at(b); }

 private:
  const std::vector<Attributes>& attributes_at(std::int64_t length) {
    const auto [at, fresh] = known_.try_emplace(length);
    if (!fresh) return at->second;
    BuildOptions options = build_options(job_, 1, BuildOptions::Mode::evaluate);
    set_length(options, length);
    for (const Node& node : read_graph(tree_, job_.model.with, options).nodes) at->second.push_back(node.attributes);
    return at->second;
  }

  const Job& job_;
  const yaml::Node tree_;
  std::map<std::int64_t, std::vector<Attributes>> known_;
};

/// Splits lengths[first, last) into runs. A model that is the same at both ends is so between them.
void split(Models& models, const std::vector<std::int64_t>& lengths, std::size_t first, std::size_t last,
           std::vector<std::vector<std::int64_t>>& runs) {
  std::size_t same = first, other = last;  // the model of `first` is that of `same`, and not that of `other`
  (models.same(lengths[first], lengths[last - 1]) ? same : other) = last - 1;
  while (same + 1 < other) {
    const std::size_t middle = same + (other - same) / 2;
    (models.same(lengths[first], lengths[middle]) ? same : other) = middle;
  }
  const auto at = [&](std::size_t i) { return lengths.begin() + static_cast<std::ptrdiff_t>(i); };
  runs.emplace_back(at(first), at(same + 1));
  if (same + 1 < last) split(models, lengths, same + 1, last, runs);
}

}  // namespace

std::vector<std::vector<std::int64_t>> lengths_of_one_model(const LoadedJob& loaded,
                                                            const std::vector<std::int64_t>& lengths) {
  std::vector<std::vector<std::int64_t>> runs;
  Models models(loaded);
  if (!lengths.empty()) split(models, lengths, 0, lengths.size(), runs);
  return runs;
}

}  // namespace trainer
