// One step of a ring (kernels/attention_block.h) on GPUs: chunk by chunk on the kernels of attention, whose results the
// passes here join in f32. Each chunk's results are rounded to the compute dtype once. Documents and lengths are not
// taken: what of a chunk they leave is known on the device alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/attention.h"

namespace trainer::kernels::cuda {

/// Rows of heads of a rank's part: `rows` tokens a sample, of the zigzag chunks of `rank`.
struct ZigzagRows {
  int batch = 0, rows = 0, heads = 0, dim = 0, rank = 0, ranks = 1;
};

/// to = rope(from), both dense.
void turn_part(const Call& call, DType dtype, const ZigzagRows& part, const Rotation& rotation, const void* from,
               void* to);
/// to = ropeᵀ(sum) + before, which may be null; `to` may be `before`. Only turned back where there is a rotation.
void finish_part(const Call& call, DType dtype, const ZigzagRows& part, const Rotation& rotation, const float* sum,
                 const float* before, void* to);
/// Every element becomes `value`.
void fill_part(const Call& call, float* to, float value, std::int64_t count);

/// Rows [first, first + count) of a sample, of which a pair of chunks gave results: dense [count, heads · dim], and
/// [heads, count].
struct PairRows {
  int first = 0, count = 0, rows = 0, heads = 0, dim = 0;
};
/// Joins o_new and lse_new to o [rows, heads · dim] and lse [heads, rows].
void join_pair(const Call& call, DType dtype, const PairRows& pair, const void* o_new, const float* lse_new, float* o,
               float* lse);
/// to [heads, count] = those columns of from [heads, rows].
void take_columns(const Call& call, const PairRows& pair, const float* from, float* to);
/// Adds `count` elements.
void add_pair(const Call& call, DType dtype, const void* from, std::int64_t count, float* to);

}  // namespace trainer::kernels::cuda
