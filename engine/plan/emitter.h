// Emitter: the vocabulary of assembly. Appends buffers, signatures and instructions to one role, and knows where values of
// a graph lie. What a step consists of is assemble.cpp's to say.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/plan/assemble.h"

namespace trainer {

/// Where a parameter lies in its unit.
struct ParameterPlace {
  std::size_t unit = 0;
  std::int64_t offset = 0;  ///< elements
  std::int64_t elements = 0;
};

/// The buffers of one graph's values in one program, for each micro-batch.
struct GraphMemory {
  const Graph* graph = nullptr;
  std::vector<std::int32_t> last_use;               ///< of each storage value: the last node that reads it; num nodes: kept to the end
  std::vector<std::vector<BufferId>> values;        ///< [micro-batch][storage value]
  std::vector<BufferId> fields;                     ///< of each graph input, all micro-batches
  BufferId seed = -1, step = -1, loss = -1;
};

class Emitter {
 public:
  Emitter(Role& role, const AssembleOptions& options) : role_(role), options_(options) {}

  NameId name(const std::string& text);
  BufferId buffer(const std::string& name, Category category, std::int64_t bytes, std::int32_t micro_batch = -1);
  BufferId persistent(const std::string& name, Category category, std::int64_t bytes);
  std::int32_t field(const std::string& name, std::int64_t bytes);
  Region whole(BufferId id) const { return {id, 0, role_.buffer(id).bytes}; }

  void begin_program(const std::string& name);
  void issue(Stream stream, Instruction instruction);
  /// Launches a kernel; allocates its workspace. `operands` match the signature's.
  void launch(const std::string& name, const Signature& signature, std::vector<Operand> operands, std::int32_t micro_batch = -1, const Affine& origin = {});
  /// An all-reduce of `region` (elements of `dtype`) over `axes`, if there is more than one rank along them.
  void all_reduce(const std::string& name, DType dtype, Axes axes, const Region& region);

  /// Units, their persistent buffers, and where each parameter lies.
  void make_units(const Graph& graph);
  const ParameterPlace& place(const std::string& parameter) const;
  /// Packed weights: what the kernels read, made from the working copy.
  void pack_unit(std::size_t unit);
  std::size_t num_packed() const { return packed_.size(); }

  /// Prepares a graph's values for `micro_batches` instances in the current program, its batch copied in.
  GraphMemory enter(const Graph& graph, int micro_batches);
  /// Emits one node of one micro-batch.
  void node(GraphMemory& memory, NodeId id, int micro_batch);
  /// Region of a value that has been computed, or of an input.
  Region region(const GraphMemory& memory, ValueId id, int micro_batch) const;

 private:
  struct Packed {
    std::string parameter;
    Layout layout;
    BufferId buffer;
    std::size_t unit;
    TensorDesc plain;
  };

  std::int32_t signature_index(const Signature& signature);
  Region weight(const GraphMemory& memory, ValueId id, Signature& signature, int operand);
  BufferId packed(const Value& value, Layout layout);
  BufferId output_buffer(GraphMemory& memory, NodeId id, int output, int micro_batch);
  bool prepare_gradients(const GraphMemory& memory, const Node& node);
  void zero(const std::string& name, const Region& region);
  void zero_gaps(const Unit& unit);
  Affine origin(const Graph& graph, const Node& node, int micro_batch) const;

  Role& role_;
  const AssembleOptions& options_;
  std::unordered_map<std::string, NameId> names_;
  std::unordered_multimap<std::uint64_t, std::int32_t> signatures_;  // by hash
  std::unordered_map<std::string, ParameterPlace> places_;
  std::vector<Packed> packed_;
  std::map<std::pair<std::string, Layout>, std::size_t> packed_index_;
  std::unordered_set<std::string> written_;       // parameters whose gradient holds a contribution
  std::unordered_set<std::string> gaps_zeroed_;   // units, in this program
};

}  // namespace trainer
