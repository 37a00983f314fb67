// Emitter: the vocabulary of assembly. Appends buffers, signatures and instructions to one role, and knows where values of
// a graph and parameters of a unit lie. What a step consists of is assemble.cpp's to say.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/plan/assemble.h"
#include "engine/plan/transfers.h"

namespace trainer {

/// Where a parameter lies in its unit.
struct ParameterPlace {
  std::size_t unit = 0;
  std::int64_t offset = 0;  ///< elements
  std::int64_t elements = 0;
};

/// The buffers of one graph's values in one program of one stage. A value has its own buffer in each chunk that it reaches.
struct GraphMemory {
  const Graph* graph = nullptr;
  int num_chunks = 1;
  std::vector<std::int32_t> position;         ///< of each node: its place in the order of emission within a micro-batch
  std::vector<std::int32_t> last_use;         ///< of each storage value: the position of its last reader; kKept: not to be overwritten
  std::vector<std::vector<BufferId>> values;  ///< [micro-batch · chunks + chunk][storage value]
  std::vector<BufferId> fields;               ///< of each graph input, all micro-batches
  BufferId seed = -1, step = -1, loss = -1;
  bool loss_written = false;

  static constexpr std::int32_t kKept = 0x7FFFFFFF;
  BufferId& held(ValueId storage, int micro_batch, int chunk) {
    return values[static_cast<std::size_t>(micro_batch * num_chunks + chunk)][static_cast<std::size_t>(storage)];
  }
  BufferId held(ValueId storage, int micro_batch, int chunk) const { return const_cast<GraphMemory*>(this)->held(storage, micro_batch, chunk); }
};

class Emitter {
 public:
  Emitter(Role& role, const AssembleOptions& options, int stage) : role_(role), options_(options), stage_(stage) {}

  // ---- Of any program ----

  NameId name(const std::string& text);
  BufferId buffer(const std::string& name, Category category, std::int64_t bytes, std::int32_t micro_batch = -1);
  BufferId persistent(const std::string& name, Category category, std::int64_t bytes);
  std::int32_t field(const std::string& name, std::int64_t bytes);
  Region whole(BufferId id) const { return {id, 0, role_.buffer(id).bytes, 0}; }

  void begin_program(const std::string& name);
  void issue(Stream stream, Instruction instruction);
  /// Launches a kernel; allocates its workspace. `operands` match the signature's.
  void launch(const std::string& name, const Signature& signature, std::vector<Operand> operands, std::int32_t micro_batch = -1, const Affine& origin = {});
  void zero(const std::string& name, const Region& region);
  void copy(const std::string& name, DType dtype, const Region& from, const Region& to);
  /// An all-reduce of `region` (elements of `dtype`) over `axes`, of the pipeline's stages over `stages` (empty: all), if that is more
  /// than one rank.
  void all_reduce(const std::string& name, DType dtype, Axes axes, const Region& region, const std::vector<std::int32_t>& stages = {});
  void collective(const std::string& name, CollectiveKind kind, DType dtype, Axes axes, const Region& input, const Region& output);

  // ---- Units ----

  /// The stage's units, their persistent buffers, and where each parameter lies.
  void make_units(const Graph& graph);
  const ParameterPlace& place(const std::string& parameter) const;
  /// Whole working copy, as it is now. REQUIRES: it is there.
  bool has_working(const Unit& unit) const;
  void set_working(const Unit& unit, BufferId buffer);  ///< -1: gone, and with it what was packed of it
  /// Renews the packed weights made from a persistent working copy.
  void pack_unit(const Unit& unit);
  std::size_t num_packed() const { return packed_.size(); }
  /// The whole gradient; made, its padding zeroed, at the first gradient that is written.
  BufferId gradient(const Unit& unit);
  /// Zeroes what no node has written yet: a schedule that splits the backward may leave parts to another reduction.
  void complete_gradient(const Unit& unit);
  /// The next gradient begins anew, in memory of its own.
  void drop_gradient(const Unit& unit);

  /// A persistent f32 buffer of the unit's strategy, as large as its master; made when it is first asked for.
  Region strategy_copy(const Unit& unit, const std::string& name);

  // ---- Values of a graph ----

  /// Prepares a graph's values for `micro_batches` instances in the current program, its batch copied in. `crossing` values are read by
  /// other stages too.
  GraphMemory enter(const Graph& graph, int micro_batches, const std::vector<Boundary>& crossing, bool splits_backward);
  /// Emits one node of one micro-batch.
  void node(GraphMemory& memory, NodeId id, int micro_batch);
  /// Region of a value in a chunk, where it has been computed or received, or of an input.
  Region region(const GraphMemory& memory, ValueId id, int micro_batch, int chunk) const;
  /// Passes values across boundaries, all in one exchange, so that what comes and what goes travel at once.
  void transfer(GraphMemory& memory, const std::vector<Transfer>& transfers, const std::vector<Boundary>& boundaries);
  /// The same inside a stage: the other chunk reads the very buffers.
  void share(GraphMemory& memory, int micro_batch, int from, int to, const std::vector<ValueId>& values);

 private:
  struct Packed {
    std::string parameter;
    Layout layout;
    BufferId buffer;
    std::size_t unit;
    TensorDesc plain;
  };
  // What a unit has at this point of a program.
  struct UnitState {
    BufferId working = -1;
    BufferId gradient = -1;
    std::unordered_set<std::string> written;  // parameters whose gradient holds a contribution
    std::map<std::pair<std::string, Layout>, BufferId> packed;  // of a gathered copy
  };

  UnitState& state(const Unit& unit) { return states_[static_cast<std::size_t>(&unit - role_.units.data())]; }
  const UnitState& state(const Unit& unit) const { return states_[static_cast<std::size_t>(&unit - role_.units.data())]; }
  std::int32_t signature_index(const Signature& signature);
  Region weight(const GraphMemory& memory, ValueId id, Signature& signature, int operand);
  BufferId packed(const Value& value, Layout layout);
  void pack(const TensorDesc& plain, const ParameterPlace& at, const std::string& parameter, Layout layout, BufferId to);
  BufferId output_buffer(GraphMemory& memory, NodeId id, int output, int micro_batch);
  bool prepare_gradients(const GraphMemory& memory, const Node& node);
  void collective_node(GraphMemory& memory, NodeId id, int micro_batch);
  Affine origin(const Graph& graph, const Node& node, int micro_batch) const;

  Role& role_;
  const AssembleOptions& options_;
  const int stage_;
  std::unordered_map<std::string, NameId> names_;
  std::unordered_multimap<std::uint64_t, std::int32_t> signatures_;  // by hash
  std::unordered_map<std::string, ParameterPlace> places_;
  std::vector<UnitState> states_;  // of each unit
  std::vector<Packed> packed_;     // of persistent working copies
  std::map<std::pair<std::string, Layout>, std::size_t> packed_index_;
  std::map<std::string, BufferId> copies_;  // of strategies, by full name
};

}  // namespace trainer
