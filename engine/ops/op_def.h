// OpDef: an op's rules: the shapes of its outputs, its parameters, its gradient, how it may be cut over ranks, and what
// it costs. One file an op family; the list is ops.cpp. Its traits, operands and attributes are its record
// (engine/core/op_record.h); kernels are elsewhere (kernels/) and are bound by engine/core/ops.inc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/core/op_record.h"
#include "engine/graph/graph.h"

namespace trainer {

/// A mistake in a graph, thrown by `infer` without its place: the builder adds that. `attribute` names the key to
/// blame, if one.
struct OpMistake {
  std::string message;
  std::string attribute;
};

/// One parameter of an op, as PyTorch shapes it.
struct ParameterDef {
  std::string suffix;  ///< "weight" or "bias"; empty: the parameter has the node's name (parameter)
  Shape shape;
  Init init;  ///< used where the file gives none
};

/// What building one forward node needs. `inputs` are data operands as the file gives them.
struct Inference {
  Attributes attributes;                 ///< of the kernel, completed (bias, packed, kv_heads … made explicit)
  std::vector<ParameterDef> parameters;  ///< operands that follow the data operands
  std::vector<TensorDesc> outputs;       ///< the first is the node's value; others are saved for the gradient
  std::vector<ParameterDef> states{};    ///< f32, operands that follow the parameters (running statistics)
  std::vector<std::string> saved_names;  ///< suffixes of the outputs after the first: "mean", "lse" …
  std::vector<std::string> pieces{};     ///< suffixes of all outputs, where each is a value that the file reads (split)
  bool alias = false;                    ///< the output is the input's memory (reshape, flatten)
  bool reads_inputs = true;  ///< false: the data operands give shapes alone and are none of the kernel's (positions)
};

/// By output of a node, the gradient that reached it; kNone where none did. Only ops whose outputs are all values of
/// the model, such as split, have more than the first: what others save for their gradient has none.
using OutputGradients = std::span<const ValueId>;

/// Adds gradient nodes to a graph under differentiation.
class GradientBuilder {
 public:
  virtual ~GradientBuilder() = default;
  virtual Graph& graph() = 0;
  /// A backward node of `forward`; returns its outputs. `outputs` are described in operand order.
  virtual std::vector<ValueId> node(const Node& forward, Op op, Attributes attributes, std::vector<ValueId> inputs,
                                    std::vector<TensorDesc> outputs) = 0;
  /// The same for a node whose outputs after the first `num_values` are gradients of `parameters`, in order.
  virtual std::vector<ValueId> node_with_gradients(const Node& forward, Op op, Attributes attributes,
                                                   std::vector<ValueId> inputs, std::vector<TensorDesc> outputs,
                                                   std::vector<ValueId> parameters) = 0;
  /// `value` seen in another shape (a reshape node, which launches nothing).
  virtual ValueId alias(const Node& forward, ValueId value, const Shape& shape) = 0;
  /// Whether the gradient of this input is needed at all (an input of the batch needs none).
  virtual bool needed(ValueId value) const = 0;
  /// The dtype of gradients of parameters.
  virtual DType reduce_dtype() const = 0;
};

/// How the step counts and judges what a loss sums up.
struct LossDef {
  Op count;                                     ///< takes the last input of the loss: its targets
  std::vector<std::string> count_attributes{};  ///< those of the loss that `count` takes too
  bool classes = false;                         ///< the first operand holds scores of classes (correct_count applies)
};

/// FLOPs of products (2 per multiply-add) as a model counts them: attention's causal half, and no work that a kernel
/// repeats inside. Elementwise arithmetic is bound by bytes and counts none. Bytes: every operand read or written once.
struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
};

/// An op of an optimizer: what each operand of its kernel is to a unit of parameters. On the way from the gradient to
/// the weights an op may make an update, f32 and as many elements as the master, which ops that follow it change and
/// take.
struct UpdateDef {
  enum class Operand : std::uint8_t {
    // read:
    rate,      ///< f32 [1], of the unit's optimizer
    scalars,   ///< f32 [4] of update_scalars
    applied,   ///< i32 [1] of update_scalars
    gradient,  ///< reduced; as the master lies
    taken,     ///< an update
    // written:
    made,     ///< an update
    working,  ///< there where it is not the master, whose values it gets in any case
    // in place:
    changed,  ///< an update
    master,   ///< where the rank's slice begins is the op's origin
    states,   ///< those of the optimizer's states that the op keeps, each followed by its scales where it has any
  };
  std::vector<Operand> operands{};  ///< in the kernel's order
  std::vector<Op> follows{};        ///< ops whose update this one may take or change; empty: it does neither
  /// False: the op works element by element, and so on any rank's slice. True: on whole matrices. Of a unit it has an
  /// update alone, in place, [parts, elements]: all of it, as `parts` ranks along the axis that cuts its matrices hold
  /// it. It computes the matrices of its attribute `matrices` (engine/core/matrix_list.h) whose owner is its origin,
  /// and makes everything else 0: the sum over the owners is the update.
  bool whole = false;

  bool has(Operand operand) const { return std::find(operands.begin(), operands.end(), operand) != operands.end(); }
};

struct OpDef {
  Op op;
  int min_inputs = 1, max_inputs = 1;  ///< that a graph file gives, without parameters
  /// Shapes and parameters, or a mistake. `compute` is the compute dtype. Only ops of graph files.
  std::function<Inference(const Attributes& given, std::span<const TensorDesc> inputs, DType compute)> infer{};
  /// The gradient with respect to each of node.inputs that is needed (kNone where not), given those of its outputs, of
  /// which at least one is there. Throws nothing. Empty for ops without a gradient (counts) and ops of the backward
  /// pass.
  std::function<std::vector<ValueId>(GradientBuilder& build, const Node& node, OutputGradients output_gradients)>
      gradient{};
  /// Along one axis: the placements of the outputs for those of the inputs (parameters included), of which at least one
  /// is not Replicate, or nothing if it cannot be cut so. Set for every op of a graph, gradients included; the step's
  /// own have none.
  std::function<std::optional<std::vector<Placement>>(const Graph& graph, const Node& node,
                                                      std::span<const Placement> inputs)>
      shard{};
  /// The same where all inputs are Replicate and yet ranks work on different parts, since Call::origin grows by `step`
  /// from one rank of the axis to the next. Empty for ops that have no origin.
  std::function<std::optional<std::vector<Placement>>(const Graph& graph, const Node& node, std::int64_t step)>
      shard_by_origin{};
  /// What of a node has to divide by the ranks of an axis along which its inputs lie so: its name and its number.
  /// Empty: nothing.
  std::function<std::vector<std::pair<std::string, std::int64_t>>(const Node& node, std::span<const Placement> inputs)>
      indivisible{};
  /// Call::origin of a rank of Graph::mesh: where its part begins. Empty: 0.
  std::function<Affine(const Graph& graph, const Node& node)> origin{};
  /// Makes attributes that speak of the whole (heads) those of a rank's kernel. Empty: they are the same.
  std::function<void(const Graph& graph, const Node& node, Attributes& attributes)> localize{};
  /// FLOPs of its kernel. Empty: none.
  std::function<double(const Signature&)> flops{};
  /// In place of `moved` and `flops`, where a kernel does not read or write all of its operands. Empty otherwise.
  std::function<Cost(const Signature&)> cost{};
  /// Where ranks have unequal work, which `flops` counts as the mean: how many times as much the busiest rank has.
  /// Empty: all have the same.
  std::function<double(const Signature&)> busiest{};
  std::optional<LossDef> loss{};                ///< set for losses
  std::optional<UpdateDef> update{};            ///< set for ops of optimizers
  std::vector<std::pair<int, int>> in_place{};  ///< in_place_of its record: definitions() writes it
};

/// The declaration of `op`. Every op has one.
const OpDef& definition(Op op);

/// All declarations, in the order of Op.
std::span<const OpDef> definitions();

Cost cost_of(const Signature& signature);
/// OpDef::busiest, at least 1.
double busiest(const Signature& signature);
/// Every input read, every output written, what is updated or added to both: by the roles of its record.
Cost moved(const Signature& signature);

/// Whether nodes of `op` join ranks (Node::axes) and launch no kernel. `replicate` joins them in its gradient.
inline bool is_collective(Op op) { return has(op, Trait::collective); }

/// The signature of one rank's kernel of `node`.
Signature signature_of(const Graph& graph, const Node& node);
/// Its Call::origin, but for what grows with micro-batches.
Affine origin_of(const Graph& graph, const Node& node);

/// Placements of the outputs of `node` along one axis for those of its inputs: the op's rule, and Replicate where all
/// inputs are. `step` is by how much the kernel's origin grows along the axis. Nothing where the op cannot be cut so.
std::optional<std::vector<Placement>> propagate(const Graph& graph, const Node& node, std::span<const Placement> inputs,
                                                std::int64_t step = 0);
/// The same along `axis` of Graph::mesh, with the specs of the node's inputs; a collective over that axis does what its
/// kind says.
std::optional<std::vector<Placement>> propagate(const Graph& graph, const Node& node, Axis axis);

}  // namespace trainer
