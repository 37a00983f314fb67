// From a job to what plan says of it: Machine gives the figures, engine/report the rest.
#include "tools/planned.h"

#include <algorithm>
#include <utility>

#include "engine/compile/advise.h"
#include "engine/compile/fit.h"
#include "engine/train/ranks.h"
#include "tools/machine.h"

namespace trainer::tools {

using report::PredictedStep;
using report::WithoutBf16;

report::Planned planned(LoadedJob loaded) {
  Machine machine(loaded, ranks_per_node(loaded.job));
  const Hardware hardware = machine.timing();
  CompiledJob compiled = compile(loaded, hardware, Purpose::train);
  PredictedStep predicted = report::predict_step(loaded, compiled, hardware, machine.name(), compiled.prediction.get());
  std::vector<Suggestion> advice = advise(loaded, hardware, compiled, predicted.times.step_us);
  std::optional<WithoutBf16> costs = without_bf16(loaded, compiled);
  return {std::move(loaded), std::move(compiled), std::move(predicted), std::move(advice), std::move(costs)};
}

int tell_fit(const report::Planned& one) {
  if (one.compiled.fits) return kDone;
  say("{}\n", does_not_fit(one.loaded, one.compiled).str());
  return kBadJob;
}

PredictedStep predict_here(const LoadedJob& loaded, const CompiledJob& compiled, int threads) {
  Machine machine(loaded, ranks_per_node(loaded.job), threads);
  const Hardware hardware = machine.timing();
  return report::predict_step(loaded, compiled, hardware, machine.name());
}

double peak_flops_here(const LoadedJob& loaded, const CompiledJob& compiled, int threads) {
  Machine machine(loaded, ranks_per_node(loaded.job), threads);
  return report::peak_flops(loaded.job, compiled, *machine.timing().machine);
}

std::optional<WithoutBf16> without_bf16(const LoadedJob& loaded, const CompiledJob& compiled, int threads) {
  using kernels::cpu::Isa;
  if (loaded.job.precision.compute != DType::bf16 || loaded.job.cluster.device == Device::cuda) return std::nullopt;
  const Isa isa = kernels::cpu::detect_isa();
  if (isa >= Isa::avx512_bf16) return std::nullopt;
  LoadedJob in_f32 = loaded;
  in_f32.job.precision.compute = DType::f32;
  in_f32.job.strategy = compiled.strategy;
  in_f32.job.train.batch.micro = compiled.batch.micro;
  in_f32.job.activation_checkpointing = compiled.recompute;
  in_f32.job.cluster.memory_limit.reset();  // it need not fit where bf16 does
  const CompiledJob plan = plan_here(in_f32, Purpose::train, threads);
  const PredictedStep bf16 = predict_here(loaded, compiled, threads);
  return WithoutBf16{.isa = std::string(kernels::cpu::name_of(isa)),
                     .bf16_bytes = compiled.peak_bytes(),
                     .f32_bytes = plan.peak_bytes(),
                     .bf16_us = bf16.mean_us(),
                     .f32_us = predict_here(in_f32, plan, threads).mean_us(),
                     .spread = bf16.times.spread()};
}

}  // namespace trainer::tools
