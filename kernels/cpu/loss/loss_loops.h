// Loops of kernels/loss.h over rows or elements. Pointers to c are f32 or, if `bf16`, bf16.
#pragma once

#include <cstdint>

#include "kernels/cpu/runtime/by_isa.h"

namespace trainer::kernels::cpu {

constexpr int kLossStats = 5;  // numbers of a row of cross_entropy_stats

struct CrossEntropyArgs {
  bool bf16 = false;
  std::int64_t classes = 0;  ///< of the whole
  std::int64_t columns = 0;  ///< of a row of logits
  std::int64_t present = 0;  ///< the first columns, which hold logits; the others are padding
  std::int64_t first = 0;    ///< class of column 0
  std::int64_t ignore_index = -100;
  float smoothing = 0;
  const void* logits = nullptr;
  const std::int32_t* targets = nullptr;
  float* lse = nullptr;          ///< written forward, read backward; unused by cross_entropy_and_grad
  double* losses = nullptr;      ///< [rows], forward
  const float* seeds = nullptr;  ///< backward: of rows_of_seed rows each
  std::int64_t rows_of_seed = 1;
  void* dlogits = nullptr;           ///< backward
  float* stats = nullptr;            ///< [rows, 5], or gathered [parts, rows, 5]
  std::int64_t parts = 1, rows = 0;  ///< of gathered stats
};

struct MseArgs {
  bool bf16 = false;
  bool target_bf16 = false;
  const void* prediction = nullptr;
  const void* target = nullptr;
  float seed = 0;
  void* dprediction = nullptr;
};

DECLARE_BY_ISA(void cross_entropy(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end);
               void cross_entropy_stats(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end);
               void cross_entropy_gathered(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end);
               void cross_entropy_grad(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end);
               void cross_entropy_and_grad(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end);
               /// losses[row] = 1 where the target's logit is the first largest, else 0.
               void correct(const CrossEntropyArgs& args, std::int64_t begin, std::int64_t end);
               /// Σ (p − t)² over the elements [begin, end).
               double squared_error(const MseArgs& args, std::int64_t begin, std::int64_t end);
               void squared_error_grad(const MseArgs& args, std::int64_t begin, std::int64_t end);)

}  // namespace trainer::kernels::cpu
