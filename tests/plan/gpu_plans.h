// Plans of tiny jobs for GPUs, of every strategy and of several together: what the tests of running on GPUs look at
// without one.
#pragma once

#include <string>
#include <vector>

#include "engine/plan/plan.h"

namespace trainer::tests {

/// A job in words: for messages, and for gpu_plan.
struct GpuCase {
  std::string model;  ///< gpt2 or llama
  std::vector<std::string> overrides;
  std::string text() const;
};

/// Data strategies, tensor, pipelines and their products; each has held-out data, and so all programs that its strategy
/// knows.
const std::vector<GpuCase>& gpu_cases();

/// Planned for H100s in a node, by the target of CUDA's kernels.
Plan gpu_plan(const GpuCase& one);

/// GPT-2 124M, bf16, 8 sequences of 1024 a micro-batch.
Plan gpt2_124m_plan(const std::vector<std::string>& overrides);

}  // namespace trainer::tests
