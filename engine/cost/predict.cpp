// How long each instruction of a plan takes by itself, by the cost model; play.cpp plays them together.
#include "engine/cost/predict.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/parallel.h"
#include "engine/cost/play.h"
#include "engine/plan/loop.h"

namespace trainer::cost {
namespace {

struct CollectiveKey {
  std::uint8_t kind, dtype, axes;
  std::vector<std::int32_t> stages;
  std::int64_t bytes;
  auto operator<=>(const CollectiveKey&) const = default;
};

// Equal kernels and equal collectives are asked for once.
class Clockmaker {
 public:
  // `kernels`: what kernels take of the model's times.
  Clockmaker(const CostModel& model, double kernels) : model_(model), share_(kernels) {}

  OwnTimes of(const Role& role, const Program& program) {
    std::vector<Estimate> kernels;
    for (const Signature& signature : role.signatures) {
      kernels.push_back(model_.kernel(signature));
      kernels.back().us *= share_;
    }
    OwnTimes times;
    times.reserve(program.instructions.size());
    for (const Issued& issued : program.instructions) {
      if (const auto* launch = std::get_if<Launch>(&issued.instruction))
        times.push_back(issued.stream == Stream::host
                            ? model_.on_host(role.signatures[static_cast<std::size_t>(launch->signature)])
                            : kernels[static_cast<std::size_t>(launch->signature)]);
      else
        times.push_back(std::visit([&](const auto& one) { return of(role, one); }, issued.instruction));
    }
    return times;
  }

 private:
  static Estimate of(const Role&, const Launch&) { return {}; }
  static Estimate of(const Role&, const Exchange&) { return {}; }
  Estimate of(const Role&, const CopyIn& copy) const { return model_.copy(copy.region.region.bytes); }
  Estimate of(const Role&, const CopyOut& copy) const { return model_.copy(copy.region.region.bytes); }
  Estimate of(const Role& role, const Move& move) const {
    const bool comes = role.space_of(move.to.region) == Space::device;
    return model_.move(role.space_of(comes ? move.from.region : move.to.region), comes, move.to.region.bytes);
  }
  Estimate of(const Role&, const Collective& one) {
    const std::int64_t bytes = std::max(one.input.region.bytes, one.output.region.bytes);
    const auto [found, added] = collectives_.try_emplace(
        {static_cast<std::uint8_t>(one.kind), static_cast<std::uint8_t>(one.dtype), one.axes.mask, one.stages, bytes});
    if (added) found->second = model_.collective(one.kind, one.dtype, one.axes, one.stages, bytes);
    return found->second;
  }

  const CostModel& model_;
  const double share_;
  std::map<CollectiveKey, Estimate> collectives_;
};

std::vector<const Program*> programs_of(const Plan& plan, ProgramKind program, int part) {
  std::vector<const Program*> programs;
  for (const Role& role : plan.roles) {
    programs.push_back(role.program(program, part));
    CHECK(programs.back() != nullptr, "a plan without the program " + std::string(name_of(program)));
  }
  return programs;
}

std::int32_t passes_of(std::span<const Program* const> programs) {
  std::int32_t passes = 1;
  for (const Program* one : programs) passes = std::max(passes, one->repeats() ? one->loops.front().times : 1);
  return passes;
}

Prediction played(const Plan& plan, const CostModel& model, double kernels, std::span<const Program* const> programs,
                  std::optional<std::size_t> detailed = std::nullopt) {
  Clockmaker clockmaker(model, kernels);
  std::vector<OwnTimes> own;
  for (std::size_t role = 0; role < programs.size(); ++role)
    own.push_back(clockmaker.of(plan.roles[role], *programs[role]));
  return play(plan, model, programs, own, detailed);
}

// With so many passes over each loop.
Prediction played_through(const Plan& plan, const CostModel& model, double kernels,
                          std::span<const Program* const> programs, std::int32_t passes,
                          std::optional<std::size_t> detailed = std::nullopt) {
  std::vector<Program> run(programs.size());
  for_each_index(run.size(), [&](std::size_t i) { run[i] = unrolled(plan.roles[i], *programs[i], passes); });
  std::vector<const Program*> all;
  for (const Program& one : run) all.push_back(&one);
  return played(plan, model, kernels, all, detailed);
}

// Passes between the two plays. The first ones still show how the pipeline filled; later ones may take turns.
constexpr std::int32_t kPasses = 4;

// What loops take, from a play of kPasses passes over each and one of twice as many: every further pass takes as long
// as the mean of the last.
class Extrapolation {
 public:
  explicit Extrapolation(std::int32_t passes) : further_(passes - 2 * kPasses) {}

  Prediction of(Prediction more, const Prediction& few) const {
    for (double Prediction::*time : {&Prediction::step_us, &Prediction::low_us, &Prediction::high_us})
      extend(more.*time, few.*time);
    for (std::size_t role = 0; role < more.roles.size(); ++role)
      for (double RoleTimes::*time : {&RoleTimes::compute_us, &RoleTimes::optimizer_us, &RoleTimes::exposed_us,
                                      &RoleTimes::bubble_us, &RoleTimes::input_us, &RoleTimes::offload_us})
        extend(more.roles[role].*time, few.roles[role].*time);
    extend_each(
        more.communication, few.communication,
        [](const CommunicationTime& a, const CommunicationTime& b) {
          return a.axis == b.axis && a.collective == b.collective;
        },
        [&](CommunicationTime& a, const CommunicationTime& b) {
          extend(a.count, b.count), extend(a.total_us, b.total_us), extend(a.exposed_us, b.exposed_us);
        });
    extend_each(
        more.kernels, few.kernels, [](const KernelTime& a, const KernelTime& b) { return a.op == b.op; },
        [&](KernelTime& a, const KernelTime& b) { extend(a.count, b.count), extend(a.us, b.us); });
    std::stable_sort(more.communication.begin(), more.communication.end(),
                     [](const auto& a, const auto& b) { return a.exposed_us > b.exposed_us; });
    std::stable_sort(more.kernels.begin(), more.kernels.end(),
                     [](const auto& a, const auto& b) { return a.us > b.us; });
    return more;
  }

 private:
  template <typename Number>
  void extend(Number& more, Number few) const {
    more += further_ * (more - few) / kPasses;
  }
  template <typename Time, typename Same, typename Extend>
  static void extend_each(std::vector<Time>& more, const std::vector<Time>& few, const Same& same,
                          const Extend& extend) {
    for (Time& one : more)
      for (const Time& other : few)
        if (same(one, other)) extend(one, other);
  }

  std::int32_t further_;
};

// Where kernels take the share `kernels` of the model's times.
Prediction predicted(const Plan& plan, const CostModel& model, double kernels, ProgramKind program, int part) {
  const std::vector<const Program*> programs = programs_of(plan, program, part);
  const std::int32_t passes = passes_of(programs);
  if (passes == 1) return played(plan, model, kernels, programs);
  Prediction more = played_through(plan, model, kernels, programs, 2 * kPasses);
  more.spans.clear();
  if (passes <= 2 * kPasses) return more;
  const Prediction few = played_through(plan, model, kernels, programs, kPasses, more.slowest);
  return Extrapolation(passes).of(std::move(more), few);
}

// The share of a step in which a rank computes, by the mean of all roles.
double busy(const Prediction& prediction) {
  double sum = 0;
  for (const RoleTimes& role : prediction.roles) sum += role.compute_us + role.optimizer_us;
  return sum / static_cast<double>(prediction.roles.size()) / prediction.step_us;
}

}  // namespace

Prediction predict(const Plan& plan, const CostModel& model, ProgramKind program, int part) {
  Prediction all_at_once = predicted(plan, model, 1, program, part);
  if (plan.roles.size() == 1 || all_at_once.step_us <= 0) return all_at_once;
  const double kernels = model.taking_turns(busy(all_at_once));
  return kernels == 1 ? std::move(all_at_once) : predicted(plan, model, kernels, program, part);
}

}  // namespace trainer::cost
