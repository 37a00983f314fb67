// From a graph file to a forward graph. The file is walked once, in its order; a repeated group is walked once a
// repetition. A node that is wrong leaves its name behind without a value, so that what reads it is passed over and the
// next mistake is found.
#include <fmt/format.h>

#include <algorithm>

#include "engine/core/check.h"
#include "engine/job/aliases.h"
#include "engine/transform/batch_norm.h"
#include "engine/transform/experts.h"
#include "engine/transform/prune.h"
#include "engine/transform/reading.h"

namespace trainer {
namespace {

constexpr std::string_view kFileKeys[] = {"name", "params", "inputs", "nodes", "outputs"};
constexpr std::string_view kGroupKeys[] = {"repeat", "first", "name", "block", "input", "if", "nodes"};
constexpr std::string_view kOutputKeys[] = {"loss", "auxiliary", "logits"};
constexpr std::string_view kAuxiliaryKeys[] = {"loss", "weight", "if"};
constexpr std::int64_t kMostNodes = 100'000;
using Mode = BuildOptions::Mode;

/// Whether it is the name of a further input, and not of a node whose weight is shared.
bool names_input(const AttributeDef& attribute) {
  return attribute.type == AttributeDef::Type::node && attribute.name != "weight";
}

class GraphReader {
 public:
  GraphReader(const yaml::Node& file, const Variables& with, const BuildOptions& options)
      : file_(file), with_(with), reading_(options) {}

  Graph read() {
    if (values_.need_mapping(file_, "", "a mapping with " + listed(kFileKeys))) {
      values_.check_keys(file_, "", "unknown key", kFileKeys);
      if (const yaml::Node* name = file_.find("name")) graph_.name = values_.text(*name, "name").value_or("");
      read_params(reading_, file_, with_);
      read_inputs(reading_, file_);
      read_nodes();
      read_outputs();
      // A name that was not found may be the use that a value seems to lack.
      if (!names_.report_missing()) check_used();
    }
    mistakes_.raise();
    if (mode() == Mode::score) score_rows();
    const bool of_logits = mode() == Mode::sample || mode() == Mode::score;
    std::vector<ValueId> roots = of_logits ? std::vector<ValueId>() : graph_.loss.figures;
    roots.push_back(of_logits ? graph_.logits : graph_.loss.sum);
    CHECK(roots.back() != kNone, "a graph without mistakes has an output");
    prune(graph_, roots);
    if (mode() == Mode::score) check_scores_text();
    place_batch_norms(graph_, mode() == Mode::train);
    place_experts(graph_, reading_.options);
    return std::move(graph_);
  }

 private:
  Mode mode() const { return reading_.options.mode; }

  // ---- Nodes -------------------------------------------------------------------------------------------------------

  void read_nodes() {
    const yaml::Node* nodes = file_.find("nodes");
    if (nodes == nullptr) {
      mistakes_.add(file_, "nodes", "missing");
      return;
    }
    EntryId previous = kNone;
    walk(*nodes, Scope{}, previous, "nodes");
  }

  /// `previous` is the entry that a node without `input` takes.
  void walk(const yaml::Node& nodes, const Scope& scope, EntryId& previous, const std::string& path) {
    if (!values_.need_sequence(nodes, path, "a list of nodes")) return;
    for (std::size_t i = 0; i < nodes.items.size(); ++i) {
      const yaml::Node& node = nodes.items[i];
      const std::string at = fmt::format("{}[{}]", path, i);
      if (!values_.need_mapping(node, at, "{name: …, op: …}")) continue;
      if (too_many(node, at)) return;
      if (node.find("nodes") != nullptr || node.find("repeat") != nullptr)
        read_group(node, scope, previous, at);
      else
        read_node(node, scope, previous, at);
    }
  }

  /// A few lines of nested repetitions must not fill the memory.
  bool too_many(const yaml::Node& node, const std::string& path) {
    const std::size_t count = names_.entries().size() + graph_.blocks.size();
    if (count > static_cast<std::size_t>(kMostNodes))
      mistakes_.add(node, path, fmt::format("a graph has at most {} nodes and groups", kMostNodes));
    return count > static_cast<std::size_t>(kMostNodes);
  }

  void read_group(const yaml::Node& group, const Scope& outer, EntryId& previous, const std::string& path) {
    values_.check_keys(group, path, "unknown key of a group of nodes", kGroupKeys);
    const yaml::Node *repeat = group.find("repeat"), *kind_node = group.find("block");
    if (group.find("nodes") == nullptr || group.find("name") == nullptr) {
      mistakes_.add(
          group, path,
          group.find("nodes") == nullptr ? "a repeated group needs `nodes`" : "a group of nodes needs a `name`");
      return;
    }
    const std::optional<std::int64_t> count =
        repeat == nullptr ? std::optional<std::int64_t>(1) : values_.integer(*repeat, path + ".repeat");
    if (!count) return;
    if (*count < 0 || *count > kMostNodes) {
      values_.wrong(*repeat, path + ".repeat", fmt::format("0 to {}", kMostNodes));
      return;
    }
    const yaml::Node* first_node = group.find("first");
    const std::optional<std::int64_t> first =
        first_node == nullptr ? std::optional<std::int64_t>(0) : values_.integer(*first_node, path + ".first");
    if (!first) return;
    if (repeat == nullptr && first_node != nullptr) {
      mistakes_.add(*first_node, path + ".first", "only a group with `repeat` counts");
      return;
    }
    const std::string kind = kind_node == nullptr ? "" : values_.text(*kind_node, path + ".block").value_or("");
    const Variables outer_variables = repeat == nullptr ? Variables{} : reading_.variables;
    for (std::int64_t i = 0; i < *count; ++i) {
      if (repeat != nullptr) reading_.variables["index"] = ParamValue(static_cast<double>(*first + i));
      if (too_many(group, path) || !read_instance(group, kind, outer, previous, path)) break;
    }
    if (repeat != nullptr) reading_.variables = outer_variables;  // an outer `index`
  }

  /// One repetition of a group. The group's own name stands for its last node.
  bool read_instance(const yaml::Node& group, const std::string& kind, const Scope& outer, EntryId& previous,
                     const std::string& path) {
    const yaml::Node& name_node = *group.find("name");
    const std::optional<std::string> name = values_.name(name_node, path + ".name");
    if (!name) return false;
    const std::string full = outer.prefix + *name;
    const std::optional<bool> there = is_there(group, path);
    if (!there.value_or(false)) {
      names_.declare_stand_in(full, entering(group, outer, previous, path, false));
      return there.has_value();
    }
    const auto& stand_ins = reading_.options.stand_ins;
    if (const auto like = stand_ins.find(full); like != stand_ins.end()) {
      previous = names_.declare_like(full, like->second);
      return true;
    }
    const bool is_block = group.find("repeat") != nullptr || !kind.empty();
    Scope scope{.prefix = full + ".", .outer = &outer, .block_input = previous, .block = outer.block};
    if (is_block) {
      scope.block = static_cast<std::int32_t>(graph_.blocks.size());
      graph_.blocks.push_back({full, kind, outer.block});
    }
    scope.block_input = entering(group, outer, previous, path, true);
    EntryId last = scope.block_input;
    walk(*group.find("nodes"), scope, last, full);
    names_.declare_alias(full, last, name_node);
    previous = last;
    return true;
  }

  /// What enters a group. Of one that is left out it may be left out as well.
  EntryId entering(const yaml::Node& group, const Scope& outer, EntryId previous, const std::string& path, bool there) {
    const yaml::Node* input = group.find("input");
    if (input == nullptr) return previous;
    const std::string at = path + ".input";
    if (!input->is_scalar()) {
      values_.wrong(*input, at, "the name of a node");
      return kNone;
    }
    const auto names = values_.names(*input, at);
    if (!names) return kNone;
    const std::string& name = names->front().first;
    return there ? names_.look_up(name, *input, at, outer) : names_.find(name, outer);
  }

  /// Whether the `if` of a node or group holds; nothing after a mistake.
  std::optional<bool> is_there(const yaml::Node& node, const std::string& path) {
    const yaml::Node* condition = node.find("if");
    if (condition == nullptr) return true;
    const std::optional<ParamValue> value = values_.value(*condition, path + ".if");
    return value ? std::optional(value->truth()) : std::nullopt;
  }

  /// A node that is left out has a name and an op all the same; of its inputs the first is what it stands for.
  void leave_out(const yaml::Node& node, const Scope& scope, EntryId previous, const Entry& entry) {
    read_op(node, node.find("op"), entry.name);
    const yaml::Node* input = node.find("input");
    EntryId first = previous;
    if (input != nullptr) {
      const auto names = values_.names(*input, entry.name + ".input");
      if (!names || names->empty()) return;
      first = names_.find(names->front().first, scope);  // it may be left out as well
    }
    names_.declare_stand_in(entry.name, first);
  }

  void read_node(const yaml::Node& node, const Scope& scope, EntryId& previous, const std::string& path) {
    const yaml::Node *name_node = node.find("name"), *op_node = node.find("op");
    if (name_node == nullptr) mistakes_.add(node, path, "a node needs a `name`");
    const std::optional<std::string> name =
        name_node == nullptr ? std::nullopt : values_.name(*name_node, path + ".name");
    Entry entry{.name = scope.prefix + name.value_or("?"), .where = &node};
    const std::optional<bool> there = is_there(node, entry.name);
    if (there == false) return leave_out(node, scope, previous, entry);
    if (const OpDef* def = read_op(node, op_node, entry.name)) {
      entry.into = pieces_of(*def, node);
      entry.used = entry.into != nullptr;
      build(node, *def, scope, previous, entry);
    } else {
      read_names(node, scope, previous, entry.name + ".input");
    }
    previous = name ? declare(std::move(entry), *name_node) : kNone;
  }

  /// Enters a node's name, and those of its pieces.
  EntryId declare(Entry entry, const yaml::Node& name_node) {
    const std::string name = entry.name;
    const yaml::Node* into = entry.into;
    const std::vector<ValueId> pieces = entry.pieces;
    const EntryId id = names_.declare(std::move(entry), name_node, name + ".name");
    for (std::size_t i = 0; into != nullptr && i < into->keys.size(); ++i) {
      Entry piece{.name = name + "." + into->keys[i].text, .where = &into->keys[i]};
      if (!pieces.empty()) piece.value = pieces[i];
      names_.declare(std::move(piece), into->keys[i], name);
    }
    return id;
  }

  /// Where the file names the values of a node that makes several; null for one that makes one.
  static const yaml::Node* pieces_of(const OpDef& def, const yaml::Node& node) {
    for (const AttributeDef& attribute : record(def.op).attributes)
      if (attribute.type == AttributeDef::Type::pieces) return node.find(attribute.name);
    return nullptr;
  }

  const OpDef* read_op(const yaml::Node& node, const yaml::Node* op_node, const std::string& name) {
    if (op_node == nullptr) {
      mistakes_.add(node, name, "a node needs an `op`, a group of nodes needs `nodes`");
      return nullptr;
    }
    const std::optional<Op> op = op_named(op_node->text);
    if (op && has(*op, Trait::graph_file)) return &definition(*op);
    std::vector<std::string_view> known;
    for (const OpDef& def : definitions())
      if (has(def.op, Trait::graph_file)) known.push_back(name_of(def.op));
    mistakes_.unknown(*op_node, name + ".op", "unknown op", op_node->brief(), known, alias_of_op(op_node->text));
    return nullptr;
  }

  void build(const yaml::Node& node, const OpDef& def, const Scope& scope, EntryId previous, Entry& entry) {
    std::optional<Attributes> given = values_.attributes(def, node, entry.name);
    const yaml::Node* init_node = node.find("init");
    const std::optional<Init> init =
        init_node == nullptr ? std::nullopt : values_.init(*init_node, entry.name + ".init");
    std::optional<std::vector<ValueId>> data = read_operands(node, def, scope, previous, entry.name + ".input");
    if (given && data && !add_named(node, def, scope, *given, *data, entry.name)) return;
    if (given && data && (init_node == nullptr || init)) maker_.make(node, def, *given, init, *data, scope, entry);
  }

  /// Behind the node's inputs, those that its attributes name (lengths of attention). One that the data lacks is as if
  /// it were not named. False after a mistake.
  bool add_named(const yaml::Node& node, const OpDef& def, const Scope& scope, Attributes& given,
                 std::vector<ValueId>& data, const std::string& path) {
    for (const AttributeDef& attribute : record(def.op).attributes) {
      if (!names_input(attribute) || !given.has(attribute.name)) continue;
      const std::string name = given.text(attribute.name);
      const auto there = reading_.variables.find("inputs." + name);
      if (there != reading_.variables.end() && !there->second.truth()) {
        Attributes others;
        for (const auto& [key, value] : given.items())
          if (key != attribute.name) others.set(key, value);
        given = std::move(others);
        continue;
      }
      const std::string at = path + "." + std::string(attribute.name);
      const yaml::Node& where = *node.find(attribute.name);
      const EntryId id = names_.look_up(name, where, at, scope);
      if (id == kNone) return false;
      names_[id].used = true;
      data.push_back(value_of(id, where, at));
      if (data.back() == kNone) return false;
    }
    return true;
  }

  /// Values of the node's inputs; nothing after a mistake, here or in what it reads.
  std::optional<std::vector<ValueId>> read_operands(const yaml::Node& node, const OpDef& def, const Scope& scope,
                                                    EntryId previous, const std::string& path) {
    const yaml::Node* input = node.find("input");
    if (input == nullptr && def.max_inputs == 0) return std::vector<ValueId>{};
    const auto operands = read_names(node, scope, previous, path);
    return operands ? checked(*operands, input != nullptr ? *input : node, def, path) : std::nullopt;
  }

  /// What the node reads, by its `input` or as the node before it.
  std::optional<std::vector<EntryId>> read_names(const yaml::Node& node, const Scope& scope, EntryId previous,
                                                 const std::string& path) {
    const yaml::Node* input = node.find("input");
    std::vector<EntryId> operands;
    if (input != nullptr) {
      const auto names = values_.names(*input, path);
      if (!names) return {};
      for (const auto& [name, where] : *names) operands.push_back(names_.look_up(name, *where, path, scope));
    } else if (previous == kNone && first_node()) {
      mistakes_.add(node, path, "the first node has none before it: it needs an `input`");
      return {};
    } else {
      operands.push_back(previous);
    }
    for (const EntryId id : operands)
      if (id != kNone) names_[id].used = true;
    return operands;
  }

  bool first_node() const {
    return std::all_of(names_.entries().begin(), names_.entries().end(),
                       [](const Entry& entry) { return entry.where->is_scalar(); });
  }

  std::optional<std::vector<ValueId>> checked(const std::vector<EntryId>& operands, const yaml::Node& where,
                                              const OpDef& def, const std::string& path) {
    std::vector<ValueId> data;
    for (EntryId id : operands) data.push_back(value_of(id, where, path));
    const int count = static_cast<int>(operands.size());
    if (count < def.min_inputs || count > def.max_inputs) {
      const std::string wanted = def.min_inputs == def.max_inputs
                                     ? std::to_string(def.min_inputs)
                                     : fmt::format("{} to {}", def.min_inputs, def.max_inputs);
      mistakes_.add(
          where, path,
          fmt::format("{} takes {} input{}, {} given", name_of(def.op), wanted, def.max_inputs == 1 ? "" : "s", count));
      return {};
    }
    return std::find(data.begin(), data.end(), kNone) == data.end() ? std::optional(data) : std::nullopt;
  }

  /// The value that a name stands for, or kNone.
  ValueId value_of(EntryId id, const yaml::Node& where, const std::string& path) {
    if (id == kNone) return kNone;
    const Entry& entry = names_[id];
    if (entry.into != nullptr) {
      Diagnostic& diagnostic = mistakes_.add(where, path, fmt::format("\"{}\" makes several values", entry.name));
      for (const yaml::Node& piece : entry.into->keys)
        diagnostic.allowed += fmt::format("{}{}.{}", diagnostic.allowed.empty() ? "" : ", ", entry.name, piece.text);
    }
    return entry.value;
  }

  // ---- Outputs -----------------------------------------------------------------------------------------------------

  void read_outputs() {
    const yaml::Node* outputs = file_.find("outputs");
    if (outputs == nullptr) {
      mistakes_.add(file_, "outputs", "missing").allowed = "{loss: a node, logits: a node}";
      return;
    }
    if (!values_.need_mapping(*outputs, "outputs", "{loss: a node, logits: a node}")) return;
    values_.check_keys(*outputs, "outputs", "unknown output", kOutputKeys);
    if (mode() == Mode::sample && outputs->find("logits") == nullptr)
      mistakes_.add(*outputs, "outputs.logits", "missing: sampling needs logits");
    if (mode() != Mode::sample && outputs->find("loss") == nullptr)
      mistakes_.add(*outputs, "outputs.loss", "missing: training needs a loss");
    const ValueId loss = read_output(outputs->find("loss"), "outputs.loss");
    const ValueId auxiliary = read_auxiliary(outputs->find("auxiliary"));
    graph_.logits = read_output(outputs->find("logits"), "outputs.logits");
    if (loss == kNone) return;
    set_loss(loss, *outputs->find("loss"));
    if (auxiliary != kNone) add_auxiliary(auxiliary, *outputs->find("auxiliary")->find("loss"));
  }

  ValueId read_auxiliary(const yaml::Node* auxiliary) {
    const std::string path = "outputs.auxiliary";
    if (auxiliary == nullptr || !values_.need_mapping(*auxiliary, path, "{loss: a node, weight: a number}"))
      return kNone;
    values_.check_keys(*auxiliary, path, "unknown key", kAuxiliaryKeys);
    if (!is_there(*auxiliary, path).value_or(false)) return kNone;
    for (const char* key : {"loss", "weight"})
      if (auxiliary->find(key) == nullptr) mistakes_.add(*auxiliary, path + "." + key, "missing");
    const ValueId sum = read_output(auxiliary->find("loss"), path + ".loss");
    if (const yaml::Node* weight = auxiliary->find("weight")) {
      const std::optional<ParamValue> value = values_.value(*weight, path + ".weight");
      const double* number = value ? value->number() : nullptr;
      if (value && (number == nullptr || *number <= 0))
        values_.wrong(*weight, path + ".weight", "a number above 0: what the sum of this loss is multiplied by");
      if (number != nullptr) graph_.loss.auxiliary_weight = *number;
    }
    return sum;
  }

  ValueId read_output(const yaml::Node* node, const std::string& path) {
    const std::optional<std::string> name = node == nullptr ? std::nullopt : values_.word(*node, path);
    const EntryId id = name ? names_.look_up(*name, *node, path, Scope{}) : kNone;
    if (id == kNone) return kNone;
    names_[id].used = true;
    return value_of(id, *node, path);
  }

  /// The node of a loss; null after a mistake.
  const Node* loss_node(ValueId sum, const yaml::Node& where, const std::string& path) {
    const auto node = std::find_if(graph_.nodes.begin(), graph_.nodes.end(),
                                   [&](const Node& made) { return made.outputs[0] == sum; });
    if (node != graph_.nodes.end() && definition(node->op).loss) return &*node;
    mistakes_.add(where, path, "this node is no loss").allowed = "a node whose op is cross_entropy or mse";
    return nullptr;
  }

  /// It is told as the mean over its own targets, under its node's name.
  void add_auxiliary(ValueId sum, const yaml::Node& where) {
    const std::string path = "outputs.auxiliary.loss";
    if (sum == graph_.loss.sum) {
      mistakes_.add(where, path, "this is `outputs.loss` already");
      return;
    }
    const Node* found = loss_node(sum, where, path);
    if (found == nullptr) return;
    const LossDef& def = *definition(found->op).loss;
    Node count = node_like(*found, found->name + ".count", def.count);
    for (const std::string& name : def.count_attributes) count.attributes.set(name, integer(*found, name));
    count.inputs = {found->inputs[1]};
    count.outputs = {graph_.add_value({.name = count.name, .spec = {DType::f64, {1}}})};
    graph_.loss.auxiliary = sum;
    graph_.loss.figures = {sum, count.outputs[0]};
    graph_.loss.figure_names = {found->name};
    graph_.nodes.push_back(std::move(count));
    // The loss stays the last node, on the last stage of a pipeline.
    const auto last = std::ranges::find_if(
        graph_.nodes, [&](const Node& node) { return !node.outputs.empty() && node.outputs[0] == graph_.loss.sum; });
    std::rotate(last, last + 1, graph_.nodes.end());
  }

  void set_loss(ValueId sum, const yaml::Node& where) {
    const Node* node = loss_node(sum, where, "outputs.loss");
    if (node == nullptr) return;
    const LossDef& def = *definition(node->op).loss;
    const ValueId targets = node->inputs[1];
    if (graph_.value(targets).kind != ValueKind::input)
      mistakes_.add(where, "outputs.loss",
                    "the targets of the loss must be a field of the data, which is counted before the step");
    Loss& loss = graph_.loss;
    loss.sum = sum;
    loss.targets = targets;
    loss.count_op = def.count;
    for (const std::string& name : def.count_attributes) loss.count_attributes.set(name, integer(*node, name));
    if (def.classes) loss.scores = node->inputs[0];
    loss.correct_attributes = loss.count_attributes;
  }

  /// A row of text is all that scoring gives, and each token must not be seen before it is predicted.
  void check_scores_text() {
    bool tokens = false;
    for (const ValueId input : graph_.inputs) {
      const std::string& name = graph_.value(input).name;
      tokens = tokens || name == "tokens";
      if (name != "tokens" && name != "targets")
        throw JobError({file_.at("inputs." + name, "scoring needs a model of tokens alone")});
      if (name == "targets" && graph_.value(input).shape().rank() != 2)
        throw JobError({file_.at("inputs." + name, "scoring needs a model of words: this head is for whole texts")});
    }
    if (!tokens) throw JobError({file_.at("inputs", "scoring needs a model that reads tokens")});
    for (const Node& node : graph_.nodes)
      if (node.op == Op::attention && !flag(node, "causal"))
        throw JobError({file_.at(node.name + ".causal",
                                 "scoring needs a causal model: this one sees the tokens that it is to predict")});
  }

  /// In place of the loss: of each row what its target's log-probability follows from.
  void score_rows() {
    Node& loss = *std::find_if(graph_.nodes.begin(), graph_.nodes.end(),
                               [&](const Node& node) { return node.outputs[0] == graph_.loss.sum; });
    if (loss.op != Op::cross_entropy)
      throw JobError({file_.at("outputs.loss", "scoring needs a model whose loss is a cross_entropy")});
    const Shape& logits = graph_.value(loss.inputs[0]).shape();
    loss.op = Op::cross_entropy_stats;
    loss.attributes = {{"classes", logits[-1]}, {"ignore_index", integer(loss, "ignore_index")}};
    loss.outputs = {graph_.add_value({.name = loss.name + ".stats", .spec = {DType::f32, {1, logits.rows(), 5}}})};
    graph_.logits = loss.outputs[0];
    graph_.loss = {};
  }

  void check_used() {
    for (const Entry& entry : names_.entries())
      if (!entry.used) mistakes_.add(*entry.where, entry.name, "nothing reads this: neither a node nor `outputs`");
  }

  const yaml::Node& file_;
  const Variables& with_;
  Reading reading_;
  Mistakes& mistakes_ = reading_.mistakes;
  FileValues& values_ = reading_.values;
  Names& names_ = reading_.names;
  Graph& graph_ = reading_.graph;
  NodeMaker maker_{reading_};
};

}  // namespace

Graph read_graph(const yaml::Node& file, const Variables& with, const BuildOptions& options) {
  return GraphReader(file, with, options).read();
}

}  // namespace trainer
