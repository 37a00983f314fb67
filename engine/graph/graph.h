// Graph: a model as static single assignment. Nodes stand in topological order over values with concrete
// shapes; the batch and the sequence are known when a job is compiled. A graph is built forward, then
// differentiated in place: backward nodes follow the forward ones. Every value is written by one node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/attributes.h"
#include "engine/core/op.h"
#include "engine/core/quantized.h"
#include "engine/core/signature.h"
#include "engine/core/spec.h"

namespace trainer {

using ValueId = std::int32_t;
using NodeId = std::int32_t;
inline constexpr std::int32_t kNone = -1;

enum class ValueKind : std::uint8_t {
  input,       ///< a field of the batch
  scalar,      ///< one element that the step provides: `seed` and `step` of the graph
  parameter,   ///< in the compute dtype (the working copy)
  activation,  ///< whatever a node computes, gradients of activations included
  gradient,    ///< one node's contribution to the gradient of `parameter`, in the reduce dtype
  state,       ///< stays from one run to the next; nodes whose operand is an update change it in place
};

struct Value {
  std::string name;  ///< "h.0.attn.c_attn", "h.0.attn.c_attn.weight", "h.0.attn.c_attn.grad" …
  Spec spec{};       ///< of the model, and how it lies over Graph::mesh
  ValueKind kind = ValueKind::activation;
  ValueId alias_of = kNone;   ///< reshape, flatten: the same memory as that value (never itself an alias), other shape
  ValueId parameter = kNone;  ///< of a gradient: the parameter it belongs to

  DType dtype() const { return spec.dtype(); }
  /// Of all ranks together, as `desc` is.
  const Shape& shape() const { return spec.whole; }
  TensorDesc desc() const { return {dtype(), shape()}; }
};

/// Where in a file a node was written, for errors. Line 0: made by the program.
struct Origin {
  std::string file{};
  int line = 0;
  int column = 0;
};

/// What the file asks for a linear under tensor parallelism; read by tensor strategies, unknown to kernels.
enum class Parallel : std::uint8_t { none, column, row };

/// A node whose output is an alias (reshape, flatten) computes nothing and launches no kernel. One without outputs is
/// there for the states that it changes.
struct Node {
  std::string name;  ///< path in the graph file, "h.0.attn.c_attn"; of a gradient node the name of its forward node
  Op op = Op::zero;
  Attributes attributes{};         ///< those of kernels/README.md, without `accumulate` (the plan decides that)
  std::vector<ValueId> inputs{};   ///< in the operand order of kernels/README.md
  std::vector<ValueId> outputs{};  ///< likewise; inputs and outputs together are the operands
  std::int32_t block = kNone;      ///< index in Graph::blocks of the innermost block
  bool backward = false;           ///< belongs to the backward pass (gradients, and forward nodes recomputed in it)
  bool recomputed = false;         ///< a copy of a forward node inside the backward pass
  Parallel parallel = Parallel::none;
  std::int32_t chunk = 0;  ///< of the pipeline
  Axes axes{};             ///< of a collective: over whose ranks
  Axes once{};  ///< of what all ranks along these axes have alike, only the first adds its share: the output is Partial
  Origin origin{};
};

/// A node of `op` that stands where `like` does: in its block and chunk, with its place in the file.
Node node_like(const Node& like, std::string name, Op op);

/// One instance of a block: a group of nodes that repeats or has a kind. Wrap policies and recomputation speak of
/// blocks.
struct Block {
  std::string name;             ///< "h.3"
  std::string kind;             ///< "TransformerBlock"; empty where the file gives no `block`
  std::int32_t parent = kNone;  ///< the block around it
};

/// How a parameter starts: at N(constant, stddev²), at U(−uniform, uniform) around the constant, at the constant
/// itself, or as a table of sinusoids. At most one of stddev and uniform is above 0, and with sinusoids none.
struct Init {
  double stddev = 0;
  double constant = 0;
  double uniform = 0;
  bool sinusoids = false;     ///< of a matrix: row p is sin(p·f_j) and behind them cos(p·f_j), f from 1 to 1/10000
  std::string norms_of{};     ///< the norm of each row of this parameter, which is loaded before
  std::string copy_of{};      ///< this parameter as it starts
  QuantizedPart quantized{};  ///< it holds a part of a matrix that is loaded
};

struct Parameter {
  ValueId value = kNone;  ///< its name is the parameter's name in checkpoints
  Init init;
  bool trainable = true;  ///< false: frozen. Set before differentiation, which makes no gradient of it
  bool fixed = false;     ///< by the graph file: not trained unless a job names it
};

/// What stays from one run to the next beside parameters. With an initial value it belongs to the model, like running
/// statistics: it is loaded and saved with the parameters. Without one it is a cache.
struct GraphState {
  ValueId value = kNone;  ///< its name is the state's name in checkpoints
  std::optional<double> initial{};
};

/// What the loss of the graph is and how it is counted.
struct Loss {
  ValueId sum = kNone;      ///< f64 [1]: the sum over the counted targets
  ValueId targets = kNone;  ///< the operand of `count_op`
  Op count_op = Op::cross_entropy_count;
  Attributes count_attributes;
  ValueId scores = kNone;  ///< first operand of `correct_op`: logits, or what stands for them; kNone for a regression
  Op correct_op = Op::correct_count;
  Attributes correct_attributes;
  /// f64, one behind the other [names + 1]: sums that are told beside the loss, and last what they are divided by.
  std::vector<ValueId> figures;
  std::vector<std::string> figure_names;
  ValueId auxiliary = kNone;    ///< f64 [1]: the sum of a second loss, which is trained too; one of the figures
  double auxiliary_weight = 0;  ///< the objective is (sum + auxiliary_weight · auxiliary) / count

  /// Whether a value is a sum over micro-batches.
  bool sums_up(ValueId value) const {
    return value != kNone && (value == sum || std::ranges::find(figures, value) != figures.end());
  }
};

struct Graph {
  std::string name;
  Mesh mesh;  ///< over which the values lie
  std::vector<Value> values;
  std::vector<Node> nodes;  ///< forward, then backward; topological
  std::vector<Block> blocks;
  std::vector<ValueId> inputs;  ///< fields of the batch, by the file's order; names are the data's field names
  std::vector<Parameter> parameters;
  std::vector<GraphState> states;  ///< graphs of one plan share those of one name
  ValueId seed =
      kNone;  ///< f32 [1]: d(objective)/d(loss sum), read by the gradient of the loss; kNone without a backward pass
  ValueId step = kNone;      ///< i32 [1]: the number of the step, read by dropout; kNone without dropout
  ValueId position = kNone;  ///< i32 [1]: of the first of the new tokens, in a graph of generation
  Loss loss;                 ///< sum is kNone in a graph built for its outputs alone (sampling)
  ValueId logits = kNone;    ///< the output named `logits`, where the file has one

  ValueId add_value(Value value);
  const Value& value(ValueId id) const { return values[static_cast<std::size_t>(id)]; }
  Value& value(ValueId id) { return values[static_cast<std::size_t>(id)]; }
  /// Whether a node's output is an alias.
  bool is_view(const Node& node) const {
    return !node.outputs.empty() && value(node.outputs.front()).alias_of != kNone;
  }
  /// One rank's part of a value.
  Shape local_shape(ValueId id) const { return trainer::local_shape(value(id).spec, mesh); }
  TensorDesc local(ValueId id) const { return {value(id).dtype(), local_shape(id)}; }
  /// The value whose memory `id` uses: itself, or what it is an alias of.
  ValueId storage(ValueId id) const { return value(id).alias_of == kNone ? id : value(id).alias_of; }
  /// The block around `block` that is in no other; kNone of kNone.
  std::int32_t outermost(std::int32_t block) const;
  /// What is read of the graph when it has run: the loss, what is told beside it, scores, logits. Without what it
  /// lacks.
  std::vector<ValueId> outputs() const;
  /// Number of elements of all parameters; of a quantized matrix those of the matrix.
  std::int64_t num_parameters() const;
};

/// One line a value and a node, for people and for goldens.
std::string print(const Graph& graph);

}  // namespace trainer
