// The jobs of golden plans: small ones, such that every strategy, schedule, cut, precision, recomputation, device and
// model is among them, and the products in which they touch each other. Each fixes what could otherwise be chosen by a
// machine: micro-batch, strategy, layouts of kernels. Nothing of the computer that runs the test shows in a plan.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/compile.h"

namespace trainer::tests {

enum class GoldenTarget : std::uint8_t { cpu, cuda };

struct GoldenJob {
  std::string name;   ///< without blanks; of the golden
  std::string model;  ///< gpt2, llama, mlp, convnet
  GoldenTarget target = GoldenTarget::cpu;
  std::vector<std::string> overrides;
  Purpose purpose = Purpose::train;
  bool full_text = false;  ///< goldens/NAME.txt has the whole text
};

const std::vector<GoldenJob>& golden_jobs();

/// The job with micro-batches of one sample, `samples` in a step.
GoldenJob longer(GoldenJob job, int samples);

/// `loops`: Hardware::loops.
CompiledJob golden_compiled(const GoldenJob& job, bool loops = true);
inline Plan golden_plan(const GoldenJob& job) { return golden_compiled(job).plan; }

}  // namespace trainer::tests
