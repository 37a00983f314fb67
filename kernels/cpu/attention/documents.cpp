// Where the documents of a row lie, and what of them a thread has.
#include "kernels/cpu/attention/documents.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/attention/algorithm.h"

namespace trainer::kernels::cpu {

void AttentionDocuments::read(const AttentionSizes& sizes, const std::int32_t* documents) {
  s_ = sizes;
  find_documents({documents, static_cast<std::size_t>(s_.batch * s_.keys)}, s_.batch, runs_);
  weights_.clear();
  whole_ = 0;
  for (const DocumentRun& run : runs_) {
    const AttentionSizes sizes_of_run = sizes_of(run);
    weights_.push_back(sizes_of_run.queries == 0 ? 0 : sizes_of_run.pairs_of_blocks());
    whole_ += weights_.back();
  }
}

AttentionSizes AttentionDocuments::sizes_of(const DocumentRun& run) const {
  const std::int64_t first = std::max(run.begin, s_.origin), end = std::min(run.end, s_.origin + s_.queries);
  AttentionSizes sizes = s_;
  sizes.batch = 1, sizes.keys = run.length();
  sizes.queries = std::max<std::int64_t>(end - first, 0);
  sizes.origin = sizes.queries > 0 ? first - run.begin : 0;
  return sizes;
}

AttentionOperands AttentionDocuments::operands_of(const DocumentRun& run, const AttentionOperands& at) const {
  return operands_at(s_, at, run.sample, std::max<std::int64_t>(run.begin - s_.origin, 0), run.begin);
}

std::int64_t AttentionDocuments::first_item(AttentionPass pass, const AttentionSizes& sizes, std::int64_t goal,
                                            std::int64_t weight) {
  if (goal <= 0 || weight == 0) return 0;
  if (pass == AttentionPass::backward) return std::min(sizes.kv_heads, (goal + weight - 1) / weight);
  return first_query_block(sizes, std::min(goal, sizes.heads * weight), weight);
}

void AttentionDocuments::clear_unseen(AttentionPass pass, const AttentionOperands& at, int part, int parts) const {
  const Range tokens = partition(s_.batch * s_.keys, part, parts);
  const auto clear = [&](std::int64_t sample, Range positions, bool queries) {
    positions.begin = std::max(positions.begin, tokens.begin - sample * s_.keys);
    positions.end = std::min(positions.end, tokens.end - sample * s_.keys);
    if (positions.begin >= positions.end) return;
    if (queries) clear_queries(pass, at, sample, positions);
    if (pass == AttentionPass::backward) clear_keys(at, sample, positions);
  };
  std::int64_t sample = 0, end = 0;  // of the documents so far
  for (std::size_t i = 0; i < runs_.size(); ++i) {
    for (; sample < runs_[i].sample; ++sample, end = 0) clear(sample, {end, s_.keys}, true);
    if (weights_[i] == 0) clear(sample, {runs_[i].begin, runs_[i].end}, false);
    end = runs_[i].end;
  }
  for (; sample < s_.batch; ++sample, end = 0) clear(sample, {end, s_.keys}, true);
}

void AttentionDocuments::clear_queries(AttentionPass pass, const AttentionOperands& at, std::int64_t sample,
                                       Range positions) const {
  const std::int64_t first = std::max(positions.begin - s_.origin, std::int64_t{0}),
                     count = std::min(positions.end - s_.origin, s_.queries) - first;
  if (count <= 0) return;
  const AttentionOperands from = operands_at(s_, at, sample, first, 0);
  if (pass == AttentionPass::backward) return clear_rows(s_, from.dq, s_.q_stride, s_.heads * s_.head_dim, count);
  clear_rows(s_, from.o_out, s_.heads * s_.v_dim, s_.heads * s_.v_dim, count);
  for (std::int64_t head = 0; head < s_.heads; ++head) std::fill_n(from.lse_out + head * s_.lse_stride, count, 0.0f);
}

void AttentionDocuments::clear_keys(const AttentionOperands& at, std::int64_t sample, Range positions) const {
  const AttentionOperands from = operands_at(s_, at, sample, 0, positions.begin);
  clear_rows(s_, from.dk, s_.kv_stride, s_.kv_heads * s_.head_dim, positions.size());
  clear_rows(s_, from.dv, s_.v_stride, s_.kv_heads * s_.v_dim, positions.size());
}

}  // namespace trainer::kernels::cpu
