// How a program goes through its actions: uses of units are listed first, since gathers run ahead of them.
#include "engine/plan/assemble/passes.h"

#include <algorithm>
#include <utility>

#include "engine/core/check.h"

namespace trainer {
namespace {

using For = Provenance::Phase;

For phase_of(Action::Kind kind) {
  switch (kind) {
    case Action::Kind::forward:
      return For::forward;
    case Action::Kind::backward:
      return For::backward;
    case Action::Kind::backward_input:
      return For::backward_input;
    case Action::Kind::backward_weight:
      return For::backward_weight;
  }
  return For::forward;
}

// Of what belongs to a pass.
Provenance why_of(For phase, int micro_batch, int chunk, std::int32_t loop) {
  return {.phase = phase, .chunk = static_cast<std::int16_t>(chunk), .micro_batch = micro_batch, .loop = loop};
}

}  // namespace

Passes::Passes(Emitter& emit, Role& role, const AssembleOptions& options, int stage, const CutGraph& cut,
               EmittedStep& step)
    : emit_(emit),
      role_(role),
      options_(options),
      cut_(cut),
      stage_(stage),
      step_(step),
      actions_(cut.schedule.stages[static_cast<std::size_t>(stage)]) {
  const auto unit_of = [&](const std::string& parameter) { return emit.place(parameter).unit; };
  for (int chunk = 0; chunk < cut.num_chunks(); ++chunk) {
    std::map<Action::Kind, Way>& of_chunk = ways_.emplace_back();
    if (cut.stage_of(chunk) != stage) continue;
    for (auto& [kind, phase] : phases_of(cut, chunk, unit_of)) {
      std::vector<Run> runs = interleave(*cut.graph, phase.nodes, cut.together);
      of_chunk[kind] = {std::move(phase), std::move(runs)};
    }
  }
  find_uses();
  if (options.offload.activations == Space::device) return;
  CHECK(cut.num_chunks() == 1, "activations leave the device in steps without a pipeline");
  CHECK(cut.together == 1, "activations that leave the device have one place, for one micro-batch");
  if (const auto& one = ways_.front(); one.contains(Action::Kind::backward))
    offloaded_ = {*cut.graph, options.offload.activations, one.at(Action::Kind::forward).phase,
                  one.at(Action::Kind::backward).phase};
}

void Passes::run(GraphMemory& memory) {
  const std::vector<std::vector<Transfer>>& transfers = cut_.transfers[static_cast<std::size_t>(stage_)];
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    mark(i);
    emit_.transfer(memory, transfers[i]);
    act(memory, i);
  }
  emit_.transfer(memory, transfers.back());
}

// Instructions at which rounds begin and end.
void Passes::mark(std::size_t action) {
  if (cut_.rounds == nullptr) return;
  const std::vector<Rounds::Repeated>& loops = cut_.rounds->loops[static_cast<std::size_t>(stage_)];
  marks_.resize(loops.size());
  const auto here = static_cast<std::int32_t>(role_.programs.back().instructions.size());
  for (std::size_t i = 0; i < loops.size(); ++i) {
    if (action + loops[i].size == loops[i].first) marks_[i].before = here;
    if (action == loops[i].first) marks_[i].first = here;
    if (action == loops[i].first + loops[i].size) marks_[i].last = here;
  }
}

std::int32_t Passes::loop_of(std::size_t action) const {
  return cut_.rounds == nullptr ? 0 : cut_.rounds->loop_of(static_cast<std::size_t>(stage_), action);
}

const Passes::Way& Passes::way(const Action& action) const {
  return ways_[static_cast<std::size_t>(action.chunk)].at(action.kind);
}

void Passes::act(GraphMemory& memory, std::size_t index) {
  const Action& action = actions_[index];
  share_with_neighbour(memory, action);
  for (const auto& [begin, end, which] : way(action).runs) {
    const auto why = emit_.because(
        why_of(phase_of(action.kind), cut_.first_of(action.micro_batch) + which, action.chunk, loop_of(index)));
    for (std::size_t i = begin; i < end; ++i) run_node(memory, action, i, which);
  }
}

// A unit is open from the first micro-batch that reaches it to the last that leaves it.
void Passes::run_node(GraphMemory& memory, const Action& action, std::size_t i, int which) {
  const Phase& now = way(action).phase;
  const bool first = which == 0, last = which == cut_.together - 1;
  const int micro_batch = cut_.first_of(action.micro_batch) + which;
  if (action.kind == Action::Kind::backward) offloaded_.before_backward(emit_, memory, i, micro_batch);
  if (first)
    for (std::size_t unit : now.opens[i]) open(unit);
  emit_.node(memory, now.nodes[i], micro_batch);
  if (action.kind == Action::Kind::forward) offloaded_.after_forward(emit_, memory, i, micro_batch);
  if (!last) return;
  for (std::size_t unit : now.closes[i]) close(unit);
  for (std::size_t unit : now.completes[i]) complete(unit);
}

// Gathers run ahead: what is first read here was asked for `prefetch` uses ago.
void Passes::open(std::size_t unit) {
  CHECK(uses_[opened_].unit == unit, "uses come in the order in which they were listed");
  current_[unit] = opened_;
  const std::size_t ahead = std::min(uses_.size(), opened_ + 1 + static_cast<std::size_t>(options_.data->prefetch()));
  for (; asked_ < ahead; ++asked_) {
    const Use& use = uses_[asked_];
    const auto why = emit_.because(why_of(For::gather, use.micro_batch, use.chunk, use.loop));
    options_.data->before_use(role_.units[use.unit], {}, step_);
  }
  step_.decode_working(role_.units[unit]);
  ++opened_;
}

void Passes::close(std::size_t unit) {
  const Use& use = uses_[current_[unit]];
  const bool kept = use.next < asked_;
  options_.data->after_use(
      role_.units[unit],
      {.ends_use = !kept, .ends_pass = !kept && use.next_pass == SIZE_MAX, .ends_step = use.next == SIZE_MAX}, step_);
}

void Passes::complete(std::size_t unit) {
  const bool last = --completions_[unit] == 0;
  options_.data->gradient_ready(role_.units[unit], {.last = last}, step_);
  if (last) step_.keep_gradient(role_.units[unit]);
}

// The chunk before may live on this very stage.
void Passes::share_with_neighbour(GraphMemory& memory, const Action& action) {
  const bool forward = action.kind == Action::Kind::forward;
  const int from = forward ? action.chunk - 1 : action.chunk + 1;
  if (action.kind == Action::Kind::backward_weight || from < 0 || from >= static_cast<int>(ways_.size())) return;
  if (cut_.stage_of(from) != stage_) return;
  const Boundary& boundary = cut_.boundaries[static_cast<std::size_t>(std::min(from, action.chunk))];
  for (int which = 0; which < cut_.together; ++which)
    emit_.share(memory, cut_.first_of(action.micro_batch) + which, from, action.chunk,
                forward ? boundary.activations : boundary.gradients);
}

void Passes::find_uses() {
  completions_.assign(role_.units.size(), 0);
  current_.assign(role_.units.size(), 0);
  for (std::size_t index = 0; index < actions_.size(); ++index) {
    const Action& action = actions_[index];
    const Phase& now = way(action).phase;
    for (std::size_t i = 0; i < now.nodes.size(); ++i) {
      for (std::size_t unit : now.opens[i])
        uses_.push_back({unit, cut_.first_of(action.micro_batch), action.chunk, loop_of(index), SIZE_MAX, SIZE_MAX});
      for (std::size_t unit : now.completes[i]) ++completions_[unit];
    }
  }
  std::vector<std::size_t> next(role_.units.size(), SIZE_MAX);
  std::map<std::pair<std::size_t, int>, std::size_t> next_pass;
  for (std::size_t i = uses_.size(); i-- > 0;) {
    Use& use = uses_[i];
    use.next = std::exchange(next[use.unit], i);
    const auto [at, first] = next_pass.try_emplace({use.unit, use.micro_batch}, i);
    if (!first) use.next_pass = std::exchange(at->second, i);
  }
}

}  // namespace trainer
