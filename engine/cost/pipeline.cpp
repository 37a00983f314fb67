// The condensed step, and the time of each of its instructions.
#include "engine/cost/pipeline.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/core/check.h"
#include "engine/cost/play.h"
#include "engine/plan/transfers.h"

namespace trainer::cost {
namespace {

using Kind = Action::Kind;

ActionTime sum(const ActionTime& a, const ActionTime& b) {
  const double us = a.us + b.us;
  return {us, a.exposed_us + b.exposed_us, us > 0 ? (a.us * a.spread + b.us * b.spread) / us : 0};
}

ActionTime time_of(const ChunkTimes& chunk, Kind kind) {
  switch (kind) {
    case Kind::forward:
      return chunk.forward;
    case Kind::backward:
      return sum(chunk.backward_input, chunk.backward_weight);
    case Kind::backward_input:
      return chunk.backward_input;
    case Kind::backward_weight:
      return chunk.backward_weight;
  }
  return {};
}

// One stage's instructions: waits between streams are those that the data asks for.
class Condensed {
 public:
  Condensed(const Schedule& schedule, int stage, std::span<const ChunkTimes> chunks, const CostModel& model)
      : schedule_(schedule), stage_(stage), chunks_(chunks), model_(model), actions_(schedule.stages[static_cast<std::size_t>(stage)]) {
    int micro_batches = 0;
    for (const Action& action : actions_) micro_batches = std::max(micro_batches, action.micro_batch + 1);
    made_.assign(2 * static_cast<std::size_t>(micro_batches) * chunks.size(), -1);
    received_ = made_;
    // By number: an action, what is before, the update. Ops tell them apart where times are told apart.
    role_.signatures = {{Op::linear, {}, {}}, {Op::cast, {}, {}}, {Op::update_scalars, {}, {}}};
    role_.programs = {{"step", {}}};
  }

  void make(const std::vector<std::vector<Transfer>>& transfers, const FixedTimes& fixed) {
    launch(1, {fixed.before_us, 0, Bound::latency}, -1);
    for (std::size_t i = 0; i < actions_.size(); ++i) {
      transfer(transfers[i]);
      act(actions_[i]);
    }
    transfer(transfers.back());
    finish(fixed);
  }

  Role role_;
  OwnTimes own_;
  double exposed_us_ = 0;  // inside actions

 private:
  std::int32_t next() const { return static_cast<std::int32_t>(own_.size()); }

  void issue(Issued issued, const Estimate& own) {
    role_.programs.front().instructions.push_back(std::move(issued));
    own_.push_back(own);
  }

  void launch(std::int32_t signature, const Estimate& own, std::int32_t after_communication) {
    Launch one;
    one.signature = signature;
    issue({Stream::compute, std::move(one), {-1, after_communication, -1}}, own);
  }

  std::size_t slot(bool backward, int micro_batch, int chunk) const {
    return (2 * static_cast<std::size_t>(micro_batch) + (backward ? 1 : 0)) * chunks_.size() + static_cast<std::size_t>(chunk);
  }

  void act(const Action& action) {
    const bool backward = action.kind != Kind::forward;
    const std::size_t here = slot(backward, action.micro_batch, action.chunk);
    const ActionTime time = time_of(chunks_[static_cast<std::size_t>(action.chunk)], action.kind);
    exposed_us_ += time.exposed_us;
    launch(0, {time.us, time.spread, Bound::compute}, action.kind == Kind::backward_weight ? -1 : received_[here]);
    if (action.kind != Kind::backward_weight) made_[here] = next() - 1;
  }

  void transfer(const std::vector<Transfer>& transfers) {
    Exchange exchange;
    std::int32_t after = -1;
    for (const Transfer& one : transfers) {
      const int here = one.send == one.backward ? one.boundary + 1 : one.boundary;
      const std::size_t what = slot(one.backward, one.micro_batch, here);
      const ChunkTimes& chunk = chunks_[static_cast<std::size_t>(one.boundary)];
      const Region region{-1, 0, one.backward ? chunk.gradient_bytes : chunk.activation_bytes, 0};
      if (one.send) {
        exchange.sends.push_back({Axis::pipeline, one.peer - stage_, {region}});
        after = std::max(after, made_[what]);
      } else {
        exchange.receives.push_back({Axis::pipeline, one.peer - stage_, {region}});
        received_[what] = next();
      }
    }
    if (!transfers.empty()) issue({Stream::communication, std::move(exchange), {after, -1, -1}}, {});
  }

  // Gradients are reduced, then all stages tell each other the norm.
  void finish(const FixedTimes& fixed) {
    const std::int32_t last = last_launch();
    const auto collective = [&](Axis axis, const Estimate& own) {
      Collective one;
      one.axes = Axes::of(axis);
      issue({Stream::communication, std::move(one), {last, -1, -1}}, own);
    };
    if (fixed.reduce_us > 0) collective(Axis::replicate, {fixed.reduce_us, 0.2, Bound::network});
    collective(Axis::pipeline,
               model_.collective(CollectiveKind::all_reduce, DType::f64, Axes::of(Axis::pipeline), {}, size_of(DType::f64)));
    launch(2, {fixed.update_us, 0.1, Bound::memory}, next() - 1);
  }

  std::int32_t last_launch() const {
    const std::vector<Issued>& step = role_.programs.front().instructions;
    const auto found = std::find_if(step.rbegin(), step.rend(), [](const Issued& issued) { return issued.stream == Stream::compute; });
    return static_cast<std::int32_t>(step.rend() - found) - 1;
  }

  const Schedule& schedule_;
  const int stage_;
  const std::span<const ChunkTimes> chunks_;
  const CostModel& model_;
  const std::vector<Action>& actions_;
  std::vector<std::int32_t> made_, received_;  // by which instruction: a chunk's output, or what comes into it
};

}  // namespace

Prediction predict_pipeline(const Schedule& schedule, std::span<const ChunkTimes> chunks, std::span<const FixedTimes> fixed,
                            const CostModel& model) {
  CHECK(chunks.size() == schedule.stage_of_chunk.size() && fixed.size() == schedule.stages.size(), "times of every chunk and stage");
  const auto transfers = order_transfers(schedule);
  Plan plan;
  plan.mesh = model.cluster().mesh;
  std::vector<OwnTimes> own;
  std::vector<double> exposed;
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
    Condensed condensed(schedule, static_cast<int>(stage), chunks, model);
    condensed.make(transfers[stage], fixed[stage]);
    plan.roles.push_back(std::move(condensed.role_));
    own.push_back(std::move(condensed.own_));
    exposed.push_back(condensed.exposed_us_);
  }
  Prediction prediction = play(plan, model, "step", own);
  for (std::size_t stage = 0; stage < exposed.size(); ++stage) {
    prediction.roles[stage].compute_us -= exposed[stage];
    prediction.roles[stage].exposed_us += exposed[stage];
  }
  return prediction;
}

}  // namespace trainer::cost
