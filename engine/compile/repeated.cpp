// Two pieces are alike if their nodes are, one by one: the same op on values of the same specs, made at the same place
// inside the piece, or handed over at the same place by the piece before, or by both taken from one and the same value
// further up. A run has a period where its blocks take turns (Gemma 3: five with a window, one without): each piece is
// like the one a period before it.
#include "engine/compile/repeated.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/core/index.h"

namespace trainer {
namespace {

constexpr std::size_t kBorder = 2;  // pieces at the end of a run that stay; at its begin as many periods
constexpr std::size_t kLongestPeriod = 8;

struct Place {
  int piece = -1;  // -1: made by no node
  std::size_t node = 0, output = 0;
};

class Pieces {
 public:
  Pieces(const Graph& graph, const std::vector<std::string>& begins)
      : graph_(graph), places_(graph.values.size()), parameters_(graph.values.size(), nullptr) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      if (first_.size() < begins.size() && graph.nodes[i].name == begins[first_.size()]) first_.push_back(i);
      for (std::size_t output = 0; output < graph.nodes[i].outputs.size(); ++output)
        places_[at(graph.nodes[i].outputs[output])] = {static_cast<int>(first_.size()) - 1,
                                                       first_.empty() ? i : i - first_.back(), output};
    }
    first_.push_back(graph.nodes.size());
    for (const Parameter& parameter : graph.parameters) parameters_[at(parameter.value)] = &parameter;
  }

  std::size_t count() const { return first_.size() - 1; }
  std::size_t size(std::size_t piece) const { return first_[piece + 1] - first_[piece]; }
  const Node& node(std::size_t piece, std::size_t index) const { return graph_.nodes[first_[piece] + index]; }
  const Place& place(ValueId id) const { return places_[at(id)]; }

  /// Whether `piece` does what the one `period` pieces before it does.
  bool repeats(std::size_t piece, std::size_t period) const {
    if (size(piece) != size(piece - period) || !is_block(piece) || !is_block(piece - period)) return false;
    for (std::size_t i = 0; i < size(piece); ++i)
      if (!alike(piece, period, node(piece - period, i), node(piece, i))) return false;
    return true;
  }

  /// The end of the longest run from `first` on in which every piece is like the one `period` before it.
  std::size_t end_of_run(std::size_t first, std::size_t period) const {
    std::size_t last = std::min(first + period, count());
    while (last < count() && repeats(last, period)) ++last;
    return last;
  }

 private:
  bool is_block(std::size_t piece) const { return node(piece, 0).block != kNone; }

  bool alike(std::size_t piece, std::size_t period, const Node& before, const Node& now) const {
    if (before.op != now.op || !(before.attributes == now.attributes) || before.inputs.size() != now.inputs.size() ||
        before.outputs.size() != now.outputs.size() || before.parallel != now.parallel || !(before.axes == now.axes) ||
        !(before.once == now.once) || kind_of(before) != kind_of(now))
      return false;
    for (std::size_t i = 0; i < now.outputs.size(); ++i)
      if (!same_spec(before.outputs[i], now.outputs[i])) return false;
    for (std::size_t i = 0; i < now.inputs.size(); ++i)
      if (!alike(piece, period, before.inputs[i], now.inputs[i])) return false;
    return true;
  }

  bool alike(std::size_t piece, std::size_t period, ValueId before, ValueId now) const {
    if (before == now) return parameters_[at(now)] == nullptr;  // a parameter of both would be counted once
    if (!same_spec(before, now)) return false;
    if (graph_.value(now).kind == ValueKind::state) return true;  // each has its own
    const Parameter *mine = parameters_[at(before)], *its = parameters_[at(now)];
    if (mine != nullptr || its != nullptr)
      return mine != nullptr && its != nullptr && mine->trainable == its->trainable;
    const Place &a = place(before), &b = place(now);
    if (b.piece < 0) return false;
    const bool inside = b.piece == static_cast<int>(piece), handed = b.piece == static_cast<int>(piece) - 1,
               apart = a.piece == b.piece - static_cast<int>(period);
    if (inside) return apart && a.node == b.node && a.output == b.output;
    // What comes into the first piece of a run comes from elsewhere.
    return handed && (!apart || (a.node == b.node && a.output == b.output) ||
                      size(static_cast<std::size_t>(b.piece)) != size(static_cast<std::size_t>(a.piece)));
  }

  const std::string& kind_of(const Node& node) const {
    static const std::string none;
    const std::int32_t block = graph_.outermost(node.block);
    return block == kNone ? none : graph_.blocks[at(block)].kind;
  }
  bool same_spec(ValueId a, ValueId b) const {
    return graph_.value(a).spec == graph_.value(b).spec && graph_.value(a).kind == graph_.value(b).kind &&
           (graph_.value(a).alias_of == kNone) == (graph_.value(b).alias_of == kNone);
  }

  const Graph& graph_;
  std::vector<std::size_t> first_;  // nodes
  std::vector<Place> places_;       // of values
  std::vector<const Parameter*> parameters_;
};

}  // namespace

std::vector<int> stand_ins_of(const Graph& graph, const std::vector<std::string>& begins) {
  const Pieces pieces(graph, begins);
  std::vector<int> result(begins.size());
  std::iota(result.begin(), result.end(), 0);
  if (pieces.count() != begins.size()) return result;
  for (std::size_t first = 0; first < pieces.count();) {
    std::size_t last = first + 1, period = 1, whole = 0;  // whole periods that need not be looked at
    for (std::size_t one = 1; one <= kLongestPeriod && first + one < pieces.count(); ++one) {
      const std::size_t end = pieces.end_of_run(first, one), kept = kBorder * one + kBorder;
      const std::size_t spared = end - first > kept ? (end - first - kept) / one : 0;
      if (spared * one > whole * period) last = end, period = one, whole = spared;
    }
    const std::size_t second = first + period, third = second + period;
    for (std::size_t i = third; i < third + whole * period; ++i)
      result[i] = static_cast<int>(second + (i - first) % period);
    first = last;
  }
  return result;
}

}  // namespace trainer
