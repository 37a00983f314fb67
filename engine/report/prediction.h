// A compiled job's step as the cost model has it: the one place where a job's cluster meets a machine's model.
#pragma once

#include <memory>
#include <string>

#include "engine/compile/compile.h"
#include "engine/cost/cost_model.h"
#include "engine/cost/predict.h"
#include "engine/report/json.h"

namespace trainer::report {

/// A step of the job on the machine that its cluster names.
struct PredictedStep {
  std::shared_ptr<const cost::MachineModel> machine;
  std::string hardware;   ///< where its figures are from, for people
  cost::Cluster cluster;  ///< `machine` is that above
  cost::Prediction times;
  double average_us = 0;  ///< what bringing ranks together adds to a round of `every` steps, where they train apart
  double largest_average_us = 0;  ///< of its parts the longest
  std::int64_t every = 1, parts = 1;
  double tokens = 0;  ///< of a step, all ranks; samples where the data has no tokens
  bool samples = false;
  double model_flops = 0;  ///< of a step, all ranks
  std::int64_t steps = 0;  ///< of the whole run
  int devices = 1;         ///< GPUs; of CPUs the nodes, whose ranks share one
  double price = 0;        ///< of a device and hour, in any currency; 0: unknown
  double peak_flops = 0;   ///< a second, all ranks, of the compute dtype; 0: the machine has none of it

  /// Of the role that is busiest: its times add up to the step.
  const cost::RoleTimes& busiest() const { return times.roles[times.slowest]; }
  /// Of a round of steps, averages among them.
  double mean_us() const { return times.step_us + average_us / static_cast<double>(every); }
  /// Of the whole run; evaluation, checkpoints and starting are not in it.
  double run_hours() const { return static_cast<double>(steps) * mean_us() / 3.6e9; }
  /// Of a step and of the run; 0: the price is unknown.
  double step_cost() const { return mean_us() / 3.6e9 * price * devices; }
  double run_cost() const { return static_cast<double>(steps) * step_cost(); }
  double per_second() const { return times.step_us > 0 ? tokens / mean_us() * 1e6 : 0; }
  /// Model FLOPs utilisation: the share of the peak that the model's FLOPs are, three times those of the forward pass
  /// (Chowdhery et al., "PaLM", 2022, appendix B). 0 where there is no peak.
  double mfu() const { return peak_flops > 0 && times.step_us > 0 ? model_flops / (peak_flops * mean_us() * 1e-6) : 0; }
};

/// Of `compiled`, which is of Purpose::train, on `hardware`; `name` is where its figures are from. The result keeps the
/// machine's model alive. `known`: the prediction of this plan on this hardware, if it was made before.
PredictedStep predict_step(const LoadedJob& loaded, const CompiledJob& compiled, Hardware hardware, std::string name,
                           const cost::Prediction* known = nullptr);

/// PredictedStep::peak_flops alone.
double peak_flops(const Job& job, const CompiledJob& compiled, const cost::MachineModel& machine);

/// A bf16 job on a processor without bf16 instructions, beside the same plan in f32.
struct WithoutBf16 {
  std::string isa;                             ///< the processor's: "avx2"
  std::int64_t bf16_bytes = 0, f32_bytes = 0;  ///< memory of the fullest rank
  double bf16_us = 0, f32_us = 0;              ///< a step, predicted
  double spread = 0;                           ///< of the prediction in bf16, either way: 0.2
};
/// A line for people.
std::string text_of(const WithoutBf16& costs);

/// `predicted` of plan --json: step_ms, its parts, low_ms and high_ms, tokens_per_s, mfu (null: unknown), hardware;
/// average_ms and average_every where ranks train apart; by stage its parts; communication and kernels of the busiest
/// role.
Json predicted_json(const PredictedStep& step);

/// The same as text: a headline, where the time goes, communication, the longest kernels, and for pipelines each stage.
std::string predicted_text(const PredictedStep& step);
/// "1,000 steps in 2.3 hours, 46.00 at 2.5 a device and hour; evaluation and checkpoints come on top".
std::string run_line(const PredictedStep& step);
/// "8 × h100-sxm", "16 × h100-sxm on 2 nodes".
std::string cluster_text(const PredictedStep& step);

}  // namespace trainer::report
