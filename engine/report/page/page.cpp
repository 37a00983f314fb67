// The page is a template (page.html, page.css, page.js, charts.js, which the build makes strings of) around one JSON
// object. Here that object is made: facts of engine/report/plan_report.h and units.h, and the charts' points. What a
// person wrote is in the object alone, in which no "<" stands, and in the title, which is escaped.
#include "engine/report/page/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/compile/fit.h"
#include "engine/core/check.h"
#include "engine/plan/simulate.h"
#include "engine/report/choice.h"
#include "engine/report/lifecycle.h"
#include "engine/report/memory_curve.h"
#include "engine/report/page/page_text.h"
#include "engine/report/plan_report.h"
#include "engine/report/table.h"
#include "engine/report/timeline.h"
#include "engine/report/units.h"
#include "strategies/pipeline/print_table.h"

namespace trainer::report {
namespace {

constexpr std::size_t kMostBlocks = 20'000;       // of the timeline
constexpr std::size_t kMostPoints = 12'000;       // of all stages' curves
constexpr std::size_t kMostPointsOfStage = 1200;  // more than pixels
constexpr std::size_t kAliveShown = 12;
constexpr std::size_t kUnitsShown = 200;
constexpr std::size_t kAlternativesShown = 60;
constexpr int kTableWidth = 110;

std::int64_t nanoseconds(double us) { return std::llround(us * 1e3); }

// "12.3 ms", in the unit in which `us` has one to three digits before the point.
std::pair<std::string, std::string> time_text(double us) {
  const auto digits = [](double value) { return value >= 100 ? 0 : value >= 10 ? 1 : 2; };
  if (us >= 1e6) return {fmt::format("{:.{}f}", us * 1e-6, digits(us * 1e-6)), "s"};
  if (us >= 1e3) return {fmt::format("{:.{}f}", us * 1e-3, digits(us * 1e-3)), "ms"};
  return {fmt::format("{:.{}f}", us, digits(us)), "µs"};
}

std::string rate_text(double rate) {
  return rate >= 1e6 ? fmt::format("{:.2f} million", rate * 1e-6) : grouped(std::llround(rate));
}

// ---- Head ----

Json time_figures(const PredictedStep& predicted) {
  const cost::Prediction& times = predicted.times;
  const auto [value, unit] = time_text(times.step_us);
  const double scale = unit == "s" ? 1e-6 : unit == "ms" ? 1e-3 : 1;
  const auto rate = [&](double us) { return us > 0 ? predicted.tokens / us * 1e6 : 0; };
  Json figures = Json::array();
  figures.push_back({{"id", "step"},
                     {"name", "Step time, predicted"},
                     {"value", value},
                     {"unit", unit},
                     {"note", fmt::format("{:.3g} to {:.3g} {}", times.low_us * scale, times.high_us * scale, unit)}});
  figures.push_back({{"id", "rate"},
                     {"name", predicted.samples ? "Samples per second" : "Tokens per second"},
                     {"value", rate_text(rate(times.step_us))},
                     {"unit", ""},
                     {"note", fmt::format("{} to {}", rate_text(rate(times.high_us)), rate_text(rate(times.low_us)))}});
  if (predicted.mfu() > 0) {
    const auto share = [&](double us) { return 100 * predicted.mfu() * times.step_us / std::max(us, 1e-9); };
    figures.push_back({{"id", "utilisation"},
                       {"name", "Model FLOPs utilisation"},
                       {"value", fmt::format("{:.1f}", share(times.step_us))},
                       {"unit", "%"},
                       {"note", fmt::format("{:.1f}% to {:.1f}%", share(times.high_us), share(times.low_us))}});
  }
  return figures;
}

Json figures_json(const CompiledJob& compiled, const PredictedStep& predicted) {
  Json figures = time_figures(predicted);
  const MemoryReport& report = fullest(compiled);
  const std::string bytes = bytes_text(static_cast<double>(report.peak_bytes));
  const std::size_t blank = bytes.find(' ');
  const double share =
      static_cast<double>(report.peak_bytes) / static_cast<double>(std::max<std::int64_t>(1, compiled.limit_bytes));
  figures.push_back(
      {{"id", "memory"},
       {"name", "Memory of a rank"},
       {"value", bytes.substr(0, blank)},
       {"unit", bytes.substr(blank + 1)},
       {"share", share},
       {"note", fmt::format("{:.1f}% of {}", 100 * share, bytes_text(static_cast<double>(compiled.limit_bytes)))}});
  const std::string count = count_text(static_cast<double>(compiled.num_parameters));
  const std::size_t gap = count.find(' ');
  const bool all = compiled.num_trained == compiled.num_parameters;
  const std::string trained = all ? "" : count_text(static_cast<double>(compiled.num_trained)) + " trained; ";
  figures.push_back({{"id", "parameters"},
                     {"name", "Parameters"},
                     {"value", count.substr(0, gap)},
                     {"unit", gap == std::string::npos ? "" : count.substr(gap + 1)},
                     {"note", trained + flops_text(compiled.flops_per_step) + " a step"}});
  return figures;
}

Json facts_json(const CompiledJob& compiled, const PredictedStep& predicted) {
  Json facts = Json::array();
  const std::string& about = predicted.machine->description;
  facts.push_back({"machine", cluster_text(predicted) + (about.empty() ? "" : ": " + about)});
  std::string mesh;
  for (Axis axis : kAxes)
    mesh += fmt::format("{}{} {}", mesh.empty() ? "" : " × ", name_of(axis), compiled.plan.mesh.size(axis));
  facts.push_back({"mesh", fmt::format("{} = {} rank{}", mesh, grouped(compiled.plan.mesh.world_size()),
                                       compiled.plan.mesh.world_size() == 1 ? "" : "s")});
  facts.push_back({"batch", batch_line(compiled.batch)});
  std::string instructions;
  for (const Program& program : compiled.plan.roles.front().programs)
    instructions +=
        fmt::format("{}{} {}", instructions.empty() ? "" : ", ", name_of(program.kind), grouped(program.length()));
  facts.push_back({"instructions", instructions});
  return facts;
}

// ---- Time ----

Json time_json(const cost::Prediction& prediction) {
  Json stages = Json::array();
  for (std::size_t stage = 0; stage < prediction.roles.size(); ++stage) {
    const cost::RoleTimes& times = prediction.roles[stage];
    stages.push_back({{"stage", stage},
                      {"compute", nanoseconds(times.compute_us)},
                      {"optimizer_time", nanoseconds(times.optimizer_us)},
                      {"exposed", nanoseconds(times.exposed_us)},
                      {"bubble", nanoseconds(times.bubble_us)},
                      {"input", nanoseconds(times.input_us)},
                      {"offload", nanoseconds(times.offload_us)}});
  }
  Json kernels = Json::array();
  for (const cost::KernelTime& kernel : prediction.kernels)
    kernels.push_back({{"op", name_of(kernel.op)},
                       {"count", kernel.count},
                       {"ns", nanoseconds(kernel.us)},
                       {"bound", cost::name_of(kernel.bound)}});
  return {{"step_ns", nanoseconds(prediction.step_us)},
          {"slowest", prediction.slowest},
          {"stages", stages},
          {"kernels", kernels}};
}

// ---- Memory ----

// When the compute stream comes to an instruction, ns: an axis along which a curve in issue order never runs back.
std::vector<std::int64_t> reached(const Program& program, const std::vector<cost::Span>& spans) {
  std::vector<std::int64_t> times(spans.size());
  double clock = 0;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (program.instructions[i].stream == Stream::compute) clock = std::max(clock, spans[i].begin);
    times[i] = nanoseconds(clock);
  }
  return times;
}

Json curve_json(const Role& role, const Program& program, std::size_t most_points, const cost::Prediction& prediction,
                std::size_t stage) {
  const MemoryCurve curve = memory_curve(role, program, most_points);
  const bool in_time = program.kind == ProgramKind::step;
  std::vector<std::int64_t> times;
  if (in_time) times = reached(program, prediction.spans[stage]);
  const auto place = [&](std::int32_t instruction) {
    return in_time ? times[static_cast<std::size_t>(instruction)] : instruction;
  };
  Json at = Json::array(), live = Json::object();
  for (std::int32_t first : curve.at) at.push_back(place(first));
  for (int i = 0; i < kNumCategories; ++i) {
    const std::vector<std::int64_t>& bytes = curve.live[static_cast<std::size_t>(i)];
    const bool constant = std::adjacent_find(bytes.begin(), bytes.end(), std::not_equal_to<>()) == bytes.end();
    live[std::string(name_of(static_cast<Category>(i)))] =
        constant ? Json(bytes.empty() ? 0 : bytes.front()) : Json(bytes);
  }
  return {{"in_time", in_time},
          {"end", in_time ? nanoseconds(prediction.step_us) : static_cast<std::int64_t>(program.instructions.size())},
          {"at", at},
          {"live", live},
          {"peak_at", curve.peak >= 0 ? Json(place(curve.peak)) : Json(nullptr)},
          {"peak_bytes", curve.peak_bytes}};
}

Json alive_json(const Role& role, const std::vector<BufferId>& alive) {
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(alive.size(), kAliveShown); ++i) {
    const Buffer& buffer = role.buffer(alive[i]);
    list.push_back(
        {{"name", role.name(buffer.name) + (buffer.micro_batch >= 0 ? fmt::format(" mb{}", buffer.micro_batch) : "")},
         {"category", name_of(buffer.category)},
         {"bytes", buffer.bytes}});
  }
  return list;
}

Json stage_memory(const CompiledJob& compiled, std::size_t stage, const cost::Prediction& prediction) {
  const Role& role = compiled.plan.roles[stage];
  const MemoryReport& report = compiled.memory[stage];
  Json categories = Json::object();
  for (int i = 0; i < kNumCategories; ++i)
    categories[std::string(name_of(static_cast<Category>(i)))] = report.by_category[static_cast<std::size_t>(i)];
  CHECK(report.program, "what is most alive is alive in a program");
  Json json{{"stage", stage},
            {"peak", report.peak_bytes},
            {"by_category", categories},
            {"program", name_of(*report.program)},
            {"instruction", report.instruction}};
  const Program* program = role.program(*report.program);
  const std::vector<BufferId> alive = alive_at(role, *program, report.instruction);
  const std::string title = title_of(role, program->instructions[static_cast<std::size_t>(report.instruction)]);
  const std::size_t points = std::clamp<std::size_t>(kMostPoints / compiled.plan.roles.size(), 100, kMostPointsOfStage);
  json["at"] = title;
  json["num_alive"] = alive.size();
  json["alive"] = alive_json(role, alive);
  json["curve"] = curve_json(role, *program, points, prediction, stage);
  return json;
}

Json page_memory(const CompiledJob& compiled, const cost::Prediction& prediction) {
  Json stages = Json::array();
  for (std::size_t stage = 0; stage < compiled.plan.roles.size(); ++stage)
    stages.push_back(stage_memory(compiled, stage, prediction));
  return {{"limit", compiled.limit_bytes}, {"fullest", fullest_stage(compiled)}, {"stages", stages}};
}

// ---- Communication ----

Json rows_json(const std::vector<Traffic>& traffic, const std::vector<cost::CommunicationTime>* times) {
  Json rows = Json::array();
  for (const Traffic& one : traffic) {
    Json row{{"axis", one.axis}, {"collective", one.collective}, {"count", one.count}, {"bytes", one.bytes}};
    if (times != nullptr) {
      const auto time = std::find_if(times->begin(), times->end(), [&](const cost::CommunicationTime& time) {
        return time.axis == one.axis && time.collective == one.collective;
      });
      row["ns"] = time == times->end() ? 0 : nanoseconds(time->total_us);
      row["exposed_ns"] = time == times->end() ? 0 : nanoseconds(time->exposed_us);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json page_communication(const CompiledJob& compiled, const cost::Prediction& prediction) {
  const StageTraffic step = traffic_by_stage(compiled.plan);
  Json stages = Json::array(), others = Json::array();
  for (std::size_t stage = 0; stage < step.stages.size(); ++stage)
    stages.push_back(
        {{"stage", stage},
         {"rows", rows_json(step.stages[stage], stage == prediction.slowest ? &prediction.communication : nullptr)}});
  const std::int64_t parts = compiled.strategy.data.parts;
  for (const auto& [program, part, traffic] : traffic_of_averages(compiled.plan)) {
    if (traffic.stages[traffic.most].empty()) continue;
    const std::string name(name_of(program));
    others.push_back({{"program", parts > 1 ? fmt::format("{} of part {} of {}", name, part + 1, parts) : name},
                      {"every", compiled.strategy.data.every},
                      {"rows", rows_json(traffic.stages[traffic.most], nullptr)}});
  }
  return {{"stages", stages}, {"shown", prediction.slowest}, {"most", step.most}, {"others", others}};
}

// ---- Units, stages, job ----

std::string part_of(int over) { return over == 1 ? "whole" : fmt::format("1/{}", over); }

// A row of the table, and what makes two units alike.
struct UnitRow {
  std::string first, last, holds_first, holds_last;
  int stage_first = 0, stage_last = 0;
  std::int64_t count = 0, tensors = 0, elements = 0;
  std::string states, weights, gradients, collectives;

  explicit UnitRow(const UnitFacts& facts)
      : first(facts.unit->name),
        last(first),
        holds_first(facts.label),
        holds_last(holds_first),
        stage_first(facts.stage),
        stage_last(facts.stage),
        count(1),
        tensors(static_cast<std::int64_t>(facts.unit->tensors.size())),
        elements(facts.unit->elements),
        states(part_of(facts.states_over)),
        weights(facts.weights_over == 1 ? "whole"
                                        : fmt::format("1/{}, gathered {}×", facts.weights_over, facts.gathers)),
        gradients(part_of(facts.gradients_over) +
                  (facts.reductions > 0 ? fmt::format(", reduced {}×", facts.reductions) : "")) {
    for (const UnitCollective& one : facts.collectives)
      collectives += fmt::format("{}{} {} {}", collectives.empty() ? "" : ", ", one.count, one.collective, one.axis);
    if (collectives.empty()) collectives = "none";
  }
  bool alike(const UnitRow& other) const {
    return tensors == other.tensors && elements == other.elements && states == other.states &&
           weights == other.weights && gradients == other.gradients && collectives == other.collectives;
  }
  Json json() const {
    const auto range = [](const std::string& a, const std::string& b) { return a == b ? a : a + " … " + b; };
    return {{"name", range(first, last)},
            {"count", count},
            {"stages",
             stage_first == stage_last ? std::to_string(stage_first) : fmt::format("{}–{}", stage_first, stage_last)},
            {"holds", range(holds_first, holds_last)},
            {"tensors", tensors},
            {"elements", elements},
            {"states", states},
            {"weights", weights},
            {"gradients", gradients},
            {"collectives", collectives}};
  }
};

Json page_units(const Plan& plan) {
  std::vector<UnitRow> rows;
  for (const UnitFacts& facts : units_of(plan)) {
    UnitRow row(facts);
    if (rows.empty() || !rows.back().alike(row)) {
      rows.push_back(std::move(row));
    } else {
      rows.back().last = row.first;
      rows.back().holds_last = row.holds_first;
      rows.back().stage_last = row.stage_first;
      ++rows.back().count;
    }
  }
  Json list = Json::array();
  for (std::size_t i = 0; i < std::min(rows.size(), kUnitsShown); ++i) list.push_back(rows[i].json());
  return {{"several_stages", plan.roles.size() > 1}, {"left_out", rows.size() - list.size()}, {"rows", list}};
}

Json page_pipeline(const CompiledJob& compiled) {
  const Simulation simulation = simulate(compiled.schedule);
  Json chunks = Json::array();
  for (const PipelineChunk& chunk : compiled.chunks) {
    const std::vector<std::string>& parts = chunk.parts;
    chunks.push_back({{"stage", chunk.stage},
                      {"parts", parts.size() <= 6 ? fmt::format("{}", fmt::join(parts, ", "))
                                                  : fmt::format("{}, {} … {} ({} parts)", parts[0], parts[1],
                                                                parts.back(), parts.size())}});
  }
  return {{"schedule", schedule_name(compiled.strategy.pipeline)},
          {"slots", simulation.makespan},
          {"bubble", simulation.bubble()},
          {"chunks", chunks},
          {"picture", strategies::print_table(compiled.schedule, kTableWidth)}};
}

// The chosen first, as the search has them: best first, what it looked at and did not plan behind.
Json page_alternatives(const CompiledJob& compiled) {
  Json rows = Json::array();
  for (const Alternative& one : compiled.alternatives) {
    if (rows.size() == kAlternativesShown) break;
    rows.push_back({{"text", one.text},
                    {"ns", nanoseconds(one.predicted_us)},
                    {"bytes", one.peak_bytes},
                    {"basis", std::string(name_of(one.basis))},
                    {"rejected", one.rejected}});
  }
  return {{"left_out", compiled.alternatives.size() - rows.size()}, {"rows", rows}};
}

// Lines of the effective job, each with where its value came from.
Json job_json(const LoadedJob& loaded) {
  constexpr std::string_view kMark = "  # ";
  Json lines = Json::array();
  const std::string text = effective_job(loaded);
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t mark = line.rfind(kMark);
    const std::size_t last = line.find_last_not_of(' ', mark == std::string::npos ? mark : mark == 0 ? 0 : mark - 1);
    lines.push_back({line.substr(0, last + 1), mark == std::string::npos ? "" : line.substr(mark + kMark.size())});
    begin = end + 1;
  }
  return lines;
}

// ---- The page ----

std::string notice(const Diagnostic& mistake) {
  return mistake.message +
         (mistake.remedies.empty() ? "" : fmt::format("; this would help: {}", fmt::join(mistake.remedies, "; or ")));
}

Json page_json(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted) {
  const cost::Prediction& prediction = predicted.times;
  Json json{{"name", loaded.job.name},
            {"hash", hash_of(compiled)},
            {"strategy", strategy_line(compiled)},
            {"why", compiled.strategy_why},
            {"notice", compiled.fits ? Json(nullptr) : Json(notice(does_not_fit(loaded, compiled)))},
            {"figures", figures_json(compiled, predicted)},
            {"facts", facts_json(compiled, predicted)},
            {"time", time_json(prediction)},
            {"timeline", timeline_json(compiled.plan, prediction, kMostBlocks)},
            {"memory", page_memory(compiled, prediction)},
            {"lifecycle", lifecycle_json(lifecycle_of(loaded, compiled))},
            {"communication", page_communication(compiled, prediction)},
            {"units", page_units(compiled.plan)},
            {"explicit", fixed_text(compiled)},
            {"job", job_json(loaded)}};
  if (!compiled.alternatives.empty()) json["alternatives"] = page_alternatives(compiled);
  if (compiled.plan.roles.size() > 1) json["pipeline"] = page_pipeline(compiled);
  return json;
}

std::string replaced(std::string_view text, const std::map<char, std::string_view>& by) {
  std::string out;
  out.reserve(text.size() + text.size() / 16);
  for (char c : text) {
    const auto found = by.find(c);
    if (found == by.end())
      out += c;
    else
      out += found->second;
  }
  return out;
}

std::string escaped(std::string_view text) {
  return replaced(text, {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}});
}

// JSON between script tags: what could end them stands as an escape, which in JSON is the same.
std::string embedded(const Json& json) {
  return replaced(json.dump(-1, ' ', false, Json::error_handler_t::replace),
                  {{'<', "\\u003c"}, {'>', "\\u003e"}, {'&', "\\u0026"}});
}

// The template with each @name@ replaced, in one pass: what is put in is not looked at.
std::string filled(std::string_view text, const std::map<std::string_view, std::string>& values) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t mark = text.find('@', at), end = mark == text.npos ? text.npos : text.find('@', mark + 1);
    const auto found = end == text.npos ? values.end() : values.find(text.substr(mark + 1, end - mark - 1));
    const std::size_t stop = found == values.end() ? (mark == text.npos ? text.size() : mark + 1) : mark;
    out += text.substr(at, stop - at);
    at = stop;
    if (found == values.end()) continue;
    out += found->second;
    at = end + 1;
  }
  return out;
}

}  // namespace

std::string plan_page(const LoadedJob& loaded, const CompiledJob& compiled, const PredictedStep& predicted) {
  return filled(page::kHtml, {{"title", escaped(loaded.job.name + ": plan " + hash_of(compiled))},
                              {"style", std::string(page::kStyle)},
                              {"data", embedded(page_json(loaded, compiled, predicted))},
                              {"script", std::string(page::kScript)}});
}

}  // namespace trainer::report
