// Emitter: the vocabulary of assembly. Appends buffers, signatures and instructions to one role, and knows where values
// of a graph and parameters of a unit lie (emit_graph.cpp, emit_units.cpp). assemble.cpp decides what a step consists
// of.
#pragma once

#include <array>
#include <map>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/plan/assemble/cut_graph.h"
#include "engine/plan/assemble/fold.h"
#include "engine/plan/assemble/options.h"

namespace trainer {

inline TensorDesc scalar(DType dtype) { return {dtype, Shape{1}}; }
inline TensorDesc flat(DType dtype, std::int64_t elements) { return {dtype, Shape{elements}}; }

/// Where a parameter lies in its unit.
struct ParameterPlace {
  std::size_t unit = 0;
  std::size_t tensor = 0;   ///< of the unit
  std::int64_t offset = 0;  ///< elements
  std::int64_t elements = 0;
};

/// A node's kernel, the same in every micro-batch.
struct PreparedNode {
  NameId name = -1;                                ///< -1: not prepared
  std::array<std::int32_t, 2> signatures{-1, -1};  ///< that writes, that accumulates; -1: not asked for yet
  std::array<std::int64_t, 2> workspaces{};
  std::vector<int> updated{};  ///< inputs that it changes in place: states
};

/// The buffers of one graph's values in one program of one stage. A value has its own buffer in each chunk that it
/// reaches. Memory is for what the stage's own chunks touch, however many others there are.
struct GraphMemory {
  const CutGraph* cut = nullptr;
  const Graph* graph = nullptr;
  std::vector<std::vector<std::int32_t>>
      slots;  ///< [chunk][storage value]: its slot in a micro-batch; -1: the chunk does not touch it
  std::size_t num_slots = 0;
  std::vector<BufferId> values;               ///< [micro-batch · num_slots + slot]
  std::vector<BufferId> fields;               ///< of each graph input, all micro-batches; of each state
  std::vector<const ParameterPlace*> places;  ///< of each value that is a parameter of this stage
  std::vector<NameId> names;                  ///< of each value, once asked for; -1
  std::vector<PreparedNode> prepared;         ///< of each node
  BufferId seed = -1, step = -1, position = -1, loss = -1, figures = -1;
  std::vector<ValueId> begun;  ///< sums over micro-batches that a kernel has written: the next adds

  /// REQUIRES: the stage's chunk touches the value.
  BufferId& held(ValueId storage, int micro_batch, int chunk);
  /// -1 where there is none.
  BufferId held(ValueId storage, int micro_batch, int chunk) const;
};

class Emitter {
 public:
  Emitter(Role& role, const AssembleOptions& options, int stage) : role_(role), options_(options), stage_(stage) {}

  // ---- Of any program ----

  NameId name(const std::string& text);
  BufferId buffer(const std::string& text, Category category, std::int64_t bytes, std::int32_t micro_batch = -1) {
    return buffer(name(text), category, bytes, micro_batch, -1);
  }
  BufferId buffer(NameId name, Category category, std::int64_t bytes, std::int32_t micro_batch, int chunk);
  /// Of every buffer: whom it succeeds from round to round.
  const std::vector<Succession>& successions() const { return successions_; }
  BufferId persistent(const std::string& name, Category category, std::int64_t bytes, Space space = Space::device);
  /// A persistent buffer off the device for activations of this name, the same in every program.
  BufferId place_of_activation(const std::string& name, std::int64_t bytes, Space space);
  /// Of `parts` parts, one after the other.
  std::int32_t field(const std::string& name, Field::Kind kind, const Spec& part, int parts = 1);
  Region whole(BufferId id) const { return {id, 0, role_.buffer(id).bytes}; }

  /// Why instructions are issued, until the scope ends.
  class Because {
   public:
    Because(Emitter& emit, const Provenance& why) : emit_(emit), before_(std::exchange(emit.why_, why)) {}
    Because(const Because&) = delete;
    Because& operator=(const Because&) = delete;
    ~Because() { emit_.why_ = before_; }

   private:
    Emitter& emit_;
    const Provenance before_;
  };
  const Provenance& why() const { return why_; }
  [[nodiscard]] Because because(const Provenance& why) { return {*this, why}; }
  /// About a unit, in the pass at hand, if there is one.
  [[nodiscard]] Because because(Provenance::Phase phase, const Unit& unit);

  void begin_program(ProgramKind kind);
  void issue(Stream stream, Instruction instruction);
  /// Where a group's collectives are issued: those along the data axes alone behind the others' back, where the device
  /// can.
  Stream stream_of(Axes axes) const;
  /// Launches a kernel; allocates its workspace. `operands` match the signature's.
  void launch(const std::string& name, const Signature& signature, std::vector<Operand> operands,
              const Affine& origin = {});
  /// The same of a kernel without a workspace, on the processor of the device's host.
  void launch_on_host(const std::string& name, const Signature& signature, std::vector<Operand> operands,
                      const Affine& origin);
  void zero(const std::string& name, const Region& region);
  void copy(const std::string& name, DType dtype, const Region& from, const Region& to);
  /// An all-reduce of `region` (elements of `dtype`) over `axes`, of the pipeline's stages over `stages` (empty: all),
  /// if that is more than one rank.
  void all_reduce(const std::string& name, DType dtype, Axes axes, const Region& region,
                  const std::vector<std::int32_t>& stages = {});
  void collective(const std::string& name, CollectiveKind kind, DType dtype, Axes axes, const Region& input,
                  const Region& output, int dim = -1);

  // ---- Units ----

  /// The stage's units get their persistent buffers, and each parameter its place.
  void make_units(std::vector<Unit> units);
  const ParameterPlace& place(const std::string& parameter) const;
  /// Whole working copy, as it is now.
  bool has_working(const Unit& unit) const;
  BufferId working(const Unit& unit) const { return state(unit).working; }  ///< -1: there is none
  void set_working(const Unit& unit, BufferId buffer);                      ///< -1: gone
  /// The whole gradient; made, its padding zeroed, at the first gradient that is written.
  BufferId gradient(const Unit& unit);
  /// Zeroes what no node has written yet: a schedule that splits the backward may leave parts to another reduction.
  void complete_gradient(const Unit& unit);
  /// The next gradient begins anew, in memory of its own.
  void drop_gradient(const Unit& unit);

  /// A persistent f32 buffer of the unit's strategy, as large as its master; made when it is first asked for.
  Region strategy_copy(const Unit& unit, const std::string& name);

  // ---- Values of a graph ----

  /// Prepares a graph's values in the current program, its batch copied in.
  GraphMemory enter(const CutGraph& cut);
  /// Emits one node of one micro-batch.
  void node(GraphMemory& memory, NodeId id, int micro_batch);
  /// Region of a value in a chunk, where it has been computed or received, or of an input.
  Region region(const GraphMemory& memory, ValueId id, int micro_batch, int chunk) const;
  /// Passes values across boundaries, all in one exchange, so that what comes and what goes travel at once.
  void transfer(GraphMemory& memory, const std::vector<Transfer>& transfers);
  /// The same inside a stage: the other chunk reads the very buffers.
  void share(GraphMemory& memory, int micro_batch, int from, int to, const std::vector<ValueId>& values);

 private:
  // What a unit has at this point of a program.
  struct UnitState {
    BufferId working = -1;
    BufferId gradient = -1;
    std::vector<bool> written;  // of each tensor: its gradient holds a contribution
  };

  UnitState& state(const Unit& unit) { return states_[static_cast<std::size_t>(&unit - role_.units.data())]; }
  const UnitState& state(const Unit& unit) const {
    return states_[static_cast<std::size_t>(&unit - role_.units.data())];
  }
  std::int32_t signature_index(const Signature& signature);
  void append_launch(NameId name, std::int32_t signature, std::int64_t workspace, std::vector<Operand> operands,
                     const Affine& origin, Stream stream = Stream::compute);
  void make_slots(Unit& unit);
  void make_states(Unit& unit, const UnitLayout& layout);
  Region persistent(const Unit& unit, const std::string& name, Category category, const Format& format,
                    std::int64_t elements, Space space = Space::device);
  bool first_gradient(const ParameterPlace& at);
  void assign_slots(GraphMemory& memory) const;
  NameId value_name(GraphMemory& memory, ValueId id);
  const PreparedNode& prepare(GraphMemory& memory, NodeId id);
  std::size_t prepare(GraphMemory& memory, NodeId id, bool counts, bool add);
  BufferId state(const GraphState& state, const Value& value, std::int64_t bytes);
  BufferId scalar_in(const Graph& graph, ValueId id);
  BufferId output_buffer(GraphMemory& memory, NodeId id, int output, int micro_batch);
  bool prepare_gradients(const GraphMemory& memory, const Node& node);
  void collective_node(GraphMemory& memory, NodeId id, int micro_batch);
  Affine origin(const Graph& graph, const Node& node, int micro_batch) const;

  Role& role_;
  const AssembleOptions& options_;
  const int stage_;
  Provenance why_;
  std::unordered_map<std::string, NameId> names_;
  std::unordered_multimap<std::uint64_t, std::int32_t> signatures_;  // by hash
  std::unordered_map<std::string, ParameterPlace> places_;
  std::vector<UnitState> states_;        // of each unit
  std::vector<Succession> successions_;  // of each buffer
  std::map<std::tuple<std::int32_t, NameId, int>, std::pair<std::int32_t, std::int32_t>>
      lines_;  // program, name, chunk: number, buffers so far
};

}  // namespace trainer
