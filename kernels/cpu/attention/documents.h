// Attention within the documents of a row: each document is an attention of its own, of as many queries and keys, so
// the work is that of their lengths squared and no loop knows of documents. Of a part of the queries, a document has
// those that are its own. The work is cut over threads by weight; what a thread gets changes no result.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/documents.h"

namespace trainer::kernels::cpu {

/// Which of attention's passes work is cut for: items are blocks of queries of a head, or kv heads (AttentionLoops).
enum class AttentionPass : std::uint8_t { forward, backward };

class AttentionDocuments {
 public:
  /// Reads the [batch, keys] numbers of whole rows of these sizes. Throws DataError (find_documents).
  void read(const AttentionSizes& sizes, const std::int32_t* documents);

  /// Calls run(sizes, operands, items) for the items of each document that part `part` of `parts` has. Backward, a
  /// document without queries has no items (clear_unseen).
  template <typename Run>
  void for_each(AttentionPass pass, const AttentionOperands& at, int part, int parts, Run&& run) const {
    const std::int64_t heads = pass == AttentionPass::forward ? s_.heads : s_.kv_heads;
    const std::int64_t begin = heads * whole_ * part / parts, end = heads * whole_ * (part + 1) / parts;
    std::int64_t before = 0;
    for (std::size_t i = 0; i < runs_.size() && before < end; ++i) {
      const AttentionSizes sizes = sizes_of(runs_[i]);
      const std::int64_t weight = weights_[i];
      const Range items{first_item(pass, sizes, begin - before, weight), first_item(pass, sizes, end - before, weight)};
      if (items.begin < items.end) run(sizes, operands_of(runs_[i], at), items);
      before += weight * heads;
    }
  }

  /// Makes o and lse, or dq, of padding 0, and dk and dv of keys that no query sees: those of part `part` of `parts`.
  void clear_unseen(AttentionPass pass, const AttentionOperands& at, int part, int parts) const;

 private:
  AttentionSizes sizes_of(const DocumentRun& run) const;
  AttentionOperands operands_of(const DocumentRun& run, const AttentionOperands& at) const;
  /// The first item of a document before which `goal` lies, `weight` being that of each head.
  static std::int64_t first_item(AttentionPass pass, const AttentionSizes& sizes, std::int64_t goal,
                                 std::int64_t weight);
  void clear_queries(AttentionPass pass, const AttentionOperands& at, std::int64_t sample, Range positions) const;
  void clear_keys(const AttentionOperands& at, std::int64_t sample, Range positions) const;

  AttentionSizes s_;
  std::vector<DocumentRun> runs_;
  std::vector<std::int64_t> weights_;  ///< pairs of blocks of one head
  std::int64_t whole_ = 0;             ///< their sum
};

}  // namespace trainer::kernels::cpu
