// How errors add up: linearly within a family of kernels, which share a cause; as squares between families and links.
#include "engine/cost/ledger.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "engine/core/op_record.h"
#include "engine/plan/traffic.h"

namespace trainer::cost {
namespace {

// Kernels that err together: each family reaches some share of one limit.
std::size_t family_of(Op op) {
  switch (record(op).work) {
    case WorkClass::product:
    case WorkClass::convolution:
      return 0;
    case WorkClass::attention:
      return 1;
    case WorkClass::none:
    case WorkClass::elements:
    case WorkClass::rows:
    case WorkClass::scalars:
    case WorkClass::own:
    case WorkClass::orthogonalize:
      return 2;
  }
  return 2;
}

}  // namespace

void Ledger::kernel(Op op, double us, const Estimate& estimate) {
  OpSum& sum = ops_[static_cast<std::size_t>(op)];
  ++sum.count;
  sum.us += us;
  sum.by_bound[static_cast<std::size_t>(estimate.bound)] += us;
  spread_[family_of(op)] += us * estimate.spread;
}

void Ledger::communication(Axes axes, int kind, double us, double exposed, double spread) {
  CommunicationSum& sum = communications_[{axes.mask, kind}];
  ++sum.count;
  sum.us += us;
  sum.exposed += exposed;
  sum.shorter += std::min(exposed, us * spread);
  if (exposed > 0) sum.longer += us * spread;
}

double Ledger::half_width(bool longer) const {
  double squares = 0;
  for (double one : spread_) squares += one * one;
  for (const auto& [key, sum] : communications_)
    squares += longer ? sum.longer * sum.longer : sum.shorter * sum.shorter;
  return std::sqrt(squares);
}

std::vector<KernelTime> Ledger::kernels() const {
  std::vector<KernelTime> list;
  for (std::size_t op = 0; op < ops_.size(); ++op) {
    const OpSum& sum = ops_[op];
    if (sum.count == 0) continue;
    const auto bound = std::max_element(sum.by_bound.begin(), sum.by_bound.end()) - sum.by_bound.begin();
    list.push_back({static_cast<Op>(op), sum.count, sum.us, static_cast<Bound>(bound)});
  }
  std::stable_sort(list.begin(), list.end(), [](const KernelTime& a, const KernelTime& b) { return a.us > b.us; });
  return list;
}

std::vector<CommunicationTime> Ledger::communications(const Mesh& mesh) const {
  std::map<std::pair<std::string, std::string>, CommunicationTime> sums;  // axes of one rank leave no trace in a name
  for (const auto& [key, sum] : communications_) {
    const std::string_view kind = key.second == kSend ? "send" : name_of(static_cast<CollectiveKind>(key.second));
    CommunicationTime& one = sums[{axes_text(mesh, Axes{key.first}), std::string(kind)}];
    one.count += sum.count;
    one.total_us += sum.us;
    one.exposed_us += sum.exposed;
  }
  std::vector<CommunicationTime> list;
  for (auto& [name, one] : sums) {
    std::tie(one.axis, one.collective) = name;
    list.push_back(std::move(one));
  }
  const auto by_exposure = [](const CommunicationTime& one) { return std::tuple(-one.exposed_us, -one.total_us); };
  std::stable_sort(list.begin(), list.end(), [&](const CommunicationTime& a, const CommunicationTime& b) {
    return by_exposure(a) < by_exposure(b);
  });
  return list;
}

}  // namespace trainer::cost
