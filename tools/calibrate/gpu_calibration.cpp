// One kernel after the other, each long enough that the clock of a busy GPU settles.
#include "tools/calibrate/gpu_calibration.h"

#include "engine/core/error.h"
#include "kernels/prepare.h"
#include "tools/calibrate/hardware_text.h"
#include "tools/calibrate/median.h"
#include "tools/calibrate/operands.h"

namespace trainer::tools {
namespace {

constexpr double kBudgetMs = 60;
constexpr std::int64_t kCopyBytes = std::int64_t{64} << 20;

GpuBench::Case case_of(const Signature& signature, std::int64_t cache_bytes) {
  GpuBench::Case one{signature, {}, fresh_of(signature), 2 * cache_bytes, kBudgetMs};
  for (std::size_t k = 0; k < signature.operands.size(); ++k)
    one.contents.push_back(contents_of(signature, static_cast<int>(k)));
  return one;
}

cost::Figure link_of(GpuBench& bench) {
  cost::Figure slower;
  for (const bool to_device : {true, false}) {
    const cost::Figure us = median_of(bench.copy_us(kCopyBytes, to_device));
    const cost::Figure rate{static_cast<double>(kCopyBytes) / us.value * 1e6, us.spread};
    if (slower.value == 0 || rate.value < slower.value) slower = rate;
  }
  return slower;
}

}  // namespace

GpuFigures measure_gpu(GpuBench& bench, const std::vector<Signature>& kernels, std::int64_t cache_bytes,
                       const std::function<void(const cost::Work&)>& begins) {
  GpuFigures figures;
  for (const Signature& signature : kernels) {
    const cost::Work work = cost::work_of(signature);
    if (begins) begins(work);
    if (!knows_contents(signature)) {
      figures.left_out.push_back(kernels::describe(signature) + ": its time depends on ids that only a run has");
      continue;
    }
    try {
      const std::vector<double> times = bench.kernel_us(case_of(signature, cache_bytes));
      if (times.empty()) {
        figures.left_out.push_back(kernels::describe(signature) +
                                   ": its operands do not fit into the memory that is free");
        continue;
      }
      const cost::Figure us = median_of(times);
      if (us.value > 0)
        figures.works.push_back(
            {cost::exact_name(signature), work.dtype, 0, 1, work.sizes, {work.amount / us.value * 1e6, us.spread}});
    } catch (const DataError& error) {
      figures.left_out.push_back(kernels::describe(signature) + ": " + error.what());
    }
  }
  figures.host_link = link_of(bench);
  return figures;
}

std::string gpu_hardware_text(const GpuFigures& figures, const std::string& base, const std::string& description) {
  std::string out =
      "# Measured by `trainer calibrate --device cuda`, over the figures of its base. A job takes it by "
      "cluster.hardware.\n";
  out += "base: " + quoted(base) + "\ndescription: " + quoted(description) + "\nmeasured_here: true\n";
  out += "host_link: " + figure_text(figures.host_link) + "\ndevice:\n  measured:\n";
  for (const cost::MeasuredWork& one : figures.works) out += work_row(one);
  if (figures.works.empty()) out += "    []\n";
  return out;
}

}  // namespace trainer::tools
