// From a job's cluster to a machine, and what a prediction looks like.
#include "engine/report/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/compile/hardware.h"
#include "engine/report/table.h"
#include "engine/train/ranks.h"

namespace trainer::report {
namespace {

using cost::RoleTimes;

double ms(double us) { return us * 1e-3; }

// Sizes of a step go from a hundred microseconds to minutes: three digits of each.
std::string ms_text(double us) {
  const double value = ms(us);
  if (value >= 1e4) return fmt::format("{:.1f} s", value * 1e-3);
  return fmt::format("{:.{}f} ms", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

std::string share_text(double part, double whole) { return fmt::format("{:.1f}%", whole > 0 ? 100 * part / whole : 0); }

Json parts_json(const RoleTimes& times) {
  return {{"compute_ms", ms(times.compute_us)}, {"exposed_communication_ms", ms(times.exposed_us)},
          {"bubble_ms", ms(times.bubble_us)},   {"optimizer_ms", ms(times.optimizer_us)},
          {"input_ms", ms(times.input_us)},     {"offload_ms", ms(times.offload_us)}};
}

const std::vector<std::pair<const char*, double RoleTimes::*>> kParts{
    {"computing", &RoleTimes::compute_us}, {"communication that nothing hides", &RoleTimes::exposed_us},
    {"bubble", &RoleTimes::bubble_us},     {"optimizer", &RoleTimes::optimizer_us},
    {"input", &RoleTimes::input_us},       {"offload", &RoleTimes::offload_us}};

void add_communication(std::string& out, const PredictedStep& step) {
  if (step.times.communication.empty()) return;
  Table table({"communication", "axis", "count", "ms", "exposed ms", "of the step"});
  for (const cost::CommunicationTime& one : step.times.communication)
    table.add({one.collective, one.axis, grouped(one.count), fmt::format("{:.3f}", ms(one.total_us)),
               fmt::format("{:.3f}", ms(one.exposed_us)), share_text(one.exposed_us, step.times.step_us)});
  out += table.str();
}

void add_kernels(std::string& out, const PredictedStep& step) {
  constexpr std::size_t kShown = 8;
  Table table({"kernels", "count", "ms", "of the step", "bound by"});
  for (std::size_t i = 0; i < std::min(kShown, step.times.kernels.size()); ++i) {
    const cost::KernelTime& one = step.times.kernels[i];
    table.add({std::string(name_of(one.op)), grouped(one.count), fmt::format("{:.3f}", ms(one.us)),
               share_text(one.us, step.times.step_us), std::string(name_of(one.bound))});
  }
  out += table.str();
}

void add_stages(std::string& out, const PredictedStep& step) {
  constexpr std::size_t kShown = 16;
  if (step.times.roles.size() == 1) return;
  Table table({"stage", "computing", "exposed", "bubble", "optimizer", "input"});
  for (std::size_t stage = 0; stage < std::min(kShown, step.times.roles.size()); ++stage) {
    const RoleTimes& times = step.times.roles[stage];
    const auto share = [&](double us) { return share_text(us, step.times.step_us); };
    table.add({std::to_string(stage), share(times.compute_us), share(times.exposed_us), share(times.bubble_us),
               share(times.optimizer_us), share(times.input_us)});
  }
  if (step.times.roles.size() > kShown) table.add({fmt::format("… and {} more", step.times.roles.size() - kShown)});
  out += table.str();
}

// Beside a step: either programs of their own, or what one that averages while it trains takes longer.
void add_averages(const Plan& plan, const cost::CostModel& model, const DataStrategyJob& data, PredictedStep& step) {
  const Role& role = plan.roles.front();
  std::vector<double> parts;
  if (role.program(ProgramKind::step_averaging) != nullptr)
    parts = {std::max(0.0, cost::predict(plan, model, ProgramKind::step_averaging).step_us - step.times.step_us)};
  else
    for (int part = 0; role.program(ProgramKind::average, part) != nullptr; ++part)
      parts.push_back(cost::predict(plan, model, ProgramKind::average, part).step_us);
  if (parts.empty()) return;
  step.average_us = std::accumulate(parts.begin(), parts.end(), 0.0);
  step.largest_average_us = *std::ranges::max_element(parts);
  if (step.average_us > 0) step.every = data.every, step.parts = std::ssize(parts);
}

// Ranks on a CPU share it.
int devices_of(const Job& job, const CompiledJob& compiled, const cost::MachineModel& machine) {
  return machine.device.kind == cost::DeviceKind::cpu ? static_cast<int>(job.cluster.nodes)
                                                      : compiled.plan.mesh.world_size();
}

}  // namespace

double peak_flops(const Job& job, const CompiledJob& compiled, const cost::MachineModel& machine) {
  const auto peak = machine.device.peak.find(job.precision.compute);
  return peak == machine.device.peak.end() ? 0 : peak->second.value * devices_of(job, compiled, machine);
}

PredictedStep predict_step(const LoadedJob& loaded, const CompiledJob& compiled, Hardware hardware, std::string name,
                           const cost::Prediction* known) {
  const Job& job = loaded.job;
  PredictedStep step;
  step.machine = std::make_shared<const cost::MachineModel>(*hardware.machine);
  hardware.machine = step.machine.get();
  step.hardware = std::move(name);
  step.cluster = cluster_of(compiled, hardware);
  const cost::CostModel model(step.cluster);
  step.times = known != nullptr ? *known : cost::predict(compiled.plan, model);
  add_averages(compiled.plan, model, compiled.strategy.data, step);
  step.samples = !job.data.is_text();
  step.tokens = static_cast<double>(compiled.batch.global) * static_cast<double>(step.samples ? 1 : job.data.tokens());
  step.steps = job.train.steps;
  step.price = job.cluster.price_per_device_hour.value_or(step.machine->price_per_device_hour);
  step.model_flops = compiled.model_flops_per_step;
  step.peak_flops = peak_flops(job, compiled, *step.machine);
  step.devices = devices_of(job, compiled, *step.machine);
  return step;
}

std::string text_of(const WithoutBf16& costs) {
  const auto memory = [](std::int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  return fmt::format(
      "bf16: this processor ({}) has no bf16 instructions, so products widen to f32 and run at the speed of f32; "
      "memory of a rank {}, in f32 {}; a step {}, in f32 {} (predicted, ±{:.0f}%)",
      costs.isa, memory(costs.bf16_bytes), memory(costs.f32_bytes), ms_text(costs.bf16_us), ms_text(costs.f32_us),
      100 * costs.spread);
}

std::string cluster_text(const PredictedStep& step) {
  const int ranks = step.cluster.mesh.world_size(),
            nodes = (ranks + step.cluster.ranks_per_node - 1) / step.cluster.ranks_per_node;
  const std::string many = nodes > 1 ? fmt::format(" on {} nodes", nodes) : "";
  if (step.machine->device.kind == cost::DeviceKind::cuda)
    return fmt::format("{} × {}{}", ranks, step.machine->name, many);
  return ranks == 1 ? step.machine->name : fmt::format("{} ranks of {}{}", ranks, step.machine->name, many);
}

Json predicted_json(const PredictedStep& step) {
  Json json{{"step_ms", ms(step.times.step_us)}};
  json.update(parts_json(step.busiest()));
  json["low_ms"] = ms(step.times.low_us);
  json["high_ms"] = ms(step.times.high_us);
  json["tokens_per_s"] = step.per_second();
  json["run_hours"] = step.run_hours();
  json["price_per_device_hour"] = step.price > 0 ? Json(step.price) : Json(nullptr);
  json["cost_per_step"] = step.price > 0 ? Json(step.step_cost()) : Json(nullptr);
  json["run_cost"] = step.price > 0 ? Json(step.run_cost()) : Json(nullptr);
  json["mfu"] = step.peak_flops > 0 ? Json(step.mfu()) : Json(nullptr);
  if (step.average_us > 0) {
    json["average_ms"] = ms(step.average_us);
    json["average_every"] = step.every;
    json["average_parts"] = step.parts;
    json["largest_average_ms"] = ms(step.largest_average_us);
  }
  json["hardware"] = step.machine->name;
  json["hardware_from"] = step.hardware;
  json["slowest_stage"] = step.times.slowest;
  Json stages = Json::array(), communication = Json::array(), kernels = Json::array();
  for (const RoleTimes& times : step.times.roles) stages.push_back(parts_json(times));
  for (const cost::CommunicationTime& one : step.times.communication)
    communication.push_back({{"axis", one.axis},
                             {"collective", one.collective},
                             {"count", one.count},
                             {"ms", ms(one.total_us)},
                             {"exposed_ms", ms(one.exposed_us)}});
  for (const cost::KernelTime& one : step.times.kernels)
    kernels.push_back(
        {{"op", name_of(one.op)}, {"count", one.count}, {"ms", ms(one.us)}, {"bound", name_of(one.bound)}});
  json["stages"] = std::move(stages);
  json["communication"] = std::move(communication);
  json["kernels"] = std::move(kernels);
  return json;
}

namespace {

std::string hours_text(double hours) {
  if (hours < 1.0 / 60) return fmt::format("{:.1f} seconds", hours * 3600);
  if (hours < 1) return fmt::format("{:.1f} minutes", hours * 60);
  return hours < 48 ? fmt::format("{:.1f} hours", hours) : fmt::format("{:.1f} days ({:.0f} hours)", hours / 24, hours);
}

}  // namespace

std::string run_line(const PredictedStep& step) {
  const std::string cost =
      step.price > 0 ? fmt::format(", {:.2f} at {:g} a device and hour", step.run_cost(), step.price) : "";
  return fmt::format("{} steps in {}{}; evaluation and checkpoints come on top", grouped(step.steps),
                     hours_text(step.run_hours()), cost);
}

std::string predicted_text(const PredictedStep& step) {
  std::string out;
  out += fmt::format("\na step on {}: {} ({} to {}), {} {} a second", cluster_text(step), ms_text(step.times.step_us),
                     ms_text(step.times.low_us), ms_text(step.times.high_us), count_text(step.per_second()),
                     step.samples ? "samples" : "tokens");
  if (step.peak_flops > 0) out += fmt::format(", {:.1f}% of the peak by the model's FLOPs", 100 * step.mfu());
  out += fmt::format("\n");
  out += fmt::format("  the run: {}\n", run_line(step));
  out += fmt::format("  figures of {}\n", step.hardware);
  if (step.machine->device.kind == cost::DeviceKind::cuda)
    out += fmt::format(
        "  predicted, not measured: no GPU has run trainer yet, and the figures are those of tuned kernels and "
        "libraries\n");
  std::string text;
  for (const auto& [name, part] : kParts)
    if (const double us = step.busiest().*part; us > 5e-4 * step.times.step_us)
      text +=
          fmt::format("{}{} {} ({})", text.empty() ? "" : ", ", name, ms_text(us), share_text(us, step.times.step_us));
  out += fmt::format(
      "  {}{}\n", step.times.roles.size() > 1 ? fmt::format("stage {}, the busiest: ", step.times.slowest) : "", text);
  if (step.parts > 1)
    out += fmt::format("  and at most {} more in each of {} steps of {}, in which a part is brought together\n",
                       ms_text(step.largest_average_us), step.parts, step.every);
  else if (step.average_us > 0)
    out += fmt::format("  and {} more in one step of {}, in which ranks are brought together\n",
                       ms_text(step.average_us), step.every);
  add_stages(out, step);
  add_communication(out, step);
  add_kernels(out, step);
  return out;
}

}  // namespace trainer::report
