// From a graph file to a forward graph. The file is walked once, in its order; a repeated block is walked once a repetition.
// A node that is wrong leaves its name behind without a value, so that what reads it is passed over and the next
// mistake is found. Names are looked up in the innermost block first.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "engine/build/build.h"
#include "engine/build/file_values.h"
#include "engine/build/prune.h"
#include "engine/core/check.h"
#include "engine/core/random.h"
#include "engine/job/nearest.h"

namespace trainer {
namespace {

constexpr std::string_view kFileKeys[] = {"name", "params", "inputs", "nodes", "outputs"};
constexpr std::string_view kGroupKeys[] = {"repeat", "name", "block", "input", "nodes"};
constexpr std::string_view kSymbols[] = {"batch", "seq", "index"};
constexpr std::size_t kMostNodes = 100'000;
using Mode = BuildOptions::Mode;

/// A name of the file: an input or a node. `value` is kNone after a mistake; `weight` is the parameter that another node may share.
struct Entry {
  std::string name;
  const yaml::Node* where = nullptr;
  ValueId value = kNone;
  ValueId weight = kNone;
  bool used = false;
};

/// A block being walked, innermost first.
struct Scope {
  std::string prefix;  ///< "h.3."
  const Scope* outer = nullptr;
  int block_input = kNone;  ///< entry
  std::int32_t block = kNone;
};

/// A name that was not there when it was asked for. Whether it comes later is known at the end.
struct Unresolved {
  const yaml::Node* where;
  std::string path, name;
  std::vector<std::string> candidates;  ///< full names it may stand for
};

class GraphReader {
 public:
  GraphReader(const yaml::Node& file, const std::map<std::string, double>& with, const BuildOptions& options)
      : file_(file), with_(with), options_(options), values_(mistakes_, variables_) {}

  Graph read() {
    if (values_.need_mapping(file_, "", "a mapping with " + listed(kFileKeys))) {
      values_.check_keys(file_, "", "unknown key", kFileKeys);
      if (const yaml::Node* name = file_.find("name")) graph_.name = values_.text(*name, "name").value_or("");
      read_params();
      read_inputs();
      read_nodes();
      resolve_later_names();
      if (!mistakes_.any()) read_outputs();
      if (!mistakes_.any()) check_used();
    }
    mistakes_.raise();
    prune(graph_, {options_.mode == Mode::sample ? graph_.logits : graph_.loss.sum});
    return std::move(graph_);
  }

 private:
  // ---- Params and inputs -------------------------------------------------------------------------------------------

  void read_params() {
    const yaml::Node* params = file_.find("params");
    if (params != nullptr && values_.need_mapping(*params, "params", "a mapping of names to numbers")) {
      for (std::size_t i = 0; i < params->keys.size(); ++i) {
        const std::string& name = params->keys[i].text;
        if (std::find(std::begin(kSymbols), std::end(kSymbols), name) != std::end(kSymbols))
          mistakes_.add(params->keys[i], "params." + name, "this name has a meaning of its own in graphs");
        const auto replaced = with_.find(name);
        const std::optional<double> value =
            replaced != with_.end() ? std::optional(replaced->second) : values_.number(params->items[i], "params." + name);
        variables_[name] = value.value_or(1);
      }
    }
    for (const auto& [name, value] : with_)
      if (params == nullptr || params->find(name) == nullptr) unknown_param(params, name);
  }

  void unknown_param(const yaml::Node* params, const std::string& name) {
    std::vector<std::string_view> known;
    if (params != nullptr)
      for (const yaml::Node& key : params->keys) known.push_back(key.text);
    mistakes_.unknown(params != nullptr ? *params : file_, "model.with." + name, "the graph has no such param", name, known);
  }

  void read_inputs() {
    variables_["batch"] = static_cast<double>(options_.batch);
    const yaml::Node* inputs = file_.find("inputs");
    if (inputs == nullptr) {
      mistakes_.add(file_, "inputs", "missing: the fields of the data that the graph reads");
      return;
    }
    if (!values_.need_mapping(*inputs, "inputs", "a mapping of field names to {dtype, shape}")) return;
    for (std::size_t i = 0; i < inputs->keys.size(); ++i) bind_sequence(inputs->keys[i].text, inputs->items[i]);
    for (std::size_t i = 0; i < inputs->keys.size(); ++i) read_input(inputs->keys[i], inputs->items[i]);
    if (options_.mode == Mode::sample) return;
    std::vector<std::string_view> known;
    for (const yaml::Node& key : inputs->keys) known.push_back(key.text);
    for (const auto& [name, shape] : options_.field_shapes)
      if (inputs->find(name) == nullptr)
        mistakes_.add(*inputs, "inputs", "the data gives the field \"" + name + "\", which the graph does not read").suggestion =
            nearest(name, known);
  }

  /// `seq` is the size of the dim that is called so in the first field that has one.
  void bind_sequence(const std::string& name, const yaml::Node& input) {
    const yaml::Node* shape = input.find("shape");
    const auto field = options_.field_shapes.find(name);
    if (shape == nullptr || !shape->is_sequence() || field == options_.field_shapes.end() || variables_.contains("seq")) return;
    for (std::size_t i = 1; i < shape->items.size(); ++i)
      if (shape->items[i].text == "seq" && static_cast<int>(i) <= field->second.rank())
        variables_["seq"] = static_cast<double>(field->second[static_cast<int>(i) - 1]);
  }

  void read_input(const yaml::Node& key, const yaml::Node& input) {
    constexpr std::string_view keys[] = {"dtype", "shape"}, dtypes[] = {"f32", "i32"};
    const std::string path = "inputs." + key.text;
    Entry entry{.name = key.text, .where = &key};
    const auto field = options_.field_shapes.find(key.text);
    if (field == options_.field_shapes.end() && options_.mode != Mode::sample) {
      std::vector<std::string_view> fields;
      for (const auto& [name, shape] : options_.field_shapes) fields.push_back(name);
      mistakes_.unknown(key, path, "the data gives no such field", key.text, fields);
    } else if (values_.need_mapping(input, path, "{dtype: …, shape: […]}")) {
      values_.check_keys(input, path, "unknown key", keys);
      const yaml::Node* dtype = input.find("dtype");
      const bool known = dtype != nullptr && std::find(std::begin(dtypes), std::end(dtypes), dtype->text) != std::end(dtypes);
      if (!known)
        mistakes_.unknown(dtype != nullptr ? *dtype : key, path + ".dtype", "f32 or i32 is needed", dtype != nullptr ? dtype->brief() : "",
                          dtypes);
      const Shape* given = field == options_.field_shapes.end() || field->second.rank() == 0 ? nullptr : &field->second;
      const std::optional<Shape> shape = input_shape(key, input, path, given);
      if (shape && known)
        entry.value = graph_.add_value({.name = key.text, .dtype = *dtype_named(dtype->text), .shape = *shape, .kind = ValueKind::input});
      if (entry.value != kNone) graph_.inputs.push_back(entry.value);
    }
    declare(std::move(entry), key, path);
  }

  /// `given` is the shape of a sample as the data has it, or null where it is not known before the data is read.
  std::optional<Shape> input_shape(const yaml::Node& key, const yaml::Node& input, const std::string& path, const Shape* given) {
    const yaml::Node* written = input.find("shape");
    if (written == nullptr) {
      mistakes_.add(key, path + ".shape", "missing").allowed = "a list as [batch, seq]";
      return {};
    }
    const std::string at = path + ".shape";
    if (!values_.need_sequence(*written, at, "a list as [batch, seq]")) return {};
    if (written->items.empty() || written->items[0].text != "batch" || written->items.size() > Shape::kMaxDims) {
      mistakes_.add(*written, at, "the first dim must be batch, and there are at most 6").value = written->brief();
      return {};
    }
    std::vector<std::int64_t> sizes;
    for (const yaml::Node& item : written->items) {
      const std::optional<std::int64_t> size = values_.dim(item, at);
      if (!size) return {};
      if (*size < 1) values_.wrong(item, at, "a size of at least 1");
      sizes.push_back(*size);
    }
    const Shape shape{std::span<const std::int64_t>(sizes)};
    const Shape sample{std::span<const std::int64_t>(sizes).subspan(1)};
    if (given != nullptr && *given != sample) {
      mistakes_.add(*written, at, "the graph takes samples of shape " + sample.str() + ", the data gives " + given->str()).value =
          written->brief();
      return {};
    }
    return shape;
  }

  // ---- Names -------------------------------------------------------------------------------------------------------

  /// Enters a name; a second one of the same name is a mistake. Returns the entry.
  int declare(Entry entry, const yaml::Node& where, const std::string& path) {
    const int index = static_cast<int>(entries_.size());
    const auto [at, fresh] = names_.emplace(entry.name, index);
    if (!fresh) {
      const yaml::Node* first = entries_[static_cast<std::size_t>(at->second)].where;
      const bool repeated = first == &where || first->line == where.line;
      mistakes_
          .add(where, path,
               repeated ? "the name is given again by each repetition; it needs {index}"
                        : fmt::format("the name is taken already, in line {}", first->line))
          .value = entry.name;
    }
    entries_.push_back(std::move(entry));
    return index;
  }

  /// The entry that `name` stands for in `scope`, or kNone, which is then reported at the end.
  int look_up(const std::string& name, const yaml::Node& where, const std::string& path, const Scope& scope) {
    if (name == "block.input") {
      if (scope.block_input != kNone) return scope.block_input;
      mistakes_.add(where, path, scope.outer == nullptr ? "block.input has a meaning only inside a block" : "nothing enters this block");
      return kNone;
    }
    std::vector<std::string> candidates;
    for (const Scope* at = &scope; at != nullptr; at = at->outer) {
      candidates.push_back(at->prefix + name);
      if (const auto found = names_.find(candidates.back()); found != names_.end()) return found->second;
    }
    unresolved_.push_back({&where, path, name, std::move(candidates)});
    return kNone;
  }

  void resolve_later_names() {
    for (const Unresolved& missing : unresolved_) {
      const auto later = std::find_if(missing.candidates.begin(), missing.candidates.end(),
                                      [&](const std::string& name) { return names_.contains(name); });
      if (later != missing.candidates.end()) {
        const Entry& entry = entries_[static_cast<std::size_t>(names_.at(*later))];
        mistakes_.add(*missing.where, missing.path,
                      fmt::format("\"{}\" stands later, in line {}: a node takes what stands before it, so there is no cycle", missing.name,
                                  entry.where->line));
        continue;
      }
      std::vector<std::string_view> known;
      const std::string& prefix = missing.candidates.front();
      const std::string_view scope = std::string_view(prefix).substr(0, prefix.size() - missing.name.size());
      for (const Entry& entry : entries_) {
        const std::string_view name = entry.name;
        if (!scope.empty() && name.starts_with(scope)) known.push_back(name.substr(scope.size()));
        known.push_back(name);
      }
      Diagnostic& diagnostic = mistakes_.add(*missing.where, missing.path, "no node or input is called so");
      diagnostic.value = missing.name;
      diagnostic.suggestion = nearest(missing.name, known);
    }
  }

  // ---- Nodes -------------------------------------------------------------------------------------------------------

  void read_nodes() {
    const yaml::Node* nodes = file_.find("nodes");
    if (nodes == nullptr) {
      mistakes_.add(file_, "nodes", "missing");
      return;
    }
    Scope scope;
    int previous = kNone;
    walk(*nodes, scope, previous, "nodes");
  }

  /// `previous` is the entry that a node without `input` takes.
  void walk(const yaml::Node& nodes, const Scope& scope, int& previous, const std::string& path) {
    if (!values_.need_sequence(nodes, path, "a list of nodes")) return;
    for (std::size_t i = 0; i < nodes.items.size(); ++i) {
      const yaml::Node& node = nodes.items[i];
      const std::string at = fmt::format("{}[{}]", path, i);
      if (!values_.need_mapping(node, at, "{name: …, op: …}")) continue;
      if (entries_.size() > kMostNodes) {
        mistakes_.add(node, at, fmt::format("a graph has at most {} nodes", kMostNodes));
        return;
      }
      if (node.find("nodes") != nullptr || node.find("repeat") != nullptr)
        read_group(node, scope, previous, at);
      else
        read_node(node, scope, previous, at);
    }
  }

  void read_group(const yaml::Node& group, const Scope& outer, int& previous, const std::string& path) {
    values_.check_keys(group, path, "unknown key of a group of nodes", kGroupKeys);
    const yaml::Node *repeat = group.find("repeat"), *name = group.find("name"), *kind = group.find("block"), *nodes = group.find("nodes");
    if (nodes == nullptr || name == nullptr) {
      mistakes_.add(group, path, nodes == nullptr ? "a repeated group needs `nodes`" : "a group of nodes needs a `name`");
      return;
    }
    const std::optional<std::int64_t> count =
        repeat == nullptr ? std::optional<std::int64_t>(1) : values_.integer(*repeat, path + ".repeat");
    if (!count) return;
    if (*count < 0 || *count > static_cast<std::int64_t>(kMostNodes)) {
      values_.wrong(*repeat, path + ".repeat", fmt::format("0 to {}", kMostNodes));
      return;
    }
    const std::string block_kind = kind == nullptr ? "" : values_.text(*kind, path + ".block").value_or("");
    const auto outer_index = variables_.find("index");
    const std::optional<double> index_before = outer_index == variables_.end() ? std::nullopt : std::optional(outer_index->second);
    for (std::int64_t i = 0; i < *count; ++i) {
      if (repeat != nullptr) variables_["index"] = static_cast<double>(i);
      if (!read_instance(group, *name, block_kind, outer, previous, path)) break;
    }
    if (index_before)
      variables_["index"] = *index_before;
    else
      variables_.erase("index");
  }

  /// One repetition of a group. The group's own name stands for its last node.
  bool read_instance(const yaml::Node& group, const yaml::Node& name_node, const std::string& kind, const Scope& outer, int& previous,
                     const std::string& path) {
    const std::optional<std::string> name = values_.name(name_node, path + ".name");
    if (!name) return false;
    const std::string full = outer.prefix + *name;
    Scope scope{.prefix = full + ".", .outer = &outer, .block_input = previous, .block = static_cast<std::int32_t>(graph_.blocks.size())};
    if (const yaml::Node* input = group.find("input")) {
      const std::optional<std::string> written = values_.text(*input, path + ".input");
      scope.block_input = written ? look_up(*written, *input, path + ".input", outer) : kNone;
    }
    graph_.blocks.push_back({full, kind});
    int last = scope.block_input;
    walk(*group.find("nodes"), scope, last, full);
    if (const auto [at, fresh] = names_.emplace(full, last); !fresh)
      mistakes_.add(name_node, full, "the name is taken already; a repeated group needs {index} in its name").value = full;
    previous = last;
    return true;
  }

  void read_node(const yaml::Node& node, const Scope& scope, int& previous, const std::string& path) {
    const yaml::Node *name_node = node.find("name"), *op_node = node.find("op");
    if (name_node == nullptr) mistakes_.add(node, path, "a node needs a `name`");
    const std::optional<std::string> name = name_node == nullptr ? std::nullopt : values_.name(*name_node, path + ".name");
    const std::string full = scope.prefix + name.value_or("?");
    const OpDef* def = read_op(node, op_node, full);
    Entry entry{.name = full, .where = &node};
    if (def != nullptr) build(node, *def, scope, previous, entry);
    if (!name)
      previous = kNone;
    else
      previous = declare(std::move(entry), *name_node, full + ".name");
  }

  const OpDef* read_op(const yaml::Node& node, const yaml::Node* op_node, const std::string& name) {
    if (op_node == nullptr) {
      mistakes_.add(node, name, "a node needs an `op`, a group of nodes needs `nodes`");
      return nullptr;
    }
    const std::optional<Op> op = op_named(op_node->text);
    if (op && definition(*op).in_graph_files) return &definition(*op);
    std::vector<std::string_view> known;
    for (const OpDef& def : definitions())
      if (def.in_graph_files) known.push_back(name_of(def.op));
    mistakes_.unknown(*op_node, name + ".op", "unknown op", op_node->brief(), known);
    return nullptr;
  }

  /// Entries of the node's inputs; nothing after a mistake.
  std::optional<std::vector<int>> read_operands(const yaml::Node& node, const OpDef& def, const Scope& scope, int previous,
                                                const std::string& name) {
    const std::string path = name + ".input";
    const yaml::Node* input = node.find("input");
    std::vector<int> operands;
    if (input != nullptr) {
      const auto names = values_.names(*input, path);
      if (!names) return {};
      for (const auto& [written, where] : *names) operands.push_back(look_up(written, *where, path, scope));
    } else if (previous == kNone && entries_.size() == graph_.inputs.size()) {
      mistakes_.add(node, path, "the first node has none before it: it needs an `input`");
    } else {
      operands.push_back(previous);
    }
    for (int operand : operands)
      if (operand != kNone) entries_[static_cast<std::size_t>(operand)].used = true;
    const int count = static_cast<int>(operands.size());
    if (count > 0 && (count < def.min_inputs || count > def.max_inputs)) {
      const std::string wanted =
          def.min_inputs == def.max_inputs ? std::to_string(def.min_inputs) : fmt::format("{} to {}", def.min_inputs, def.max_inputs);
      mistakes_.add(input != nullptr ? *input : node, path,
                    fmt::format("{} takes {} input{}, {} given", name_of(def.op), wanted, def.max_inputs == 1 ? "" : "s", count));
      return {};
    }
    const bool poisoned = std::any_of(operands.begin(), operands.end(),
                                      [&](int id) { return id == kNone || entries_[static_cast<std::size_t>(id)].value == kNone; });
    return poisoned || count == 0 ? std::nullopt : std::optional(operands);
  }

  /// Adds the node to the graph and its value to `entry`.
  void build(const yaml::Node& file_node, const OpDef& def, const Scope& scope, int previous, Entry& entry) {
    std::optional<Attributes> given = values_.attributes(def, file_node, entry.name);
    const yaml::Node* init_node = file_node.find("init");
    const std::optional<Init> init = init_node == nullptr ? std::nullopt : values_.init(*init_node, entry.name + ".init");
    const std::optional<std::vector<int>> operands = read_operands(file_node, def, scope, previous, entry.name);
    if (!given || !operands || (init_node != nullptr && !init)) return;
    std::vector<ValueId> data;
    for (int id : *operands) data.push_back(entries_[static_cast<std::size_t>(id)].value);
    try {
      const Inference inference = def.infer(*given, infer_inputs(def, data), options_.compute);
      if (def.random && (options_.mode != Mode::train || given->real("p") == 0)) {
        entry.value = data[0];
        return;
      }
      if (def.random) check_batch(data[0]);
      Node node{.name = entry.name, .op = def.op, .attributes = inference.attributes, .inputs = {}, .outputs = {}, .block = scope.block};
      node.origin = {file_node.file(), file_node.line, file_node.column};
      if (given->has("parallel")) node.parallel = parallel_named(given->text("parallel"));
      if (inference.reads_inputs)
        for (std::size_t i = 0; i < data.size(); ++i) node.inputs.push_back(needs_cast(def, data, i) ? cast(data[i]) : data[i]);
      if (!add_parameters(node, inference, *given, file_node, init, scope, entry)) return;
      if (def.random) add_randomness(node);
      add_outputs(node, inference);
      entry.value = node.outputs[0];
      mark_batched(node);
      graph_.nodes.push_back(std::move(node));
    } catch (const OpMistake& mistake) {
      report(mistake, file_node, entry.name);
    }
  }

  void report(const OpMistake& mistake, const yaml::Node& node, const std::string& name) {
    const yaml::Node* where = mistake.attribute.empty() ? node.find("input") : node.find(mistake.attribute);
    if (where == nullptr) where = node.find("op");
    mistakes_.add(*where, mistake.attribute.empty() ? name : name + "." + mistake.attribute, mistake.message);
  }

  // ---- Parts of a node ---------------------------------------------------------------------------------------------

  static Parallel parallel_named(const std::string& name) {
    return name == "column" ? Parallel::column : name == "row" ? Parallel::row : Parallel::none;
  }

  /// A field of the data in f32 is read in the compute dtype, but as the target of a loss.
  bool needs_cast(const OpDef& def, const std::vector<ValueId>& data, std::size_t index) const {
    const Value& value = graph_.value(data[index]);
    return value.kind == ValueKind::input && is_floating(value.dtype) && value.dtype != options_.compute && !(def.loss && index > 0);
  }

  std::vector<TensorDesc> infer_inputs(const OpDef& def, const std::vector<ValueId>& data) const {
    std::vector<TensorDesc> inputs;
    for (std::size_t i = 0; i < data.size(); ++i) {
      inputs.push_back(graph_.value(data[i]).desc());
      if (needs_cast(def, data, i)) inputs.back().dtype = options_.compute;
    }
    return inputs;
  }

  /// The field in the compute dtype; one node for all that read it.
  ValueId cast(ValueId field) {
    const auto [at, fresh] = casts_.emplace(field, kNone);
    if (!fresh) return at->second;
    Value value = graph_.value(field);
    Node node{.name = value.name, .op = Op::cast, .attributes = {}, .inputs = {field}, .outputs = {}};
    value.name += ".cast";
    value.kind = ValueKind::activation;
    value.dtype = options_.compute;
    node.outputs = {graph_.add_value(value)};
    mark_batched(node);
    graph_.nodes.push_back(std::move(node));
    return at->second = graph_.nodes.back().outputs[0];
  }

  bool add_parameters(Node& node, const Inference& inference, const Attributes& given, const yaml::Node& file_node,
                      const std::optional<Init>& init, const Scope& scope, Entry& entry) {
    if (init && inference.parameters.empty()) {
      mistakes_.add(*file_node.find("init"), node.name + ".init", std::string(name_of(node.op)) + " has no parameters");
      return false;
    }
    const std::string shared = given.has("weight") ? given.text("weight") : "";
    for (const ParameterDef& def : inference.parameters) {
      ValueId id = kNone;
      if (def.suffix == "weight" && !shared.empty()) {
        id = tied(shared, def, file_node, scope, node.name);
        if (id == kNone) return false;
        if (init) {
          mistakes_.add(*file_node.find("init"), node.name + ".init", "the weight is that of " + shared + "; give its `init` there");
          return false;
        }
      } else {
        id = graph_.add_value(
            {.name = node.name + "." + def.suffix, .dtype = options_.compute, .shape = def.shape, .kind = ValueKind::parameter});
        graph_.parameters.push_back({.value = id, .init = def.suffix == "weight" && init ? *init : def.init});
      }
      if (def.suffix == "weight") entry.weight = id;
      node.inputs.push_back(id);
    }
    return true;
  }

  /// The parameter of the node called `name`, if it has one of that shape.
  ValueId tied(const std::string& name, const ParameterDef& def, const yaml::Node& file_node, const Scope& scope, const std::string& path) {
    const yaml::Node& where = *file_node.find("weight");
    const int owner = look_up(name, where, path + ".weight", scope);
    if (owner == kNone || entries_[static_cast<std::size_t>(owner)].value == kNone) return kNone;
    const ValueId weight = entries_[static_cast<std::size_t>(owner)].weight;
    if (weight == kNone) {
      mistakes_.add(where, path + ".weight", "\"" + name + "\" has no weight");
      return kNone;
    }
    if (const Shape& shape = graph_.value(weight).shape; shape != def.shape) {
      mistakes_.add(where, path + ".weight",
                    "the weight of \"" + name + "\" has shape " + shape.str() + "; here " + def.shape.str() + " is needed");
      return kNone;
    }
    return weight;
  }

  void add_outputs(Node& node, const Inference& inference) {
    for (std::size_t i = 0; i < inference.outputs.size(); ++i) {
      const TensorDesc& output = inference.outputs[i];
      Value value{
          .name = i == 0 ? node.name : node.name + "." + inference.saved_names[i - 1], .dtype = output.dtype, .shape = output.shape};
      if (inference.alias) value.alias_of = graph_.storage(node.inputs[0]);
      node.outputs.push_back(graph_.add_value(std::move(value)));
    }
  }

  /// Masks are numbered by samples, so dim 0 must be the samples of the batch.
  void check_batch(ValueId input) const {
    const bool batched = static_cast<std::size_t>(input) < batched_.size() && batched_[static_cast<std::size_t>(input)];
    const Value& value = graph_.value(input);
    if ((batched || value.kind == ValueKind::input) && value.shape[0] == options_.batch) return;
    throw OpMistake{"takes values whose first dim is the batch, not " + value.shape.str(), ""};
  }

  void mark_batched(const Node& node) {
    batched_.resize(graph_.values.size(), false);
    bool batched = false;
    for (ValueId input : node.inputs)
      batched = batched || graph_.value(input).kind == ValueKind::input || batched_[static_cast<std::size_t>(input)];
    for (ValueId output : node.outputs) batched_[static_cast<std::size_t>(output)] = batched;
  }

  void add_randomness(Node& node) {
    if (graph_.step == kNone)
      graph_.step = graph_.add_value({.name = "step", .dtype = DType::i32, .shape = {1}, .kind = ValueKind::scalar});
    node.inputs.push_back(graph_.step);
    node.attributes.set("key", static_cast<std::int64_t>(random_key(options_.seed, node.name)));
  }

  // ---- Outputs -----------------------------------------------------------------------------------------------------

  void read_outputs() {
    constexpr std::string_view keys[] = {"loss", "logits"};
    const yaml::Node* outputs = file_.find("outputs");
    if (outputs == nullptr) {
      mistakes_.add(file_, "outputs", "missing").allowed = "{loss: a node, logits: a node}";
      return;
    }
    if (!values_.need_mapping(*outputs, "outputs", "{loss: a node, logits: a node}")) return;
    values_.check_keys(*outputs, "outputs", "unknown output", keys);
    const std::string_view needed = options_.mode == Mode::sample ? "logits" : "loss";
    if (outputs->find(needed) == nullptr)
      mistakes_.add(*outputs, fmt::format("outputs.{}", needed),
                    needed == "loss" ? "missing: training needs a loss" : "missing: sampling needs logits");
    const ValueId loss = output(outputs->find("loss"), "outputs.loss");
    graph_.logits = output(outputs->find("logits"), "outputs.logits");
    resolve_later_names();
    if (loss != kNone) set_loss(loss, *outputs->find("loss"));
  }

  ValueId output(const yaml::Node* node, const std::string& path) {
    if (node == nullptr) return kNone;
    unresolved_.clear();
    const std::optional<std::string> name = values_.text(*node, path);
    const int entry = name ? look_up(*name, *node, path, Scope{}) : kNone;
    if (!unresolved_.empty()) resolve_later_names();
    unresolved_.clear();
    if (entry == kNone) return kNone;
    entries_[static_cast<std::size_t>(entry)].used = true;
    return entries_[static_cast<std::size_t>(entry)].value;
  }

  void set_loss(ValueId sum, const yaml::Node& where) {
    for (const Node& node : graph_.nodes) {
      if (node.outputs[0] != sum) continue;
      const OpDef& def = definition(node.op);
      if (!def.loss) break;
      if (graph_.value(node.inputs[1]).kind != ValueKind::input) {
        mistakes_.add(where, "outputs.loss", "the targets of the loss must be a field of the data, which is counted before the step");
        return;
      }
      graph_.loss = {.sum = sum, .targets = node.inputs[1], .count_op = def.loss->count, .count_attributes = {}, .scores = kNone};
      for (const std::string& name : def.loss->count_attributes) graph_.loss.count_attributes.set(name, node.attributes.integer(name));
      if (def.loss->classes) graph_.loss.scores = node.inputs[0];
      return;
    }
    mistakes_.add(where, "outputs.loss", "this node is no loss").allowed = "a node whose op is cross_entropy or mse";
  }

  void check_used() {
    for (const Entry& entry : entries_)
      if (!entry.used) mistakes_.add(*entry.where, entry.name, "nothing reads this: neither a node nor `outputs`");
  }

  const yaml::Node& file_;
  const std::map<std::string, double>& with_;
  const BuildOptions& options_;
  Mistakes mistakes_;
  Variables variables_;
  FileValues values_;
  Graph graph_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, int> names_;
  std::vector<Unresolved> unresolved_;
  std::unordered_map<ValueId, ValueId> casts_;
  std::vector<bool> batched_;  ///< by value: whether dim 0 goes back to the batch
};

}  // namespace

Graph read_graph(const yaml::Node& file, const std::map<std::string, double>& with, const BuildOptions& options) {
  return GraphReader(file, with, options).read();
}

}  // namespace trainer
