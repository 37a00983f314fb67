// How a profile is made: nodes are assigned to pieces, then times and live bytes are added up per piece.
#include "engine/cost/profile.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "engine/ops/op_def.h"
#include "engine/plan/assemble/cut_graph.h"

namespace trainer::cost {
namespace {

constexpr std::int32_t kNever = -1;

// Of each node. A backward node belongs to the piece of the forward node whose name it has, or, if none has it, as in a
// ring, to that of the node before it. A loss that is one node with its gradient counts as a forward one. A piece whose
// nodes became part of others by fusion is empty.
std::vector<std::int32_t> assign_pieces(const Graph& graph, const std::vector<std::string>& begins) {
  std::unordered_map<std::string, std::int32_t> by_name, pieces;
  for (std::size_t piece = 0; piece < begins.size(); ++piece)
    pieces.try_emplace(begins[piece], static_cast<std::int32_t>(piece));
  std::int32_t current = 0;
  std::vector<std::int32_t> piece_of(graph.nodes.size());
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const bool backward = node.backward && node.op != Op::cross_entropy_and_grad;
    if (const auto begun = pieces.find(node.name); !backward && begun != pieces.end())
      current = std::max(current, begun->second);
    const auto [at, added] = by_name.try_emplace(node.name, backward && i > 0 ? piece_of[i - 1] : current);
    piece_of[i] = backward ? at->second : current;
    if (!backward) at->second = current;
  }
  return piece_of;
}

class Profiling {
 public:
  Profiling(const Graph& graph, const std::vector<std::string>& begins, const CostModel& model, const Target& target)
      : graph_(graph),
        model_(model),
        target_(target),
        piece_of_(assign_pieces(graph, begins)),
        made_backward_(graph.values.size(), 0) {
    profile_.pieces.resize(std::max<std::size_t>(1, begins.size()));
  }

  Profile run() {
    for (ValueId input : graph_.inputs) profile_.input_bytes += graph_.local(input).bytes();
    parameters();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) time(i);
    memory();
    return std::move(profile_);
  }

 private:
  Piece& piece(std::size_t node) { return profile_.pieces[static_cast<std::size_t>(piece_of_[node])]; }

  void parameters() {
    std::vector<std::int32_t> reader(graph_.values.size(), kNever);
    for (std::size_t i = graph_.nodes.size(); i-- > 0;)
      for (ValueId input : graph_.nodes[i].inputs)
        reader[static_cast<std::size_t>(graph_.storage(input))] = piece_of_[i];
    // Parts of quantized matrices, bytes, count as so many elements of the compute dtype as take their memory.
    std::int64_t width = size_of(DType::f32);
    for (const Parameter& parameter : graph_.parameters)
      if (!parameter.init.quantized) width = std::min(width, size_of(graph_.value(parameter.value).dtype()));
    for (const Parameter& parameter : graph_.parameters) {
      const std::int32_t at = std::max(0, reader[static_cast<std::size_t>(parameter.value)]);
      const std::int64_t held = graph_.local_shape(parameter.value).elements(),
                         elements = parameter.init.quantized ? (held + width - 1) / width : held;
      Piece& piece = profile_.pieces[static_cast<std::size_t>(at)];
      piece.parameters += elements;
      if (parameter.trainable) piece.trained += elements;
      if (!graph_.value(parameter.value).spec.is_cut(Axis::expert)) continue;
      piece.own_parameters += elements;
      if (parameter.trainable) piece.own_trained += elements;
    }
  }

  bool aliases(const Node& node) const { return graph_.is_view(node); }

  Estimate estimate(const Node& node) {
    if (!is_collective(node.op)) return model_.kernel(signature_of(graph_, node));
    const TensorDesc in = graph_.local(node.inputs[0]), out = graph_.local(node.outputs[0]);
    const CollectiveKind kind = node.op == Op::all_reduce   ? CollectiveKind::all_reduce
                                : node.op == Op::shift      ? CollectiveKind::shift
                                : node.op == Op::all_to_all ? CollectiveKind::all_to_all
                                : node.op == Op::all_gather ? CollectiveKind::all_gather
                                                            : CollectiveKind::reduce_scatter;
    return model_.collective(kind, out.dtype, node.axes, {}, std::max(in.bytes(), out.bytes()));
  }

  void time(std::size_t index) {
    const Node& node = graph_.nodes[index];
    for (ValueId output : node.outputs) made_backward_[static_cast<std::size_t>(output)] = node.backward;
    if (aliases(node) || node.op == Op::replicate) return;
    const Estimate estimate = this->estimate(node);
    Piece& piece = this->piece(index);
    if (node.op == Op::shift) {
      travelling_us_ += estimate.us;
      return;
    }
    if (node.op != Op::add) arrive(node, estimate.us, piece);  // sums of a ring are added while its parts travel
    if (is_collective(node.op)) network(node, estimate.us, piece);
    if (is_collective(node.op) && node.recomputed && !made_backward_[static_cast<std::size_t>(node.inputs[0])])
      piece.network_again_us += estimate.us;
    if (node.recomputed && !is_collective(node.op)) piece.recompute_us += estimate.us;
    (!node.backward                 ? piece.forward_us
     : is_weight_part(graph_, node) ? piece.weight_us
                                    : piece.input_us) += estimate.us;
    if (is_weight_part(graph_, node)) piece.adding_us += adding(node) - estimate.us;
  }

  // A ring's parts travel while the block before them computes: what is left of their way counts.
  void arrive(const Node& node, double us, Piece& piece) {
    const bool block = node.op == Op::attention_block || node.op == Op::attention_block_grad;
    const double left = std::exchange(travelling_us_, 0) - (block ? us : 0);
    if (left <= 0) return;
    (node.backward ? piece.input_us : piece.forward_us) += left;
    network(node, left, piece);
  }

  static void network(const Node& node, double us, Piece& piece) {
    piece.network_us += us;
    if (!node.backward) piece.network_forward_us += us;
  }

  // What a kernel takes that adds its gradients to what is there.
  double adding(const Node& node) {
    Signature signature = signature_of(graph_, node);
    signature.attributes.set("accumulate", true);
    return model_.kernel(signature).us;
  }

  // What is read in the backward pass is saved; all else lives from its node to its last reader.
  void memory() {
    const std::size_t n = graph_.nodes.size();
    std::vector<std::int32_t> made(graph_.values.size(), kNever), last(graph_.values.size(), kNever);
    std::vector<char> for_weights(graph_.values.size(), 0);
    for (std::size_t i = 0; i < n; ++i) {
      const bool weight = is_weight_part(graph_, graph_.nodes[i]);
      for (ValueId input : graph_.nodes[i].inputs) {
        last[static_cast<std::size_t>(graph_.storage(input))] = static_cast<std::int32_t>(i);
        if (weight) for_weights[static_cast<std::size_t>(graph_.storage(input))] = 1;
      }
      for (ValueId output : graph_.nodes[i].outputs)
        if (graph_.value(output).kind == ValueKind::activation && graph_.value(output).alias_of == kNone &&
            !graph_.loss.sums_up(output))
          made[static_cast<std::size_t>(output)] = static_cast<std::int32_t>(i);
    }
    std::vector<std::int64_t> own(graph_.values.size(), 0);  // bytes that a value adds to what is alive
    std::vector<std::vector<ValueId>> dies(n);
    std::int64_t alive = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Node& node = graph_.nodes[i];
      const std::int64_t workspace = aliases(node) || is_collective(node.op) || node.op == Op::replicate
                                         ? 0
                                         : target_.workspace_bytes(signature_of(graph_, node));
      for (std::size_t o = 0; o < node.outputs.size(); ++o) {
        const ValueId output = node.outputs[o];
        if (made[static_cast<std::size_t>(output)] != static_cast<std::int32_t>(i)) continue;
        const std::int32_t end = std::max(last[static_cast<std::size_t>(output)], static_cast<std::int32_t>(i));
        const std::int64_t bytes = graph_.local(output).bytes();
        const bool saved = !node.backward && graph_.nodes[static_cast<std::size_t>(end)].backward;
        if (saved) {
          piece(i).saved_bytes += bytes;
          if (!for_weights[static_cast<std::size_t>(output)]) piece(i).freed_bytes += bytes;
          continue;
        }
        if (node.backward && for_weights[static_cast<std::size_t>(output)]) piece(i).handed_bytes += bytes;
        const ValueId source = taken_over(node, static_cast<int>(o), static_cast<std::int32_t>(i), last);
        own[static_cast<std::size_t>(output)] =
            source == kNone ? bytes : std::exchange(own[static_cast<std::size_t>(source)], 0);
        if (source == kNone) alive += bytes;
        dies[static_cast<std::size_t>(end)].push_back(output);
      }
      piece(i).transient_bytes = std::max(piece(i).transient_bytes, alive + workspace);
      for (ValueId dead : dies[i]) alive -= own[static_cast<std::size_t>(dead)];
    }
  }

  // The input whose memory an output reuses, since no later node reads it; kNone: there is none.
  ValueId taken_over(const Node& node, int output, std::int32_t at, const std::vector<std::int32_t>& last) const {
    for (const auto& [in, out] : definition(node.op).in_place) {
      if (out != output || in >= static_cast<int>(node.inputs.size())) continue;
      const ValueId source = graph_.storage(node.inputs[static_cast<std::size_t>(in)]);
      const Value& from = graph_.value(source);
      const bool free = from.kind == ValueKind::activation && last[static_cast<std::size_t>(source)] == at;
      if (free && graph_.local(source).bytes() == graph_.local(node.outputs[static_cast<std::size_t>(output)]).bytes())
        return source;
    }
    return kNone;
  }

  const Graph& graph_;
  const CostModel& model_;
  const Target& target_;
  const std::vector<std::int32_t> piece_of_;  // of each node
  std::vector<char> made_backward_;           // of each value
  Profile profile_;
  double travelling_us_ = 0;  // of shifts that no kernel has waited for yet
};

}  // namespace

std::vector<std::int64_t> boundary_bytes(const Graph& graph, const std::vector<std::string>& begins) {
  const std::vector<std::int32_t> piece_of = assign_pieces(graph, begins);
  std::vector<std::int32_t> from(graph.values.size(), kNever), to(graph.values.size(), kNever);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    if (node.backward) continue;
    for (ValueId input : node.inputs) {
      const auto storage = static_cast<std::size_t>(graph.storage(input));
      if (from[storage] != kNever) to[storage] = piece_of[i];
    }
    for (ValueId output : node.outputs)
      if (graph.value(output).kind == ValueKind::activation && graph.value(output).alias_of == kNone)
        from[static_cast<std::size_t>(output)] = piece_of[i];
  }
  std::vector<std::int64_t> bytes(std::max<std::size_t>(1, begins.size()), 0);
  for (std::size_t value = 0; value < from.size(); ++value)
    for (std::int32_t piece = from[value]; piece != kNever && piece < to[value]; ++piece)
      bytes[static_cast<std::size_t>(piece)] += graph.local(static_cast<ValueId>(value)).bytes();
  return bytes;
}

Profile profile_of(const Graph& graph, const std::vector<std::string>& begins, const CostModel& model,
                   const Target& target) {
  return Profiling(graph, begins, model, target).run();
}

}  // namespace trainer::cost
