// Predicted against published: every run of published_runs.yaml is planned on the machine that it ran on and its step is played. Nothing of
// the model is fitted to these runs; the bounds below say how far off it is, so that a change which makes it worse is seen.
// TRAINER_PUBLISHED=all plans the long pipelines too; TRAINER_PUBLISHED=<part of an id> those runs alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>

#include "engine/compile/compile.h"
#include "engine/core/error.h"
#include "engine/cost/predict.h"
#include "tests/cost/published_runs.h"

namespace trainer {
namespace {

// Row-major, no scratch memory: what a GPU's products and fused attention come to within some tens of MiB.
class PlainTarget final : public Target {
 public:
  Layout preferred_layout(const Signature&, int) const override { return Layout::row_major; }
  std::int64_t bytes(const TensorDesc& tensor) const override { return tensor.bytes(); }
  std::int64_t workspace_bytes(const Signature&) const override { return 0; }
};

struct Result {
  PublishedRun run;
  double step_ms = 0, seconds = 0;
  double compute_ms = 0, exposed_ms = 0, bubble_ms = 0, optimizer_ms = 0;
  double peak_gib = 0;
  bool fits = true;
  double error() const { return step_ms / run.step_ms - 1; }
};

std::string source_dir() { return TRAINER_SOURCE_DIR; }

Result plan_run(const PublishedRun& run) {
  const auto started = std::chrono::steady_clock::now();
  const std::string configs = source_dir() + "/configs";
  const cost::MachineModel machine = machine_of(run, configs + "/hardware");
  const std::string cluster = "cluster: {device: cpu, nodes: " + std::to_string(run.nodes) + ", devices_per_node: " + std::to_string(run.devices_per_node) + "}\n";
  const LoadedJob loaded = parse_job(run.job + cluster, source_dir() + "/tests/cost/" + run.id + ".yaml", {}, {configs});
  const PlainTarget target;
  const CompiledJob compiled = compile(loaded, {&target, machine.usable_bytes() * run.devices_per_node, 1}, Purpose::train);
  const cost::CostModel model({&machine, compiled.plan.mesh, run.devices_per_node, 1});
  const cost::Prediction prediction = cost::predict(compiled.plan, model);
  const cost::RoleTimes& times = prediction.roles[prediction.slowest];
  Result result{run, prediction.step_us / 1e3};
  if (std::getenv("TRAINER_PUBLISHED_KERNELS") != nullptr) {
    for (const cost::KernelTime& kernel : prediction.kernels)
      if (kernel.us > 0.005 * prediction.step_us)
        std::printf("    %-28s %7lld × %9.3f ms %5.1f%% %s\n", std::string(name_of(kernel.op)).c_str(), static_cast<long long>(kernel.count), kernel.us / 1e3,
                    kernel.us / prediction.step_us * 100, std::string(name_of(kernel.bound)).c_str());
    for (const cost::CommunicationTime& communication : prediction.communication)
      std::printf("    %-10s %-17s %7lld × %9.3f ms exposed %9.3f ms\n", communication.axis.c_str(), communication.collective.c_str(),
                  static_cast<long long>(communication.count), communication.total_us / 1e3, communication.exposed_us / 1e3);
  }
  result.compute_ms = times.compute_us / 1e3;
  result.exposed_ms = times.exposed_us / 1e3;
  result.bubble_ms = times.bubble_us / 1e3;
  result.optimizer_ms = times.optimizer_us / 1e3;
  for (const MemoryReport& role : compiled.memory) result.peak_gib = std::max(result.peak_gib, static_cast<double>(role.peak_bytes) / (1 << 30));
  result.fits = compiled.fits;
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return result;
}

void print(const Result& result) {
  const PublishedRun& run = result.run;
  const double total = result.step_ms / 100;
  std::printf("| %-40s | %-9s | %5d | %9.1f | %9.1f | %+6.1f%% | %3.0f %3.0f %3.0f %3.0f | %5.1f%s | %s | %s | %.1fs\n", run.id.c_str(), run.hardware.c_str(),
              run.devices(), run.step_ms, result.step_ms, result.error() * 100, result.compute_ms / total, result.exposed_ms / total, result.bubble_ms / total,
              result.optimizer_ms / total, result.peak_gib, result.fits ? "" : "!", run.memory_gib ? std::to_string(*run.memory_gib).substr(0, 5).c_str() : "",
              run.materialised ? "materialised" : "", result.seconds);
  std::fflush(stdout);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

void summarise(const char* name, const std::vector<double>& errors) {
  std::vector<double> sizes;
  for (double error : errors) sizes.push_back(std::abs(error));
  if (sizes.empty()) return;
  std::printf("%-44s %3zu runs, median error %5.1f%%, worst %5.1f%%, median of the signed %+5.1f%%\n", name, sizes.size(), median(sizes) * 100,
              *std::max_element(sizes.begin(), sizes.end()) * 100, median(errors) * 100);
}

}  // namespace

TEST_CASE("steps of published runs take as long as predicted") {
  const char* wanted = std::getenv("TRAINER_PUBLISHED");
  const std::string part = wanted == nullptr ? "" : wanted;
  std::map<std::string, std::vector<Result>> studies;
  std::map<std::string, std::vector<double>> groups;
  std::vector<double> memory;
  for (const PublishedRun& run : read_published_runs(source_dir() + "/tests/cost/published_runs.yaml")) {
    if (part.empty() && run.is_long) continue;
    if (!part.empty() && part != "all" && run.id.find(part) == std::string::npos) continue;
    std::optional<Result> result;
    try {
      result = plan_run(run);
    } catch (const JobError& error) {
      std::printf("| %s: %s\n", run.id.c_str(), error.diagnostics().front().message.c_str());
      continue;
    }
    print(*result);
    groups["all"].push_back(result->error());
    groups[run.software].push_back(result->error());
    groups["on " + run.hardware].push_back(result->error());
    groups[run.materialised ? "attention materialised" : "flash attention"].push_back(result->error());
    if (run.memory_gib) memory.push_back(result->peak_gib / *run.memory_gib - 1);
    if (!run.study.empty()) studies[run.study].push_back(*result);
  }
  for (const auto& [name, errors] : groups) summarise(name.c_str(), errors);
  summarise("memory", memory);
  std::vector<double> regrets;
  for (const auto& [name, results] : studies) {
    if (results.size() < 2) continue;
    const auto faster = [](const Result& a, const Result& b) { return a.step_ms < b.step_ms; };
    const auto truly_faster = [](const Result& a, const Result& b) { return a.run.step_ms < b.run.step_ms; };
    const Result& chosen = *std::min_element(results.begin(), results.end(), faster);
    const Result& best = *std::min_element(results.begin(), results.end(), truly_faster);
    regrets.push_back(chosen.run.step_ms / best.run.step_ms - 1);
    std::printf("%-28s %zu alternatives: chosen %-36s fastest %-36s regret %.1f%%\n", name.c_str(), results.size(), chosen.run.id.c_str(), best.run.id.c_str(), regrets.back() * 100);
  }
  summarise("regret", regrets);
}

}  // namespace trainer
