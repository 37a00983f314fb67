// Of each row the slots at both ends are written, as many as there is room for.
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

struct Slots {
  std::size_t count = 0;
  std::size_t cell = 1;  // characters of one, with the space behind it
};

Slots slots_of(const Simulation& simulation, Detail detail) {
  Slots slots{static_cast<std::size_t>(simulation.makespan)};
  if (detail != Detail::kind)
    for (const StageTimes& stage : simulation.stages)
      for (const TimedAction& timed : stage.actions)
        slots.cell = std::max(slots.cell, text_of(timed.action, detail).size() + 1);
  return slots;
}

// Slots [first, last) of a stage.
std::string row_of(const StageTimes& stage, Detail detail, std::size_t cell, std::size_t first, std::size_t last) {
  std::string row;
  for (std::size_t slot = first; slot < last; ++slot) row += fmt::format("{:<{}}", ".", cell);
  for (const TimedAction& timed : stage.actions) {
    const auto start = static_cast<std::size_t>(timed.start), end = static_cast<std::size_t>(timed.end);
    if (end <= first || start >= last) continue;
    const std::size_t length = (end - start) * cell;
    std::string cells = text_of(timed.action, detail);
    if (detail == Detail::kind) {
      cells.resize(length, cells.front());
    } else {
      cells.resize(length - 1, timed.action.kind == Action::Kind::backward ? '-' : ' ');
      cells += ' ';
    }
    const std::size_t from = std::max(start, first), until = std::min(end, last);
    row.replace((from - first) * cell, (until - from) * cell, cells, (from - start) * cell, (until - from) * cell);
  }
  return row;
}

// The slots that are shown: [0, head) and [count − tail, count).
struct Cut {
  std::size_t head;
  std::size_t tail;
};

constexpr std::string_view kGap = " ~ ";

Cut cut(const Slots& slots, std::size_t width) {
  if (slots.count * slots.cell <= width) return {slots.count, 0};
  const std::size_t shown = std::max<std::size_t>(2, width > kGap.size() ? (width - kGap.size()) / slots.cell : 0);
  if (shown >= slots.count) return {slots.count, 0};
  return {shown - shown / 2, shown / 2};
}

// Only letters where labels would leave no more than the first and the last stages' way in and out.
Detail choose_detail(const Simulation& simulation, Detail full, std::size_t width) {
  const Cut shown = cut(slots_of(simulation, full), width);
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
  const Slots slots = slots_of(simulation, detail);
  const auto [head, tail] = cut(slots, room);

  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "{}time, in slots\n", kHead);
  for (std::size_t stage = 0; stage < simulation.stages.size(); ++stage) {
    const StageTimes& times = simulation.stages[stage];
    std::string row = row_of(times, detail, slots.cell, 0, head);
    if (tail > 0) row.append(kGap).append(row_of(times, detail, slots.cell, slots.count - tail, slots.count));
    row.erase(row.find_last_not_of(' ') + 1);
    fmt::format_to(out, "{:>5}{:>5.0f}%{:>6} | {}\n", stage, 100 * (1 - times.busy / simulation.makespan),
                   times.peak_activations, row);
  }
  if (tail > 0)
    fmt::format_to(out, "~ slots {} to {} of {} are not shown\n", head, slots.count - tail - 1, slots.count);
  fmt::format_to(out, "{} slots, bubble {:.1f}%; {}\n", slots.count, 100 * simulation.bubble(),
                 legend(schedule, detail));
  return text;
}

}  // namespace trainer::strategies
