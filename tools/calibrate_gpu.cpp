// How the kernels of jobs are collected, and how a GPU is found, measured and told of.
#include "tools/calibrate_gpu.h"

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/report/table.h"
#include "engine/run/cuda_device.h"
#include "engine/run/gpu_bench.h"
#include "tools/calibrate/gpu_calibration.h"
#include "tools/calibrate/hardware_text.h"
#include "tools/command.h"
#include "tools/machine.h"
#include "tools/progress_line.h"

namespace trainer::tools {
namespace {

bool begins_as_one_of(std::string_view name, const std::vector<std::string>& only) {
  return only.empty() || std::ranges::any_of(only, [&](const std::string& prefix) { return name.starts_with(prefix); });
}

Json json_of(const GpuFigures& figures, const Gpu& gpu, const std::string& base, const std::string& path,
             double seconds) {
  Json works = Json::array();
  for (const cost::MeasuredWork& one : figures.works)
    works.push_back({{"work", one.work},
                     {"dtype", name_of(one.dtype)},
                     {"sizes", one.sizes},
                     {"rate", one.rate.value},
                     {"spread", one.rate.spread}});
  return {{"file", path},
          {"gpu", gpu.name},
          {"base", base},
          {"seconds", seconds},
          {"host_link", figures.host_link.value},
          {"left_out", figures.left_out},
          {"works", works}};
}

void put_text(const GpuFigures& figures, const Gpu& gpu, const std::string& base, const std::string& path,
              double seconds) {
  report::Table works({"work", "dtype", "sizes", "rate", "spread"});
  for (const cost::MeasuredWork& one : figures.works)
    works.add({one.work.substr(0, one.work.find('@')), std::string(name_of(one.dtype)),
               fmt::format("{}", fmt::join(one.sizes, " × ")),
               cost::counts_flops(one.work) ? fmt::format("{:.1f} TFLOP/s", one.rate.value * 1e-12)
                                            : fmt::format("{:.0f} GB/s", one.rate.value * 1e-9),
               fmt::format("±{:.1f}%", 100 * one.rate.spread)});
  put("{}, over the figures of {}\nlink to the host: {:.1f} GB/s\n\n{}\nmeasured in {:.0f} s and written to {}\n",
      gpu.name, base, figures.host_link.value * 1e-9, works.str(), seconds, path);
}

}  // namespace

std::vector<Signature> kernels_of_jobs(const std::vector<std::string>& jobs, const std::vector<std::string>& only,
                                       Device device) {
  std::vector<Signature> kernels;
  for (const std::string& path : jobs) {
    JobArguments arguments;
    arguments.path = path;
    const LoadedJob loaded = arguments.load_silently();
    if (loaded.job.cluster.device != device) {
      const bool gpu = device == Device::cuda;
      throw JobError({loaded.at("cluster.device",
                                gpu ? "the job is for a processor, and a GPU is to be measured"
                                    : "the job is for GPUs, and a processor is to be measured",
                                gpu ? "cuda, or --device cpu" : "cpu, or --device cuda")});
    }
    const CompiledJob compiled = plan_here(loaded, Purpose::train);
    for (const Role& role : compiled.plan.roles) {
      std::set<std::int32_t> launched;
      for (const Issued& issued : role.program(ProgramKind::step)->instructions)
        if (const auto* const launch = std::get_if<Launch>(&issued.instruction);
            launch && issued.stream != Stream::host)
          launched.insert(launch->signature);
      for (const std::int32_t index : launched) {
        const Signature& signature = role.signatures[static_cast<std::size_t>(index)];
        if (begins_as_one_of(cost::work_of(signature).name, only) &&
            std::ranges::find(kernels, signature) == kernels.end())
          kernels.push_back(signature);
      }
    }
  }
  return kernels;
}

int calibrate_gpu(const GpuCalibration& calibration) {
  using Clock = std::chrono::steady_clock;
  if (calibration.jobs.empty())
    throw UsageError("--device cuda measures the kernels of jobs: say which by --job, once for each");
  if (calibration.out.empty())
    throw UsageError("--device cuda: say by --out which file to write, for cluster.hardware of the jobs");
  const std::unique_ptr<GpuBench> bench = gpu_bench(0);
  const std::optional<Gpu> gpu = describe_gpu(0);
  CHECK(gpu.has_value(), "a GPU that can be measured can be described");
  const std::string base = cost::machine_of_gpu(gpu->name, hardware_dir());
  if (base.empty())
    throw UsageError("no hardware file is for \"" + gpu->name +
                     "\": its figures go over those of one, in configs/hardware");
  const cost::MachineModel machine = cost::load_machine(base, hardware_dir());
  const std::vector<Signature> kernels = kernels_of_jobs(calibration.jobs, calibration.only, Device::cuda);
  const Clock::time_point start = Clock::now();
  GpuFigures figures;
  {
    ProgressLine line(kernels.size());
    figures = measure_gpu(*bench, kernels, machine.device.cache_bytes, [&](const cost::Work& work) {
      line.next(fmt::format("{} {}", name_of(work.dtype), work.name));
    });
  }
  const std::string description =
      fmt::format("{}, {} kernels of {} measured on {:%Y-%m-%d}", gpu->name, figures.works.size(),
                  fmt::join(calibration.jobs, ", "), fmt::gmtime(std::time(nullptr)));
  write_hardware_file(calibration.out, gpu_hardware_text(figures, machine.name, description));
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (calibration.json)
    put_document(json_of(figures, *gpu, machine.name, calibration.out, seconds));
  else
    put_text(figures, *gpu, machine.name, calibration.out, seconds);
  for (const std::string& one : figures.left_out) say("trainer: warning: not measured: {}\n", one);
  return kDone;
}

}  // namespace trainer::tools
