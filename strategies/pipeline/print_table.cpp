// Every row is made whole and cut afterwards, all at the same slots.
#include "strategies/pipeline/print_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "strategies/pipeline/simulate.h"

namespace trainer::strategies {
namespace {

struct Table {
  std::size_t num_slots = 0;
  std::size_t cell = 0;  // characters of a slot, with the space behind it
  std::vector<std::string> rows;
};

Table lay_out(const Simulation& simulation, bool with_chunk) {
  Table table;
  table.num_slots = static_cast<std::size_t>(simulation.makespan);
  for (const StageTimes& stage : simulation.stages)
    for (const TimedAction& timed : stage.actions) table.cell = std::max(table.cell, label(timed.action, with_chunk).size() + 1);
  for (const StageTimes& stage : simulation.stages) {
    std::string row;
    for (std::size_t slot = 0; slot < table.num_slots; ++slot) row += fmt::format("{:<{}}", ".", table.cell);
    for (const TimedAction& timed : stage.actions) {
      const std::size_t length = static_cast<std::size_t>(timed.end - timed.start) * table.cell;
      const char fill = timed.action.kind == Action::Kind::backward ? '-' : ' ';
      std::string cells = label(timed.action, with_chunk);
      cells.resize(length - 1, fill);
      row.replace(static_cast<std::size_t>(timed.start) * table.cell, length, cells + ' ');
    }
    table.rows.push_back(std::move(row));
  }
  return table;
}

// The slots that are shown: [0, head) and [num_slots − tail, num_slots).
struct Cut {
  std::size_t head;
  std::size_t tail;
};

std::string_view legend(const Schedule& schedule) {
  for (const auto& actions : schedule.stages)
    for (const Action& action : actions)
      if (action.kind == Action::Kind::backward) return "F forward, B backward (2 slots) of a micro-batch";
  return "F forward, I input part and W weight part of the backward of a micro-batch";
}

constexpr std::string_view kGap = "... ";

Cut cut(const Table& table, std::size_t width) {
  if (table.rows.empty() || table.num_slots * table.cell <= width) return {table.num_slots, 0};
  const std::size_t shown = std::max<std::size_t>(2, width > kGap.size() ? (width - kGap.size()) / table.cell : 0);
  if (shown >= table.num_slots) return {table.num_slots, 0};
  return {shown - shown / 2, shown / 2};
}

}  // namespace

std::string print_table(const Schedule& schedule, int width) {
  const Simulation simulation = simulate(schedule);
  if (!simulation.deadlock.empty()) return "this schedule never ends:\n" + simulation.deadlock;
  const bool with_chunk = schedule.stage_of_chunk.size() > schedule.stages.size();
  const Table table = lay_out(simulation, with_chunk);
  const std::string last_stage = fmt::format("stage {}", schedule.stages.size() - 1);
  const std::string_view edge = " | ";
  const std::size_t margin = last_stage.size() + edge.size();
  const auto wanted = static_cast<std::size_t>(std::max(width, 0));
  const auto [head, tail] = cut(table, wanted > margin ? wanted - margin : 0);

  std::string text;
  const auto out = std::back_inserter(text);
  const auto line = [&](const std::string& name, const std::string& row) {
    std::string shown = row.substr(0, head * table.cell);
    if (tail > 0) shown.append(kGap).append(row.substr((table.num_slots - tail) * table.cell));
    shown.erase(shown.find_last_not_of(' ') + 1);
    fmt::format_to(out, "{:<{}}{}{}\n", name, last_stage.size(), edge, shown);
  };
  for (std::size_t stage = 0; stage < table.rows.size(); ++stage)
    line(fmt::format("stage {:>{}}", stage, last_stage.size() - std::string_view("stage ").size()), table.rows[stage]);
  if (tail > 0) fmt::format_to(out, "... slots {} to {} of {} are not shown\n", head, table.num_slots - tail - 1, table.num_slots);
  fmt::format_to(out, "{} slots, bubble {:.1f}%; {}{}\n", table.num_slots, 100 * simulation.bubble(), legend(schedule),
                 with_chunk ? ", after the dot its chunk" : "");
  return text;
}

}  // namespace trainer::strategies
