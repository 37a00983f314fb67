// What the parts of reading a graph file share: the names so far, the values of expressions, the graph that grows, the
// mistakes.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/transform/file_values.h"
#include "engine/transform/mistakes.h"
#include "engine/transform/transform.h"

namespace trainer {

/// A name of the file: an input or a node. `value` is kNone after a mistake; `weight` is the parameter that another
/// node may share.
struct Entry {
  std::string name;
  const yaml::Node* where = nullptr;
  ValueId value = kNone;
  ValueId weight = kNone;
  bool used = false;
  const yaml::Node* into = nullptr;  ///< of a node that makes several values: their names, as keys; it has none itself
  std::vector<ValueId> pieces{};     ///< those values; empty after a mistake
};
using EntryId = int;

/// The group of nodes being walked, with those around it.
struct Scope {
  std::string prefix{};  ///< "h.3."
  const Scope* outer = nullptr;
  EntryId block_input = kNone;
  std::int32_t block = kNone;
};

/// Names are looked up in the innermost group first. One that is not there is reported when all names are known, since
/// it may stand later in the file.
class Names {
 public:
  explicit Names(Mistakes& mistakes) : mistakes_(mistakes) {}

  /// Enters a name; one that is taken is a mistake.
  EntryId declare(Entry entry, const yaml::Node& where, const std::string& path);
  /// A further name of `entry` (a group's own name).
  void declare_alias(const std::string& name, EntryId entry, const yaml::Node& where);
  /// What the name of a node that is left out stands for, unless a node of that name is there.
  void declare_stand_in(const std::string& name, EntryId entry);
  /// What is in a group that is left out stands for what has that name in the group `like`, and so does the group.
  /// Returns what the group stands for.
  EntryId declare_like(const std::string& group, const std::string& like);
  /// What `name` stands for in `scope`, or kNone: then it is reported by and by.
  EntryId look_up(const std::string& name, const yaml::Node& where, const std::string& path, const Scope& scope);
  /// The same, and kNone is no mistake.
  EntryId find(const std::string& name, const Scope& scope) const;
  /// Reports what was looked up in vain, and whether there was any.
  bool report_missing();

  Entry& operator[](EntryId id) { return entries_[static_cast<std::size_t>(id)]; }
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  struct Missing {
    const yaml::Node* where;
    std::string path, name;
    std::vector<std::string> candidates;  ///< full names it may stand for, innermost first
  };
  void report_unknown(const Missing& missing);
  EntryId find_in_left_out(std::string_view name) const;

  Mistakes& mistakes_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, EntryId> ids_;
  std::unordered_set<std::string> stand_ins_;          // names in ids_ that a node may still take
  std::unordered_map<std::string, std::string> like_;  // groups that are left out
  std::vector<Missing> missing_;
};

struct Reading {
  const BuildOptions& options;
  Mistakes mistakes{};
  Variables variables{};
  FileValues values{mistakes, variables};
  Names names{mistakes};
  Graph graph{};

  explicit Reading(const BuildOptions& build_options) : options(build_options) {}
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
};

/// `params` with their replacements, as variables of expressions.
void read_params(Reading& reading, const yaml::Node& file, const Variables& with);
/// `inputs`, bound to the fields of the data; `batch` and `seq` become variables.
void read_inputs(Reading& reading, const yaml::Node& file);

/// Makes nodes of the graph.
class NodeMaker {
 public:
  explicit NodeMaker(Reading& reading) : reading_(reading) {}
  /// Adds the node that `file_node` describes, with the op `def` and the inputs `data`, and sets the value and weight
  /// of `entry`.
  void make(const yaml::Node& file_node, const OpDef& def, const Attributes& given, const std::optional<Init>& init,
            const std::vector<ValueId>& inputs, const Scope& scope, Entry& entry);

 private:
  DType compute_of(const std::string& node) const;
  const Node& router_of(ValueId value) const;
  bool needs_cast(const OpDef& def, const std::vector<ValueId>& data, std::size_t index, DType compute) const;
  std::vector<TensorDesc> infer_inputs(const OpDef& def, const std::vector<ValueId>& data, DType compute) const;
  ValueId cast(ValueId from, DType dtype, std::int32_t block);
  ValueId document_positions(const yaml::Node& file_node, const std::string& reader, ValueId documents,
                             std::int64_t offset, std::int32_t block);
  bool add_parameters(Node& node, const Inference& inference, const Attributes& given, const yaml::Node& file_node,
                      const std::optional<Init>& init, const Scope& scope, DType compute, Entry& entry);
  ValueId tied_weight(const std::string& name, const ParameterDef& def, const yaml::Node& file_node, const Scope& scope,
                      const std::string& path, DType compute);
  void add_states(Node& node, const Inference& inference);
  void add_outputs(Node& node, const Inference& inference);
  void add_randomness(Node& node);
  void check_batch(ValueId input) const;
  void add(Node node);

  Reading& reading_;
  std::map<std::pair<ValueId, DType>, ValueId> casts_;
  std::map<std::pair<ValueId, std::int64_t>, ValueId> document_positions_;  ///< by documents and offset
  std::vector<bool> batched_;  ///< by value: whether its dim 0 goes back to the batch
};

}  // namespace trainer
