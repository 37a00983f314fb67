// Every row is made whole and cut afterwards, all at the same slots.
#include "strategies/pipeline/print_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "engine/plan/simulate.h"

namespace trainer::strategies {
namespace {

// How much of an action stands in its slots.
enum class Detail : std::uint8_t { chunk, micro_batch, kind };

std::string text_of(const Action& action, Detail detail) {
  const std::string text = label(action, detail == Detail::chunk);
  return detail == Detail::kind ? text.substr(0, 1) : text;
}

struct Table {
  std::size_t num_slots = 0;
  std::size_t cell = 1;  // characters of a slot, with the space behind it
  std::vector<std::string> rows;
};

Table lay_out(const Simulation& simulation, Detail detail) {
  Table table;
  table.num_slots = static_cast<std::size_t>(simulation.makespan);
  if (detail != Detail::kind)
    for (const StageTimes& stage : simulation.stages)
      for (const TimedAction& timed : stage.actions)
        table.cell = std::max(table.cell, text_of(timed.action, detail).size() + 1);
  for (const StageTimes& stage : simulation.stages) {
    std::string row;
    for (std::size_t slot = 0; slot < table.num_slots; ++slot) row += fmt::format("{:<{}}", ".", table.cell);
    for (const TimedAction& timed : stage.actions) {
      const std::size_t length = static_cast<std::size_t>(timed.end - timed.start) * table.cell;
      std::string cells = text_of(timed.action, detail);
      if (detail == Detail::kind) {
        cells.resize(length, cells.front());
      } else {
        cells.resize(length - 1, timed.action.kind == Action::Kind::backward ? '-' : ' ');
        cells += ' ';
      }
      row.replace(static_cast<std::size_t>(timed.start) * table.cell, length, cells);
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

constexpr std::string_view kGap = " ~ ";

Cut cut(const Table& table, std::size_t width) {
  if (table.num_slots * table.cell <= width) return {table.num_slots, 0};
  const std::size_t shown = std::max<std::size_t>(2, width > kGap.size() ? (width - kGap.size()) / table.cell : 0);
  if (shown >= table.num_slots) return {table.num_slots, 0};
  return {shown - shown / 2, shown / 2};
}

// Only letters where labels would leave no more than the first and the last stages' way in and out.
Detail choose_detail(const Simulation& simulation, Detail full, std::size_t width) {
  const Table table = lay_out(simulation, full);
  const Cut shown = cut(table, width);
  return shown.tail == 0 || shown.head + shown.tail >= 4 * simulation.stages.size() ? full : Detail::kind;
}

std::string legend(const Schedule& schedule, Detail detail) {
  bool split = false;
  for (const auto& actions : schedule.stages)
    for (const Action& action : actions) split = split || action.kind == Action::Kind::backward_input;
  const std::string_view of = detail == Detail::kind ? "" : detail == Detail::chunk ? "3.1" : "3";
  const std::string_view what = detail == Detail::kind    ? ""
                                : detail == Detail::chunk ? " of micro-batch 3 in chunk 1"
                                                          : " of micro-batch 3";
  return fmt::format("F{0} forward{1}, {2}", of, what,
                     split ? fmt::format("I{0} and W{0} input and weight part of the backward", of)
                           : fmt::format("B{} backward (2 slots)", of));
}

}  // namespace

std::string print_table(const Schedule& schedule, int width) {
  constexpr std::string_view kHead = "stage  idle  live | ";
  const Simulation simulation = simulate(schedule);
  if (!simulation.deadlock.empty()) return "this schedule never ends:\n" + simulation.deadlock;
  const std::size_t room = static_cast<std::size_t>(std::max(width, static_cast<int>(kHead.size()))) - kHead.size();
  const Detail full = schedule.stage_of_chunk.size() > schedule.stages.size() ? Detail::chunk : Detail::micro_batch;
  const Detail detail = choose_detail(simulation, full, room);
  const Table table = lay_out(simulation, detail);
  const auto [head, tail] = cut(table, room);

  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}time, in slots\n", kHead);
  for (std::size_t stage = 0; stage < table.rows.size(); ++stage) {
    const StageTimes& times = simulation.stages[stage];
    std::string row = table.rows[stage].substr(0, head * table.cell);
    if (tail > 0) row.append(kGap).append(table.rows[stage].substr((table.num_slots - tail) * table.cell));
    row.erase(row.find_last_not_of(' ') + 1);
    fmt::format_to(out, "{:>5}{:>5.0f}%{:>6} | {}\n", stage, 100 * (1 - times.busy / simulation.makespan),
                   times.peak_activations, row);
  }
  if (tail > 0)
    fmt::format_to(out, "~ slots {} to {} of {} are not shown\n", head, table.num_slots - tail - 1, table.num_slots);
  fmt::format_to(out, "{} slots, bubble {:.1f}%; {}\n", table.num_slots, 100 * simulation.bubble(),
                 legend(schedule, detail));
  return text;
}

}  // namespace trainer::strategies
