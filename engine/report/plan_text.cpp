// A plan as tables. Every number is read off the plan (plan_report.h, units.h); here is layout alone.
#include "engine/report/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/report/choice.h"
#include "engine/report/lifecycle.h"
#include "engine/report/plan_report.h"
#include "engine/report/quantized.h"
#include "engine/report/table.h"
#include "engine/report/units.h"
#include "strategies/pipeline/print_table.h"

namespace trainer::report {
namespace {

std::string mesh_line(const Mesh& mesh) {
  std::string text;
  for (Axis axis : kAxes) text += fmt::format("{}{} {}", text.empty() ? "" : " × ", name_of(axis), mesh.size(axis));
  return text;
}

// The largest of what is alive at the peak beside what is persistent.
void add_alive(std::string& out, const Role& role, const MemoryReport& report) {
  const Program* program = report.program ? role.program(*report.program) : nullptr;
  if (program == nullptr) return;
  const std::vector<BufferId> alive = alive_at(role, *program, report.instruction);
  if (alive.empty()) return;
  out += fmt::format("  then alive, the largest of {} buffers:\n", alive.size());
  Table table({"  buffer", "category", "size"});
  for (std::size_t i = 0; i < std::min<std::size_t>(alive.size(), 5); ++i) {
    const Buffer& buffer = role.buffer(alive[i]);
    const std::string micro_batch = buffer.micro_batch >= 0 ? fmt::format(" mb{}", buffer.micro_batch) : "";
    table.add(
        {"  " + role.name(buffer.name) + micro_batch, std::string(name_of(buffer.category)), bytes_text(buffer.bytes)});
  }
  out += table.str();
}

std::string peak_line(const Role& role, const MemoryReport& report) {
  const Program* program = report.program ? role.program(*report.program) : nullptr;
  if (program == nullptr) return "";
  const Issued& issued = program->instructions[static_cast<std::size_t>(report.instruction)];
  return fmt::format("  the peak is at instruction {} of {}: {}\n", report.instruction, name_of(program->kind),
                     title_of(role, issued));
}

// More stages than these are rows of their own.
constexpr std::size_t kMostColumns = 8;

// Sizes by stage: a column each, or a row each where there are many.
class StageTable {
 public:
  StageTable(std::string what, std::size_t num_stages) : head_{std::move(what)} {
    for (std::size_t stage = 0; stage < num_stages; ++stage) head_.push_back(fmt::format("stage {}", stage));
  }
  void add(const std::string& name, const std::vector<std::int64_t>& numbers) {
    std::vector<std::string>& row = rows_.emplace_back(std::vector<std::string>{name});
    for (const std::int64_t bytes : numbers) row.push_back(bytes_text(bytes));
  }
  std::string str() const {
    const bool turned = head_.size() > kMostColumns + 1;
    std::vector<std::vector<std::string>> all{head_};
    all.insert(all.end(), rows_.begin(), rows_.end());
    const auto cell = [&](std::size_t row, std::size_t column) { return turned ? all[column][row] : all[row][column]; };
    const std::size_t num_rows = turned ? head_.size() : all.size(), num_columns = turned ? all.size() : head_.size();
    std::optional<Table> table;
    for (std::size_t row = 0; row < num_rows; ++row) {
      std::vector<std::string> cells;
      for (std::size_t column = 0; column < num_columns; ++column) cells.push_back(cell(row, column));
      if (table)
        table->add(std::move(cells));
      else
        table.emplace(std::move(cells));
    }
    return table->str();
  }

 private:
  std::vector<std::string> head_;
  std::vector<std::vector<std::string>> rows_;
};

std::string one_memory_table(const MemoryReport& report) {
  Table table({"at the peak", "size", "share"});
  for (int i = 0; i < kNumCategories; ++i) {
    const std::int64_t bytes = report.by_category[static_cast<std::size_t>(i)];
    table.add({std::string(name_of(static_cast<Category>(i))), bytes_text(bytes),
               fmt::format("{:.1f}%", 100.0 * static_cast<double>(bytes) / static_cast<double>(report.peak_bytes))});
  }
  return table.str();
}

std::string stages_memory_table(const std::vector<MemoryReport>& reports) {
  StageTable table("at the peak", reports.size());
  std::vector<std::int64_t> numbers(reports.size());
  for (int i = 0; i < kNumCategories; ++i) {
    for (std::size_t stage = 0; stage < reports.size(); ++stage)
      numbers[stage] = reports[stage].by_category[static_cast<std::size_t>(i)];
    table.add(std::string(name_of(static_cast<Category>(i))), numbers);
  }
  for (std::size_t stage = 0; stage < reports.size(); ++stage) numbers[stage] = reports[stage].peak_bytes;
  table.add("all", numbers);
  return table.str();
}

void add_memory(std::string& out, const CompiledJob& compiled) {
  const MemoryReport& report = fullest(compiled);
  const bool several = compiled.memory.size() > 1;
  const std::size_t stage = fullest_stage(compiled);
  out += fmt::format("\nmemory of a rank{}: {} of {}{}\n",
                     several ? fmt::format(" of stage {}, the fullest", stage) : "", bytes_text(report.peak_bytes),
                     bytes_text(compiled.limit_bytes), compiled.fits ? "" : ": DOES NOT FIT");
  out += fmt::format("{}{}", several ? stages_memory_table(compiled.memory) : one_memory_table(report),
                     peak_line(compiled.plan.roles[stage], report));
  add_alive(out, compiled.plan.roles[stage], report);
  for (const Space space : {Space::host, Space::disk})
    if (const std::int64_t bytes = most_bytes(compiled.plan, space); bytes > 0)
      out += fmt::format(
          "  kept on the {} of the fullest rank: {}{}\n", name_of(space), bytes_text(bytes),
          space == Space::host && compiled.host_limit_bytes ? " of " + bytes_text(*compiled.host_limit_bytes) : "");
}

void add_lifecycle(std::string& out, const LoadedJob& loaded, const CompiledJob& compiled) {
  out += fmt::format("\nmemory over a run, of the fullest rank\n");
  Table table({"at", "in its allocation", "beside it", "what that is"});
  for (const LifecyclePoint& one : lifecycle_of(loaded, compiled))
    table.add({one.point, bytes_text(one.inside), bytes_text(one.bytes), one.what});
  out += table.str();
  out += fmt::format("checkpoints: {}\n", checkpoint_line(loaded, compiled));
}

void add_one_traffic(std::string& out, const std::vector<Traffic>& traffic) {
  Table table({"collective", "axis", "count", "sent"});
  for (const Traffic& one : traffic) table.add({one.collective, one.axis, grouped(one.count), bytes_text(one.bytes)});
  out += table.str();
}

void add_stages_traffic(std::string& out, const StageTraffic& traffic) {
  std::map<std::string, std::vector<std::int64_t>> rows;
  std::vector<std::int64_t> all(traffic.stages.size());
  for (std::size_t stage = 0; stage < traffic.stages.size(); ++stage) {
    for (const Traffic& one : traffic.stages[stage]) {
      std::vector<std::int64_t>& row = rows[one.collective + " " + one.axis];
      row.resize(traffic.stages.size());
      row[stage] = one.bytes;
    }
    all[stage] = bytes_of(traffic.stages[stage]);
  }
  StageTable table("sent", traffic.stages.size());
  for (const auto& [name, numbers] : rows) table.add(name, numbers);
  table.add("all", all);
  out += table.str();
}

void add_traffic(std::string& out, const StageTraffic& traffic) {
  if (traffic.stages.size() == 1)
    add_one_traffic(out, traffic.stages.front());
  else
    add_stages_traffic(out, traffic);
}

void add_communication(std::string& out, const CompiledJob& compiled) {
  const StageTraffic step = traffic_by_stage(compiled.plan);
  const bool none = step.stages[step.most].empty();
  out += fmt::format("\n{}\n",
                     none ? "communication of a step: none" : "communication of a rank and step, as rings send it");
  if (!none) add_traffic(out, step);
  const DataStrategyJob& data = compiled.strategy.data;
  for (const auto& [program, part, traffic] : traffic_of_averages(compiled.plan)) {
    if (traffic.stages[traffic.most].empty()) continue;
    const std::string when = data.parts > 1 ? fmt::format(" of part {} of {}, after step {} of", part + 1, data.parts,
                                                          data.step_of_part(part))
                                            : ",";
    out += fmt::format("\ncommunication of {}{} every {} steps\n", name_of(program), when, data.every);
    add_traffic(out, traffic);
  }
}

std::string part_of(int over) { return over == 1 ? "whole" : fmt::format("1/{}", over); }

std::string weights_text(const UnitFacts& facts) {
  if (facts.weights_over == 1) return "whole";
  return fmt::format("1/{}, gathered {}×, there {:.0f}%", facts.weights_over, facts.gathers,
                     100 * facts.gathered_share);
}

std::string gradients_text(const UnitFacts& facts, const BatchShape& batch) {
  std::string text = part_of(facts.gradients_over);
  if (facts.reductions == 0) return text;
  if (batch.micro_batches > 1 && facts.reductions == batch.micro_batches) return text + ", reduced each micro-batch";
  return text + (facts.reductions == 1 ? ", reduced once" : fmt::format(", reduced {}×", facts.reductions));
}

std::string collectives_text(const UnitFacts& facts) {
  std::string text;
  for (const UnitCollective& one : facts.collectives)
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", one.count, one.collective, one.axis);
  return text.empty() ? "none" : text;
}

void add_units(std::string& out, const CompiledJob& compiled) {
  constexpr std::size_t kShown = 16;
  const std::vector<UnitFacts> units = units_of(compiled.plan);
  const bool several = compiled.plan.roles.size() > 1;
  out +=
      fmt::format("\nunits of parameters: {}; what a rank holds of each, and what moves it in a step\n", units.size());
  std::vector<std::string> head{"unit", "of", "tensors", "elements", "states", "weights", "gradients", "collectives"};
  if (several) head.insert(head.begin() + 1, "stage");
  Table table(std::move(head));
  for (std::size_t i = 0; i < std::min(units.size(), kShown); ++i) {
    const UnitFacts& facts = units[i];
    std::vector<std::string> row{facts.unit->name,
                                 facts.label,
                                 grouped(static_cast<std::int64_t>(facts.unit->tensors.size())),
                                 grouped(facts.unit->elements),
                                 part_of(facts.states_over),
                                 weights_text(facts),
                                 gradients_text(facts, compiled.batch),
                                 collectives_text(facts)};
    if (several) row.insert(row.begin() + 1, std::to_string(facts.stage));
    table.add(std::move(row));
  }
  if (units.size() > kShown) table.add({fmt::format("… and {} more", units.size() - kShown)});
  out += table.str();
  if (std::any_of(units.begin(), units.end(), [](const UnitFacts& facts) { return facts.weights_over > 1; }))
    out += fmt::format("  there: of the step's instructions those that run while a gathered copy is in memory\n");
}

std::string parts_text(const std::vector<std::string>& parts) {
  constexpr std::size_t kShown = 8;
  if (parts.size() <= kShown) return fmt::format("{}", fmt::join(parts, " "));
  return fmt::format("{} … {} ({} parts)", fmt::join(parts.begin(), parts.begin() + 4, " "),
                     fmt::join(parts.end() - 3, parts.end(), " "), parts.size());
}

void add_pipeline(std::string& out, const CompiledJob& compiled) {
  if (compiled.plan.roles.size() == 1) return;
  out += fmt::format("\nchunks of the model\n");
  for (std::size_t chunk = 0; chunk < compiled.chunks.size(); ++chunk)
    out += fmt::format("  {} on stage {}: {}\n", chunk, compiled.chunks[chunk].stage,
                       parts_text(compiled.chunks[chunk].parts));
  constexpr int kWidth = 140;
  out += fmt::format("\nschedule of the step, where forward, input part and weight part take a slot each{}\n{}",
                     compiled.strategy.tensor.overlap ? ", numbers are pairs of micro-batches" : "",
                     strategies::print_table(compiled.schedule, kWidth));
}

// What a profile filled in, where the job has one.
void add_profile(std::string& out, const LoadedJob& loaded) {
  if (loaded.job.strategy.profile == Profile::none) return;
  std::string text;
  for (const Setting& setting : loaded.settings)
    if (setting.from == Setting::From::profile)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", setting.path.substr(setting.path.rfind('.') + 1),
                          setting.value);
  out += fmt::format("profile:    {}: {}\n", name_of(loaded.job.strategy.profile),
                     text.empty() ? "fills in nothing" : text);
}

std::string wrap_line(const WrapJob& wrap) {
  switch (wrap.policy) {
    case WrapPolicy::automatic:
      return "each outermost block, and what lies between";
    case WrapPolicy::none:
      return "the whole model";
    case WrapPolicy::transformer:
      return "each " + wrap.block + ", and what lies between";
    case WrapPolicy::size:
      return fmt::format("at least {} parameters", grouped(wrap.min_params));
    case WrapPolicy::names:
      return fmt::format("{}", fmt::join(wrap.names, ", "));
  }
  return "";
}

// "optimizer host, gradients host"; empty: nothing is off the device.
std::string offload_line(const OffloadJob& offload) {
  std::string text;
  for (const auto& [key, place] : offload.parts())
    if (place != OffloadTo::none) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, name_of(place));
  if (offload.update == UpdateOn::host) text += ", update host";
  return text;
}

void add_decisions(std::string& out, const LoadedJob& loaded, const CompiledJob& compiled) {
  const StrategyJob& strategy = compiled.strategy;
  add_profile(out, loaded);
  std::string text = "wrap: " + wrap_line(strategy.wrap);
  const Json data = strategy_json(compiled)["data"];
  for (const char* key : {"keep", "reduce", "gather", "secondary", "reduce_dtype", "prefetch", "compression"})
    if (data.contains(key))
      text += fmt::format("; {}: {}", key, data[key].is_string() ? data[key].get<std::string>() : data[key].dump());
  if (const std::string off = offload_line(strategy.offload); !off.empty()) text += "; offload: " + off;
  out += fmt::format("decided:    {}\n", text);
}

}  // namespace

std::string plan_text(const Planned& one) {
  std::string out;
  const auto& [loaded, compiled, predicted, advice, without_bf16] = one;
  const Role& role = compiled.plan.roles.front();
  out += fmt::format("{}: plan {}\n", loaded.job.name, hash_of(compiled.plan));
  out += fmt::format("strategy:   {}: {}\n", strategy_line(compiled),
                     compiled.alternatives.empty() ? compiled.strategy_why
                     : compiled.fits               ? "chosen, see below"
                                                   : "no strategy fits; this one needs the least memory");
  add_decisions(out, loaded, compiled);
  out += fmt::format("mesh:       {}\n", mesh_line(compiled.plan.mesh));
  out += fmt::format("batch:      {}\n", batch_line(compiled.batch));
  out += fmt::format("parameters: {}{}\n", grouped(compiled.num_parameters),
                     compiled.num_trained == compiled.num_parameters
                         ? ""
                         : fmt::format(", of which {} are trained", grouped(compiled.num_trained)));
  if (compiled.num_active != compiled.num_parameters)
    out += fmt::format("active parameters: {} for each token\n", grouped(compiled.num_active));
  if (compiled.optimizers.size() > 1 || !loaded.job.train.groups.empty())
    out += fmt::format("optimizers: {}\n", optimizers_line(compiled));
  if (const std::vector<StateCost> states = states_of(compiled); !states.empty())
    out += fmt::format("states:     {}\n", states_line(states));
  if (const std::optional<QuantizedCost> quantized = quantized_of(compiled))
    out += fmt::format("quantized:  {} weights of {} matrices as {}, {:.3f} bytes each\n", grouped(quantized->elements),
                       quantized->matrices, name_of(quantized->as), quantized->bytes_per_element());
  if (compiled.fp8 != Fp8Scales::none)
    out += fmt::format("fp8:        linears in blocks multiply e4m3, and e5m2 gradients; scales: {}\n",
                       name_of(compiled.fp8));
  out += fmt::format("a step:     {}", flops_text(compiled.flops_per_step));
  for (const Program& program : role.programs)
    out += fmt::format("{} {} {}", program.kind == role.programs.front().kind ? "; instructions:" : ",",
                       grouped(program.length()), name_of(program.kind));
  out += fmt::format("\n");
  out += predicted_text(predicted);
  if (without_bf16) out += fmt::format("  {}\n", text_of(*without_bf16));
  out += advice_text(advice);
  add_memory(out, compiled);
  add_lifecycle(out, loaded, compiled);
  add_communication(out, compiled);
  add_units(out, compiled);
  add_pipeline(out, compiled);
  out += choice_text(compiled);
  return out;
}

}  // namespace trainer::report
