// A stage is drawn at a level of detail: 0, its instructions; 1, what is of one kind within an action is a block; 2,
// all communication within an action is. What an instruction is for, and in which action, its provenance says.
#include "engine/report/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "engine/core/check.h"
#include "engine/plan/traffic.h"
#include "engine/report/plan_report.h"

namespace trainer::report {
namespace {

Task task_along(const Mesh& mesh, Axes axes) {
  std::uint8_t mask = 0;
  for (Axis axis : kAxes)
    if (axes.has(axis) && mesh.size(axis) > 1) mask |= Axes::of(axis).mask;
  if (mask == Axes::of(Axis::tensor).mask) return Task::tensor;
  return mask == Axes::of(Axis::pipeline).mask ? Task::pipeline : Task::data;
}

Task task_of(const Provenance& why) {
  using Phase = Provenance::Phase;
  switch (why.phase) {
    case Phase::forward:
      return Task::forward;
    case Phase::backward:
    case Phase::backward_input:
      return why.recomputed ? Task::recompute : Task::backward;
    case Phase::backward_weight:
      return Task::weight;
    case Phase::norm:
    case Phase::update:
    case Phase::average:
    case Phase::report:
      return Task::update;
    case Phase::load:
    case Phase::gather:
    case Phase::transfer:
    case Phase::reduce:
      return Task::unit;
  }
  return Task::unit;
}

std::int64_t nanoseconds(double us) { return std::llround(us * 1e3); }

struct Block {
  std::int64_t begin = 0, end = 0;
  std::int32_t label = 0;
  std::int32_t micro_batch = -1;
  std::int64_t count = 1;
  std::int64_t busy = 0;
};

// Texts of blocks, each with what it is for, once.
class Labels {
 public:
  std::int32_t of(std::string text, Task task) {
    const auto [found, added] = index_.try_emplace({std::move(text), task}, static_cast<std::int32_t>(index_.size()));
    if (added) list_.push_back({found->first.first, name_of(task)});
    return found->second;
  }
  Json json() const { return list_; }

 private:
  std::map<std::pair<std::string, Task>, std::int32_t> index_;
  Json list_ = Json::array();
};

// Of a launch without its micro-batch, which blocks have apart; of a collective with the axes.
std::string label_of(const Plan& plan, const Role& role, const Instruction& instruction) {
  if (const auto* collective = std::get_if<Collective>(&instruction)) {
    const std::string axes = axes_text(plan.mesh, collective->axes);
    return title_of(role, instruction) + (axes.empty() ? "" : " over " + axes);
  }
  return title_of(role, instruction);
}

std::string_view words_for(Task task) {
  switch (task) {
    case Task::forward:
      return "forward";
    case Task::recompute:
      return "recomputed forward";
    case Task::backward:
      return "backward";
    case Task::weight:
      return "weight part of backward";
    case Task::unit:
      return "packing and sums";
    case Task::update:
      return "optimizer";
    case Task::tensor:
      return "collectives over tensor";
    case Task::data:
      return "collectives over data axes";
    case Task::pipeline:
      return "messages between stages";
    case Task::copy:
      return "copies";
  }
  return "";
}

constexpr int kFinest = 0, kCoarsest = 2;
constexpr std::array kDrawn{Stream::compute, Stream::tensor, Stream::communication, Stream::background,
                            Stream::copy,    Stream::fetch,  Stream::store,         Stream::host};
static_assert(kDrawn.size() == kNumStreams);
// Of a stage whose instructions are summed: the compute stream is drawn as actions, and copies are too small to be
// seen.
bool is_drawn(Stream stream, int level) {
  return stream != Stream::compute && (level < kCoarsest || stream != Stream::copy);
}

constexpr double kLongestGap = 0.01;  // of the step, within a block: longer waits are to be seen

// One stage at a level of detail.
class StageDrawing {
 public:
  StageDrawing(const Plan& plan, std::size_t stage, const cost::Prediction& prediction)
      : plan_(plan),
        stage_(stage),
        role_(plan.roles[stage]),
        program_(*role_.program(ProgramKind::step)),
        spans_(prediction.spans[stage]),
        step_us_(prediction.step_us),
        task_(tasks_of(plan, stage)) {
    find_actions();
    for (int level = kFinest; level <= kCoarsest; ++level) sizes_[static_cast<std::size_t>(level)] = count(level);
  }

  std::size_t blocks(int level) const { return sizes_[static_cast<std::size_t>(level)]; }

  Json draw(int level, Labels& labels) const {
    Json rows = Json::array();
    rows.push_back(row("actions", true, summed(Stream::compute, 1, labels)));
    if (level == kFinest) {
      for (Stream stream : kDrawn) add(rows, row(name_of(stream), false, single(stream, labels)));
    } else {
      for (Stream stream : kDrawn)
        if (is_drawn(stream, level)) add(rows, row(name_of(stream), true, summed(stream, level, labels)));
    }
    return {{"stage", stage_}, {"rows", rows}};
  }

 private:
  // Instructions of a pass are in its action, and so is what stands between two of them. Other launches are in one of
  // their own; what else stands between actions is in the one before.
  void find_actions() {
    struct Key {
      Task task = Task::copy;
      std::int32_t micro_batch = -1, chunk = -1;
      bool operator==(const Key&) const = default;
    };
    const auto& instructions = program_.instructions;
    std::vector<std::optional<Key>> keys(instructions.size());
    std::size_t before = instructions.size();  // the last instruction of a pass
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const Provenance& why = instructions[i].why;
      if (is_pass(why.phase)) {
        keys[i] = {pass_of(task_[i]), why.micro_batch, why.chunk};
        if (before < i && keys[before] == keys[i])
          std::fill(keys.begin() + static_cast<std::ptrdiff_t>(before), keys.begin() + static_cast<std::ptrdiff_t>(i),
                    keys[i]);
        before = i;
      } else if (std::holds_alternative<Launch>(instructions[i].instruction)) {
        keys[i] = {pass_of(task_[i]), -1, -1};
      }
    }
    action_.assign(instructions.size(), 0);
    std::optional<Key> last;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const bool goes_on = i == 0 || !keys[i] || keys[i] == last;
      action_[i] = i == 0 ? 0 : action_[i - 1] + (goes_on ? 0 : 1);
      if (keys[i]) last = keys[i];
    }
  }

  static Task pass_of(Task task) { return task == Task::recompute ? Task::backward : task; }

  std::int32_t micro_batch(std::size_t i) const {
    const Issued& issued = program_.instructions[i];
    return std::holds_alternative<Launch>(issued.instruction) ? pass_micro_batch(issued) : -1;
  }

  Block block(std::size_t i, std::int32_t label) const {
    // What waits for another stage is no work: the block begins when bytes move.
    const std::int64_t begin = nanoseconds(spans_[i].begin + spans_[i].waited),
                       end = std::max(begin, nanoseconds(spans_[i].end));
    return {begin, end, label, micro_batch(i), 1, end - begin};
  }

  std::vector<Block> single(Stream stream, Labels& labels) const {
    std::vector<Block> list;
    for (std::size_t i = 0; i < spans_.size(); ++i)
      if (program_.instructions[i].stream == stream)
        list.push_back(block(i, labels.of(label_of(plan_, role_, program_.instructions[i].instruction), task_[i])));
    return list;
  }

  // Whether instruction i, of the same stream as the one `before`, is drawn in its block.
  bool together(std::size_t before, std::size_t i, int level) const {
    if (action_[before] != action_[i]) return false;
    if (program_.instructions[i].stream == Stream::compute)
      return spans_[i].begin - spans_[before].end < kLongestGap * step_us_;
    return level >= 2 || task_[before] == task_[i];
  }

  std::vector<Block> summed(Stream stream, int level, Labels& labels) const {
    std::vector<Block> list;
    std::map<Task, std::int64_t> busy;  // of the last block
    std::size_t before = 0;
    const auto name = [&] {
      if (list.empty()) return;
      const auto most =
          std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
      list.back().label = labels.of(std::string(words_for(most->first)), most->first);
      busy.clear();
    };
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      if (program_.instructions[i].stream != stream) continue;
      const Block one = block(i, 0);
      if (list.empty() || !together(before, i, level)) {
        name();
        list.push_back(one);
      } else {
        list.back().end = std::max(list.back().end, one.end);
        ++list.back().count;
        list.back().busy += one.busy;
      }
      busy[pass_of(task_[i])] += one.busy;
      before = i;
    }
    name();
    return list;
  }

  std::size_t count(int level) const {
    std::array<std::size_t, kNumStreams> all{}, sums{};
    std::array<std::int64_t, kNumStreams> before;
    before.fill(-1);
    for (std::size_t i = 0; i < spans_.size(); ++i) {
      const auto stream = static_cast<std::size_t>(program_.instructions[i].stream);
      ++all[stream];
      const int grain = stream == static_cast<std::size_t>(Stream::compute) ? 1 : std::max(1, level);
      sums[stream] += before[stream] < 0 || !together(static_cast<std::size_t>(before[stream]), i, grain);
      before[stream] = static_cast<std::int64_t>(i);
    }
    std::size_t blocks = sums[static_cast<std::size_t>(Stream::compute)];
    for (Stream stream : kDrawn)
      if (level == kFinest || is_drawn(stream, level))
        blocks += (level == kFinest ? all : sums)[static_cast<std::size_t>(stream)];
    return blocks;
  }

  static void add(Json& rows, Json row) {
    if (!row["blocks"].empty()) rows.push_back(std::move(row));
  }

  static Json row(std::string_view stream, bool is_summed, const std::vector<Block>& blocks) {
    Json numbers = Json::array();
    std::int64_t clock = 0;
    for (const Block& one : blocks) {
      numbers.insert(numbers.end(), {one.begin - clock, one.end - one.begin, one.label, one.micro_batch});
      if (is_summed) numbers.insert(numbers.end(), {one.count, one.busy});
      clock = one.end;
    }
    return {{"stream", stream}, {"summed", is_summed}, {"blocks", numbers}};
  }

  const Plan& plan_;
  std::size_t stage_;
  const Role& role_;
  const Program& program_;
  const std::vector<cost::Span>& spans_;
  double step_us_;
  std::vector<Task> task_;
  std::vector<std::int32_t> action_;  // of each instruction: the pass it is in, or follows
  std::array<std::size_t, kCoarsest + 1> sizes_{};
};

// Stages by how long they are at work, and the level of each; -1: left out.
std::vector<int> levels_of(const std::vector<StageDrawing>& stages, std::size_t first, std::size_t most_blocks) {
  const auto shown = [&](std::size_t every) {
    std::vector<int> levels(stages.size(), -1);
    for (std::size_t i = 0; i < stages.size(); ++i)
      if (i % every == 0 || i + 1 == stages.size() || i == first) levels[i] = kCoarsest;
    return levels;
  };
  const auto size = [&](const std::vector<int>& levels) {
    std::size_t all = 0;
    for (std::size_t i = 0; i < stages.size(); ++i) all += levels[i] < 0 ? 0 : stages[i].blocks(levels[i]);
    return all;
  };
  std::vector<int> levels = shown(1);
  for (std::size_t every = 2; size(levels) > most_blocks && every <= stages.size(); ++every) levels = shown(every);
  std::size_t total = size(levels);
  for (int level = kCoarsest - 1; level >= kFinest; --level)
    for (std::size_t k = 0; k < stages.size(); ++k) {
      const std::size_t i = (first + k) % stages.size();
      if (levels[i] != level + 1) continue;
      const std::size_t with = total - stages[i].blocks(level + 1) + stages[i].blocks(level);
      if (with > most_blocks) continue;
      levels[i] = level;
      total = with;
    }
  return levels;
}

}  // namespace

std::string_view name_of(Task task) {
  static constexpr std::array<std::string_view, 10> kNames{"forward", "recompute", "backward", "weight",   "unit",
                                                           "update",  "tensor",    "data",     "pipeline", "copy"};
  return kNames[static_cast<std::size_t>(task)];
}

std::vector<Task> tasks_of(const Plan& plan, std::size_t stage) {
  const Program* step = plan.roles[stage].program(ProgramKind::step);
  CHECK(step != nullptr, "a plan for training has a step");
  std::vector<Task> tasks;
  tasks.reserve(step->instructions.size());
  for (const Issued& issued : step->instructions) {
    if (std::holds_alternative<Launch>(issued.instruction))
      tasks.push_back(task_of(issued.why));
    else if (const auto* collective = std::get_if<Collective>(&issued.instruction))
      tasks.push_back(task_along(plan.mesh, collective->axes));
    else
      tasks.push_back(std::holds_alternative<Exchange>(issued.instruction) ? Task::pipeline : Task::copy);
  }
  return tasks;
}

Json timeline_json(const Plan& plan, const cost::Prediction& prediction, std::size_t most_blocks) {
  std::vector<StageDrawing> stages;
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) stages.emplace_back(plan, stage, prediction);
  const std::vector<int> levels = levels_of(stages, prediction.slowest, most_blocks);
  Labels labels;
  Json drawn = Json::array();
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    if (levels[stage] >= 0) drawn.push_back(stages[stage].draw(levels[stage], labels));
  return {{"step_ns", nanoseconds(prediction.step_us)},
          {"labels", labels.json()},
          {"left_out", std::count(levels.begin(), levels.end(), -1)},
          {"stages", drawn}};
}

}  // namespace trainer::report
