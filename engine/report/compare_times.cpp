// How times are compared: instruction by instruction, then added up for all that do the same work on the same shapes.
#include "engine/report/compare_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <variant>

#include "engine/core/check.h"
#include "engine/cost/work.h"
#include "engine/ops/op_def.h"
#include "engine/plan/traffic.h"
#include "engine/report/table.h"

namespace trainer::report {
namespace {

std::string operand_text(const TensorDesc& tensor) {
  std::string sizes;
  for (std::int64_t size : tensor.shape.sizes()) sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
  return fmt::format("{}[{}]", name_of(tensor.dtype), sizes);
}

struct WorkText {
  const Plan& plan;
  const Role& role;

  std::string operator()(const Launch& launch) const {
    const Signature& signature = role.signatures[static_cast<std::size_t>(launch.signature)];
    std::string text(name_of(signature.op));
    for (const TensorDesc& tensor : signature.operands)
      if (tensor.elements() > 1) text += " " + operand_text(tensor);
    return text;
  }
  std::string operator()(const Collective& collective) const {
    const std::int64_t bytes = std::max(collective.input.region.bytes, collective.output.region.bytes);
    return fmt::format("{} {} {}", name_of(collective.kind), axes_text(plan.mesh, collective.axes),
                       bytes_text(static_cast<double>(bytes)));
  }
  std::string operator()(const Exchange& exchange) const {
    std::int64_t sent = 0, received = 0;
    for (const auto& send : exchange.sends) sent += send.region.region.bytes;
    for (const auto& receive : exchange.receives) received += receive.region.region.bytes;
    return fmt::format("exchange of {} and {}", bytes_text(static_cast<double>(sent)),
                       bytes_text(static_cast<double>(received)));
  }
  std::string operator()(const CopyIn& copy) const {
    return "copy_in " + bytes_text(static_cast<double>(copy.region.region.bytes));
  }
  std::string operator()(const CopyOut& copy) const {
    return "copy_out " + bytes_text(static_cast<double>(copy.region.region.bytes));
  }
  std::string operator()(const Move& move) const {
    return (role.space_of(move.to.region) == Space::device ? "fetch " : "store ") +
           bytes_text(static_cast<double>(move.to.region.bytes));
  }
};

// Each operand passes the memory once: what is read and written in place is read, and then written.
double launch_floor_us(const Signature& signature, const cost::DeviceModel& device) {
  const cost::Work work = cost::work_of(signature);
  double bytes = 0;
  for (const TensorDesc& operand : signature.operands) bytes += static_cast<double>(operand.bytes());
  double seconds = device.memory_bandwidth.value > 0 ? bytes / device.memory_bandwidth.value : 0;
  auto peak = device.peak.find(work.dtype);
  // Muon's products are of f32 on CPUs, of bf16 on GPUs.
  if (const auto narrow = device.peak.find(DType::bf16);
      signature.op == Op::muon_orthogonalize && narrow != device.peak.end())
    peak = narrow;
  double rate = peak == device.peak.end() ? 0 : peak->second.value;
  if (cost::multiplies_fp8(signature) && device.fp8_peak) rate = device.fp8_peak->value;
  if (cost::counts_flops(work.name) && rate > 0) seconds = std::max(seconds, work.amount / rate);
  return seconds * 1e6;
}

}  // namespace

std::vector<TimeDifference> compare_times(const Plan& plan, const cost::DeviceModel& device,
                                          const cost::Prediction& prediction, const Meetings& meetings,
                                          const std::vector<RankTrace>& measured) {
  std::map<std::string, TimeDifference> by_work;
  const double share = measured.empty() ? 0 : 1.0 / static_cast<double>(measured.size());
  for (const RankTrace& trace : measured) {
    const Role& role = plan.role_of(trace.rank);
    const std::vector<Issued>& step = role.program(ProgramKind::step)->instructions;
    const std::vector<cost::Span>& spans = prediction.spans[static_cast<std::size_t>(&role - plan.roles.data())];
    CHECK(spans.size() == step.size() && trace.spans.size() == step.size(), "times of every instruction");
    std::map<std::int32_t, TimeDifference*> by_signature;  // naming a launch is slow, and there are many
    std::map<std::int32_t, double> floors;
    for (std::size_t i = 0; i < step.size(); ++i) {
      const auto* launch = std::get_if<Launch>(&step[i].instruction);
      TimeDifference*& known = by_signature[launch == nullptr ? -1 : launch->signature];
      if (launch == nullptr || known == nullptr)
        known = &by_work[std::visit(WorkText{plan, role}, step[i].instruction)];
      const std::int64_t from = begin_together(meetings, measured, trace, i),
                         to = trace.start_ns + trace.spans[i].end_ns;
      known->count += share;
      if (launch != nullptr) {
        const auto [floor, is_new] = floors.try_emplace(launch->signature, 0.0);
        if (is_new)
          floor->second = launch_floor_us(role.signatures[static_cast<std::size_t>(launch->signature)], device);
        known->floor_us += share * floor->second;
      }
      known->predicted_us += share * (spans[i].end - spans[i].begin - spans[i].waited);
      known->measured_us += share * static_cast<double>(std::max<std::int64_t>(0, to - from)) * 1e-3;
    }
  }
  std::vector<TimeDifference> differences;
  for (auto& [work, one] : by_work) {
    one.work = work;
    differences.push_back(std::move(one));
  }
  std::stable_sort(differences.begin(), differences.end(), [](const TimeDifference& a, const TimeDifference& b) {
    return std::abs(a.difference_us()) > std::abs(b.difference_us());
  });
  return differences;
}

std::string differences_text(const std::vector<TimeDifference>& differences, std::size_t most) {
  Table table({"work", "count", "predicted ms", "measured ms", "difference ms", "measured / predicted"});
  TimeDifference rest, all;
  const auto add = [](TimeDifference& sum, const TimeDifference& one) {
    sum.count += one.count;
    sum.predicted_us += one.predicted_us;
    sum.measured_us += one.measured_us;
  };
  const auto row = [&](const TimeDifference& one) {
    table.add({one.work, fmt::format("{:.0f}", one.count), fmt::format("{:.3f}", one.predicted_us * 1e-3),
               fmt::format("{:.3f}", one.measured_us * 1e-3), fmt::format("{:.3f}", one.difference_us() * 1e-3),
               fmt::format("{:.2f}", one.predicted_us > 0 ? one.measured_us / one.predicted_us : 0)});
  };
  for (std::size_t i = 0; i < differences.size(); ++i) {
    add(all, differences[i]);
    if (i < most)
      row(differences[i]);
    else
      add(rest, differences[i]);
  }
  if (differences.size() > most) {
    rest.work = fmt::format("{} others", differences.size() - most);
    row(rest);
  }
  all.work = "all";
  row(all);
  return table.str();
}

}  // namespace trainer::report
