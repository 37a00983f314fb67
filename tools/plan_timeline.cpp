// A stage is drawn at a level of detail: 0, its instructions; 1, what is of one kind within an action is a block; 2, all communication
// within an action is. An action is found by following the schedule along the compute stream.
#include "tools/plan_timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>

#include "engine/core/check.h"
#include "engine/plan/traffic.h"
#include "tools/plan_report.h"

namespace trainer::tools {
namespace {

bool is_gradient(Op op) {
  return (op >= Op::embedding_grad && op <= Op::mse_grad);
}

bool is_weight_gradient(Op op) {
  return op == Op::linear_grad_weight || op == Op::conv2d_grad_weight || op == Op::embedding_grad || op == Op::positions_grad || op == Op::sum_leading;
}

// Follows a stage's launches through its actions, which come in the schedule's order.
class ActionFollower {
 public:
  explicit ActionFollower(const std::vector<Action>& actions) : actions_(actions) {}

  Task next(const Role& role, const Launch& launch) {
    if (launch.micro_batch < 0 || actions_.empty()) return Task::unit;
    const Op op = role.signatures[static_cast<std::size_t>(launch.signature)].op;
    const bool again = !is_gradient(op) && !seen_.insert(key(launch, op)).second;
    const auto is = [&](Action::Kind kind) { return actions_[at_].kind == kind; };
    const auto ended = [&] {
      if (actions_[at_].micro_batch != launch.micro_batch) return true;
      if (is(Action::Kind::forward)) return is_gradient(op) || again;
      return is(Action::Kind::backward_input) && is_weight_gradient(op);
    };
    while (at_ + 1 < actions_.size() && ended()) ++at_;
    if (is(Action::Kind::forward)) return Task::forward;
    if (is(Action::Kind::backward_weight)) return Task::weight;
    return again ? Task::recompute : Task::backward;
  }

 private:
  // Names and micro-batches of a stage are far fewer than 2^28.
  static std::uint64_t key(const Launch& launch, Op op) {
    return (static_cast<std::uint64_t>(launch.name) << 36U) | (static_cast<std::uint64_t>(launch.micro_batch) << 8U) | static_cast<std::uint64_t>(op);
  }

  const std::vector<Action>& actions_;
  std::size_t at_ = 0;
  std::unordered_set<std::uint64_t> seen_;  // forward launches
};

Task task_along(const Mesh& mesh, Axes axes) {
  std::uint8_t mask = 0;
  for (Axis axis : kAxes)
    if (axes.has(axis) && mesh.size(axis) > 1) mask |= Axes::of(axis).mask;
  if (mask == Axes::of(Axis::tensor).mask) return Task::tensor;
  return mask == Axes::of(Axis::pipeline).mask ? Task::pipeline : Task::data;
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
  if (const auto* launch = std::get_if<Launch>(&instruction)) {
    Launch bare = *launch;
    bare.micro_batch = -1;
    return title_of(role, bare);
  }
  if (const auto* collective = std::get_if<Collective>(&instruction)) {
    const std::string axes = axes_text(plan.mesh, collective->axes);
    return title_of(role, instruction) + (axes.empty() ? "" : " over " + axes);
  }
  return title_of(role, instruction);
}

std::string_view words_for(Task task) {
  switch (task) {
    case Task::forward: return "forward";
    case Task::recompute: return "recomputed forward";
    case Task::backward: return "backward";
    case Task::weight: return "weight part of backward";
    case Task::unit: return "packing and sums";
    case Task::update: return "optimizer";
    case Task::tensor: return "collectives over tensor";
    case Task::data: return "collectives over data axes";
    case Task::pipeline: return "messages between stages";
    case Task::copy: return "copies";
  }
  return "";
}

constexpr int kFinest = 0, kCoarsest = 2;
constexpr std::array kDrawn{Stream::compute, Stream::tensor, Stream::communication, Stream::background, Stream::copy};
static_assert(kDrawn.size() == kNumStreams);
// Of a stage whose instructions are summed: the compute stream is drawn as actions, and copies are too small to be seen.
bool is_drawn(Stream stream, int level) { return stream != Stream::compute && (level < kCoarsest || stream != Stream::copy); }

constexpr double kLongestGap = 0.01;  // of the step, within a block: longer waits are to be seen

// One stage at a level of detail.
class StageDrawing {
 public:
  StageDrawing(const Plan& plan, std::size_t stage, const std::vector<Action>& actions, const cost::Prediction& prediction)
      : plan_(plan), stage_(stage), role_(plan.roles[stage]), program_(*role_.program("step")), spans_(prediction.spans[stage]), step_us_(prediction.step_us), task_(task_of(plan, stage, actions)) {
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
  // Passes of micro-batches, as the compute stream has them: recomputation is of its backward, and so is what adds up gradients within it.
  void find_actions() {
    const auto& instructions = program_.instructions;
    std::vector<std::pair<Task, std::int32_t>> pass(instructions.size(), {Task::copy, -2});
    std::size_t before = instructions.size();  // the last launch of a micro-batch
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const auto* launch = std::get_if<Launch>(&instructions[i].instruction);
      if (launch == nullptr) continue;
      pass[i] = {pass_of(task_[i]), launch->micro_batch};
      if (launch->micro_batch < 0) continue;
      if (before < i && pass[before] == pass[i]) std::fill(pass.begin() + static_cast<std::ptrdiff_t>(before), pass.begin() + static_cast<std::ptrdiff_t>(i), pass[i]);
      before = i;
    }
    action_.resize(instructions.size(), 0);
    std::size_t last = 0;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const bool goes_on = i == 0 || pass[i].second == -2 || pass[i] == pass[last];
      action_[i] = i == 0 ? 0 : action_[i - 1] + (goes_on ? 0 : 1);
      if (pass[i].second != -2) last = i;
    }
  }

  static Task pass_of(Task task) { return task == Task::recompute ? Task::backward : task; }

  std::int32_t micro_batch(std::size_t i) const {
    const auto* launch = std::get_if<Launch>(&program_.instructions[i].instruction);
    return launch != nullptr ? launch->micro_batch : -1;
  }

  Block block(std::size_t i, std::int32_t label) const {
    // What waits for another stage is no work: the block begins when bytes move.
    const std::int64_t begin = nanoseconds(spans_[i].begin + spans_[i].waited), end = std::max(begin, nanoseconds(spans_[i].end));
    return {begin, end, label, micro_batch(i), 1, end - begin};
  }

  std::vector<Block> single(Stream stream, Labels& labels) const {
    std::vector<Block> list;
    for (std::size_t i = 0; i < spans_.size(); ++i)
      if (program_.instructions[i].stream == stream) list.push_back(block(i, labels.of(label_of(plan_, role_, program_.instructions[i].instruction), task_[i])));
    return list;
  }

  // Whether instruction i, of the same stream as the one `before`, is drawn in its block.
  bool together(std::size_t before, std::size_t i, int level) const {
    if (action_[before] != action_[i]) return false;
    if (program_.instructions[i].stream == Stream::compute) return spans_[i].begin - spans_[before].end < kLongestGap * step_us_;
    return level >= 2 || task_[before] == task_[i];
  }

  std::vector<Block> summed(Stream stream, int level, Labels& labels) const {
    std::vector<Block> list;
    std::map<Task, std::int64_t> busy;  // of the last block
    std::size_t before = 0;
    const auto name = [&] {
      if (list.empty()) return;
      const auto most = std::max_element(busy.begin(), busy.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
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
      if (level == kFinest || is_drawn(stream, level)) blocks += (level == kFinest ? all : sums)[static_cast<std::size_t>(stream)];
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
  static constexpr std::array<std::string_view, 10> kNames{"forward", "recompute", "backward", "weight", "unit", "update", "tensor", "data", "pipeline", "copy"};
  return kNames[static_cast<std::size_t>(task)];
}

std::vector<Task> task_of(const Plan& plan, std::size_t stage, const std::vector<Action>& actions) {
  const Role& role = plan.roles[stage];
  const Program* step = role.program("step");
  CHECK(step != nullptr, "a plan for training has a step");
  ActionFollower follower(actions);
  std::vector<Task> task;
  task.reserve(step->instructions.size());
  for (const Issued& issued : step->instructions) {
    if (const auto* launch = std::get_if<Launch>(&issued.instruction))
      task.push_back(follower.next(role, *launch));
    else if (const auto* collective = std::get_if<Collective>(&issued.instruction))
      task.push_back(task_along(plan.mesh, collective->axes));
    else
      task.push_back(std::holds_alternative<Exchange>(issued.instruction) ? Task::pipeline : Task::copy);
  }
  for (std::size_t i = task.size(); i-- > 0 && (task[i] == Task::unit || task[i] >= Task::tensor);)
    if (task[i] == Task::unit) task[i] = Task::update;
  return task;
}

Json timeline_json(const Plan& plan, const Schedule& schedule, const cost::Prediction& prediction, std::size_t most_blocks) {
  std::vector<StageDrawing> stages;
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
    stages.emplace_back(plan, stage, schedule.stages[stage], prediction);
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

}  // namespace trainer::tools
