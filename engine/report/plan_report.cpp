// Facts of a plan.
#include "engine/report/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/job/data_strategies.h"
#include "engine/plan/simulate.h"
#include "engine/report/strategy_json.h"
#include "engine/report/table.h"
#include "engine/report/units.h"

namespace trainer::report {
namespace {

struct Title {
  const Role& role;
  std::int32_t micro_batch = -1;

  std::string operator()(const Launch& launch) const {
    const Signature& signature = role.signatures[static_cast<std::size_t>(launch.signature)];
    const std::string of = micro_batch >= 0 ? fmt::format(" mb{}", micro_batch) : "";
    return fmt::format("{} {}{}", name_of(signature.op), role.name(launch.name), of);
  }
  std::string operator()(const Collective& collective) const {
    return fmt::format("{} {}", name_of(collective.kind), role.name(collective.name));
  }
  std::string operator()(const Exchange& exchange) const { return "exchange " + role.name(exchange.name); }
  std::string operator()(const CopyIn& copy) const {
    return "copy_in " + role.fields[static_cast<std::size_t>(copy.field)].name;
  }
  std::string operator()(const CopyOut& copy) const {
    return "copy_out " + role.fields[static_cast<std::size_t>(copy.field)].name;
  }
  std::string operator()(const Move& move) const {
    const bool comes = role.space_of(move.to.region) == Space::device;
    return fmt::format("{} {}", comes ? "fetch" : "store", role.name(move.name));
  }
};

Json categories_json(const MemoryReport& report) {
  Json categories = Json::object();
  for (int i = 0; i < kNumCategories; ++i)
    categories[std::string(name_of(static_cast<Category>(i)))] = report.by_category[static_cast<std::size_t>(i)];
  return categories;
}

}  // namespace

Json strategy_json(const CompiledJob& compiled) { return explicit_strategy(compiled.strategy, compiled.plan.mesh); }

Json mesh_json(const Mesh& mesh) {
  Json json = Json::object();
  for (Axis axis : kAxes) json[std::string(name_of(axis))] = mesh.size(axis);
  return json;
}

StageTraffic traffic_by_stage(const Plan& plan, ProgramKind program, int part) {
  StageTraffic traffic;
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
    traffic.stages.push_back(traffic_of(plan, stage, program, part));
    if (bytes_of(traffic.stages[stage]) > bytes_of(traffic.stages[traffic.most])) traffic.most = stage;
  }
  return traffic;
}

std::vector<AverageTraffic> traffic_of_averages(const Plan& plan) {
  std::vector<AverageTraffic> result;
  for (ProgramKind program : {ProgramKind::average, ProgramKind::step_averaging})
    for (int part = 0; plan.roles.front().program(program, part) != nullptr; ++part)
      result.push_back({program, part, traffic_by_stage(plan, program, part)});
  return result;
}

std::size_t fullest_stage(const CompiledJob& compiled) {
  const auto fuller = [](const MemoryReport& a, const MemoryReport& b) { return a.peak_bytes < b.peak_bytes; };
  return static_cast<std::size_t>(std::max_element(compiled.memory.begin(), compiled.memory.end(), fuller) -
                                  compiled.memory.begin());
}

const MemoryReport& fullest(const CompiledJob& compiled) { return compiled.memory[fullest_stage(compiled)]; }

Json spaces_json(const CompiledJob& compiled) {
  const auto number = [](std::optional<std::int64_t> limit) { return limit ? Json(*limit) : Json(nullptr); };
  const std::pair<Space, std::optional<std::int64_t>> limits[] = {
      {Space::device, compiled.limit_bytes}, {Space::host, compiled.host_limit_bytes}, {Space::disk, std::nullopt}};
  Json spaces = Json::object();
  for (const auto& [space, limit] : limits)
    spaces[std::string(name_of(space))] = {{"peak_bytes", most_bytes(compiled.plan, space)},
                                           {"limit_bytes", number(limit)}};
  return spaces;
}

Json memory_json(const CompiledJob& compiled) {
  const MemoryReport& report = fullest(compiled);
  Json stages = Json::array();
  for (std::size_t stage = 0; stage < compiled.memory.size(); ++stage) {
    const MemoryReport& one = compiled.memory[stage];
    stages.push_back({{"stage", stage},
                      {"peak_bytes", one.peak_bytes},
                      {"by_category", categories_json(one)},
                      {"peak_at", one.peak_at}});
  }
  return {{"limit_bytes", compiled.limit_bytes},
          {"peak_bytes", report.peak_bytes},
          {"fits", compiled.fits},
          {"spaces", spaces_json(compiled)},
          {"by_category", categories_json(report)},
          {"peak_at", report.peak_at},
          {"fullest_stage", fullest_stage(compiled)},
          {"stages", stages}};
}

Json communication_json(const std::vector<Traffic>& traffic) {
  Json list = Json::array();
  for (const Traffic& one : traffic)
    list.push_back({{"axis", one.axis}, {"collective", one.collective}, {"count", one.count}, {"bytes", one.bytes}});
  return list;
}

Json units_json(const Plan& plan) {
  Json list = Json::array();
  for (const UnitFacts& facts : units_of(plan)) {
    Json parameters = Json::array(), collectives = Json::array();
    for (const UnitTensor& tensor : facts.unit->tensors) parameters.push_back(tensor.name);
    for (const UnitCollective& one : facts.collectives)
      collectives.push_back(
          {{"axis", one.axis}, {"collective", one.collective}, {"count", one.count}, {"bytes", one.bytes}});
    list.push_back(
        {{"name", facts.unit->name},
         {"label", facts.label},
         {"stage", facts.stage},
         {"parameters", parameters},
         {"elements", facts.unit->elements},
         {"compute", name_of(facts.unit->compute)},
         {"divided_by",
          {{"states", facts.states_over}, {"gradients", facts.gradients_over}, {"parameters", facts.weights_over}}},
         {"gathers", facts.gathers},
         {"gathered_share", facts.gathered_share},
         {"reductions", facts.reductions},
         {"shared_by_stages", facts.unit->stages},
         {"collectives", collectives}});
  }
  return list;
}

Json pipeline_json(const CompiledJob& compiled) {
  if (compiled.plan.roles.size() == 1) return nullptr;
  const Simulation simulation = simulate(compiled.schedule);
  Json chunks = Json::array(), live = Json::array();
  for (const PipelineChunk& chunk : compiled.chunks) chunks.push_back({{"stage", chunk.stage}, {"parts", chunk.parts}});
  const int together = compiled.strategy.tensor.overlap ? 2 : 1;  // micro-batches of an action
  for (const StageTimes& stage : simulation.stages) live.push_back(stage.peak_activations * together);
  return {{"schedule", schedule_name(compiled.strategy.pipeline)},
          {"slots", simulation.makespan},
          {"bubble", simulation.bubble()},
          {"live_activations", live},
          {"chunks", chunks}};
}

std::string title_of(const Role& role, const Instruction& instruction) { return std::visit(Title{role}, instruction); }

std::string title_of(const Role& role, const Issued& issued) {
  return std::visit(Title{role, pass_micro_batch(issued)}, issued.instruction);
}

std::vector<BufferId> alive_at(const Role& role, const Program& program, std::int32_t instruction) {
  const std::vector<Lifetime> lives = lifetimes(role, program);
  std::vector<BufferId> alive;
  for (std::size_t id = 0; id < role.buffers.size(); ++id)
    if (role.buffers[id].program >= 0 && lives[id].first >= 0 && lives[id].first <= instruction &&
        instruction <= lives[id].last)
      alive.push_back(static_cast<BufferId>(id));
  std::stable_sort(alive.begin(), alive.end(),
                   [&](BufferId a, BufferId b) { return role.buffer(a).bytes > role.buffer(b).bytes; });
  return alive;
}

std::string memory_line(const CompiledJob& compiled) {
  const MemoryReport& report = fullest(compiled);
  std::vector<std::pair<std::int64_t, std::string_view>> parts;
  for (int i = 0; i < kNumCategories; ++i)
    parts.emplace_back(report.by_category[static_cast<std::size_t>(i)], name_of(static_cast<Category>(i)));
  std::sort(parts.rbegin(), parts.rend());
  std::string text;
  for (const auto& [bytes, name] : parts)
    if (bytes > 0)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, bytes_text(static_cast<double>(bytes)));
  return text;
}

namespace {

// Of each of CompiledJob::optimizers, without padding; what several stages share counts once.
std::vector<std::int64_t> updated_parameters(const CompiledJob& compiled) {
  std::vector<std::int64_t> counts(compiled.optimizers.size(), 0);
  for (std::size_t stage = 0; stage < compiled.plan.roles.size(); ++stage)
    for (const Unit& unit : compiled.plan.roles[stage].units) {
      if (!unit.trained() || (!unit.stages.empty() && unit.stages.front() != static_cast<std::int32_t>(stage)))
        continue;
      for (const UnitTensor& tensor : unit.tensors)
        counts[static_cast<std::size_t>(unit.optimizer)] += tensor.spec.whole.elements();
    }
  return counts;
}

}  // namespace

std::string optimizers_line(const CompiledJob& compiled) {
  const std::vector<std::int64_t> counts = updated_parameters(compiled);
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < counts.size(); ++i)
    parts.push_back(fmt::format("{} (lr {:g}) of {}{}", name_of(compiled.optimizers[i].name), compiled.optimizers[i].lr,
                                grouped(counts[i]), i == 0 ? " parameters" : ""));
  return fmt::to_string(fmt::join(parts, ", "));
}

Json optimizers_json(const CompiledJob& compiled) {
  const std::vector<std::int64_t> counts = updated_parameters(compiled);
  Json list = Json::array();
  for (std::size_t i = 0; i < counts.size(); ++i)
    list.push_back(
        {{"name", name_of(compiled.optimizers[i].name)}, {"lr", compiled.optimizers[i].lr}, {"parameters", counts[i]}});
  return list;
}

std::vector<StateCost> states_of(const CompiledJob& compiled) {
  std::vector<StateCost> costs;
  for (const Unit& unit : compiled.plan.roles[fullest_stage(compiled)].units)
    for (const Slot& slot : unit.slots) {
      if (slot.kind != Slot::Kind::state) continue;
      const std::string format(slot.spec.format.block == 0 ? name_of(slot.spec.dtype()) : "int8");
      auto at = std::find_if(costs.begin(), costs.end(),
                             [&](const StateCost& one) { return one.name == slot.name && one.format == format; });
      if (at == costs.end()) at = costs.insert(at, {slot.name, format, 0, 0});
      at->bytes += slot.region.bytes;
      at->bytes_in_f32 += unit.slice() * size_of(DType::f32);
    }
  return costs;
}

Json states_json(const CompiledJob& compiled) {
  Json list = Json::array();
  for (const StateCost& one : states_of(compiled))
    list.push_back({{"name", one.name}, {"format", one.format}, {"bytes", one.bytes}});
  return list;
}

std::string states_line(const std::vector<StateCost>& states) {
  std::string text, format;
  std::int64_t bytes = 0, in_f32 = 0;
  for (std::size_t i = 0; i < states.size(); ++i) {
    const bool last = i + 1 == states.size() || states[i + 1].format != states[i].format;
    text += states[i].name + (last ? " in " + states[i].format + "; " : ", ");
    bytes += states[i].bytes, in_f32 += states[i].bytes_in_f32;
  }
  text += bytes_text(static_cast<double>(bytes)) + " a rank";
  return bytes == in_f32 ? text : text + ", in f32 they would be " + bytes_text(static_cast<double>(in_f32));
}

std::string strategy_line(const CompiledJob& compiled) {
  const StrategyJob& strategy = compiled.strategy;
  const Mesh& mesh = compiled.plan.mesh;
  const std::string data = record_of(strategy.data).text();
  if (mesh.world_size() == 1) return data;
  std::vector<std::string> parts;
  if (mesh.group_size(kBatchAxes) > 1)
    parts.push_back(fmt::format("{} over {} ranks", data, mesh.group_size(kBatchAxes)));
  if (mesh.size(Axis::tensor) > 1)
    parts.push_back(fmt::format("tensor {}{}{}", mesh.size(Axis::tensor),
                                !strategy.tensor.sequence_parallel          ? ""
                                : strategy.tensor.keep == TensorKeep::shard ? " (sequence parallel, keeps shards)"
                                                                            : " (sequence parallel)",
                                strategy.tensor.overlap ? " (overlapped, in pairs of micro-batches)" : ""));
  if (mesh.size(Axis::expert) > 1) parts.push_back(fmt::format("expert {}", mesh.size(Axis::expert)));
  if (mesh.size(Axis::context) > 1)
    parts.push_back(fmt::format("context {}{}", mesh.size(Axis::context),
                                strategy.context.kind == ContextKind::ring ? " (ring)" : ""));
  if (mesh.size(Axis::pipeline) > 1)
    parts.push_back(fmt::format("pipeline {} ({})", mesh.size(Axis::pipeline), schedule_name(strategy.pipeline)));
  return fmt::format("{}", fmt::join(parts, " × "));
}

std::string batch_line(const BatchShape& batch) {
  return fmt::format("{} samples a step: {} rank{} × {} micro-batch{} × {}", batch.global, batch.data_ranks,
                     batch.data_ranks == 1 ? "" : "s", batch.micro_batches, batch.micro_batches == 1 ? "" : "es",
                     batch.micro);
}

}  // namespace trainer::report
