// What a plan's instructions take alone, by the cost model; the play itself is play.cpp.
#include "engine/cost/predict.h"

#include <algorithm>
#include <map>
#include <string>

#include "engine/core/check.h"
#include "engine/cost/play.h"

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
  explicit Clockmaker(const CostModel& model) : model_(model) {}

  OwnTimes of(const Role& role, const Program& program) {
    std::vector<Estimate> kernels;
    for (const Signature& signature : role.signatures) kernels.push_back(model_.kernel(signature));
    OwnTimes times;
    times.reserve(program.instructions.size());
    for (const Issued& issued : program.instructions) {
      if (const auto* launch = std::get_if<Launch>(&issued.instruction))
        times.push_back(kernels[static_cast<std::size_t>(launch->signature)]);
      else
        times.push_back(std::visit([&](const auto& one) { return of(one); }, issued.instruction));
    }
    return times;
  }

 private:
  static Estimate of(const Launch&) { return {}; }
  static Estimate of(const Exchange&) { return {}; }
  Estimate of(const CopyIn& copy) const { return model_.copy(copy.region.region.bytes); }
  Estimate of(const CopyOut& copy) const { return model_.copy(copy.region.region.bytes); }
  Estimate of(const Collective& one) {
    const std::int64_t bytes = std::max(one.input.region.bytes, one.output.region.bytes);
    const auto [found, added] = collectives_.try_emplace(
        {static_cast<std::uint8_t>(one.kind), static_cast<std::uint8_t>(one.dtype), one.axes.mask, one.stages, bytes});
    if (added) found->second = model_.collective(one.kind, one.dtype, one.axes, one.stages, bytes);
    return found->second;
  }

  const CostModel& model_;
  std::map<CollectiveKey, Estimate> collectives_;
};

}  // namespace

Prediction predict(const Plan& plan, const CostModel& model, ProgramKind program) {
  Clockmaker clockmaker(model);
  std::vector<OwnTimes> own;
  for (const Role& role : plan.roles) {
    const Program* const found = role.program(program);
    CHECK(found != nullptr, "a plan without the program " + std::string(name_of(program)));
    own.push_back(clockmaker.of(role, *found));
  }
  return play(plan, model, program, own);
}

}  // namespace trainer::cost
