// Runs of rows are found from the entries, table by table; then the nodes that read a table are replaced in one pass.
#include "engine/transform/trained_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/rows_of.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

constexpr std::size_t kMostParts = 64;  // inputs of a concat

struct Run {
  std::int64_t first = 0, last = 0;
  bool trained = true;
};

/// An entry of `trainable` that names rows.
struct NamedRows {
  std::size_t index = 0;
  std::string glob;  ///< of the parameter
  std::string rows;  ///< between the brackets
};

std::vector<NamedRows> entries_of(const std::vector<std::string>& trainable) {
  std::vector<NamedRows> entries;
  for (std::size_t i = 0; i < trainable.size(); ++i) {
    if (!names_rows(trainable[i])) continue;
    const std::size_t open = trainable[i].rfind('[');
    entries.push_back({i, trainable[i].substr(0, open), trainable[i].substr(open + 1, trainable[i].size() - open - 2)});
  }
  return entries;
}

/// A place in a table of `rows`; negative ones count from the end.
std::optional<std::int64_t> place(std::string_view text, std::int64_t rows) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number < 0 ? number + rows : number;
}

/// "first:last", "first:", ":last" or "row"; nothing where that is no run of a table of `rows`.
std::optional<Run> run_of(std::string_view text, std::int64_t rows) {
  const std::size_t colon = text.find(':');
  const bool one = colon == std::string_view::npos;
  const std::string_view first_text = text.substr(0, colon), last_text = one ? "" : text.substr(colon + 1);
  const auto first = first_text.empty() && !one ? 0 : place(first_text, rows);
  if (!first) return std::nullopt;
  const auto last = one ? *first + 1 : last_text.empty() ? rows : place(last_text, rows);
  if (!last || *first < 0 || *first >= *last || *last > rows) return std::nullopt;
  return Run{*first, *last};
}

bool is_lookup(const Node& node, std::size_t input) { return node.op == Op::embedding && input == 1; }
bool is_product(const Node& node, std::size_t input) {
  return node.op == Op::linear && input == 1 && node.inputs.size() == 2;
}

/// The weights that an embedding looks up in, by name.
std::map<std::string, ValueId, std::less<>> tables_of(const Graph& graph) {
  std::map<std::string, ValueId, std::less<>> tables;
  for (const Node& node : graph.nodes)
    if (node.op == Op::embedding && graph.value(node.inputs[1]).kind == ValueKind::parameter)
      tables.emplace(graph.value(node.inputs[1]).name, node.inputs[1]);
  return tables;
}

const Node* other_reader(const Graph& graph, ValueId table) {
  for (const Node& node : graph.nodes)
    for (std::size_t i = 0; i < node.inputs.size(); ++i)
      if (node.inputs[i] == table && !is_lookup(node, i) && !is_product(node, i)) return &node;
  return nullptr;
}

/// The tables that an entry names.
std::vector<ValueId> matches(const Graph& graph, const NamedRows& entry, std::vector<SelectionMistake>& mistakes) {
  const auto tables = tables_of(graph);
  std::vector<std::string_view> names;
  for (const auto& [name, value] : tables) names.push_back(name);
  std::vector<SelectionMistake> found;
  const std::vector<bool> selected = select(std::vector{entry.glob}, names, "weight of an embedding", "", found);
  for (SelectionMistake& mistake : found) {
    mistake.key = fmt::format("[{}]", entry.index);
    mistakes.push_back(std::move(mistake));
  }
  std::vector<ValueId> values;
  for (std::size_t i = 0; i < names.size(); ++i)
    if (selected[i]) values.push_back(tables.find(names[i])->second);
  return values;
}

/// The table in runs, from its first row to its last, trained and frozen ones in turns.
std::vector<Run> partition(std::vector<Run> trained, std::int64_t rows) {
  std::ranges::sort(trained, {}, &Run::first);
  std::vector<Run> runs;
  std::int64_t at = 0;
  for (const Run& run : trained) {
    if (run.first > at) runs.push_back({at, run.first, false});
    if (!runs.empty() && runs.back().trained)
      runs.back().last = std::max(runs.back().last, run.last);
    else
      runs.push_back(run);
    at = runs.back().last;
  }
  if (at < rows) runs.push_back({at, rows, false});
  return runs;
}

class Split {
 public:
  Split(Graph& graph, ValueId table, const std::vector<Run>& runs) : graph_(graph), table_(table), runs_(runs) {
    make_parts();
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (Node& node : nodes) {
      if (node.inputs.size() > 1 && node.inputs[1] == table_)
        node.op == Op::embedding ? look_up(node) : multiply(node);
      else
        graph_.nodes.push_back(std::move(node));
    }
  }

 private:
  /// In the place of the table; the first part takes its value.
  void make_parts() {
    const Value whole = graph_.value(table_);
    const auto at =
        std::ranges::find_if(graph_.parameters, [&](const Parameter& each) { return each.value == table_; });
    CHECK(at != graph_.parameters.end(), whole.name + " is a parameter");
    const Parameter like = *at;
    auto place = graph_.parameters.erase(at);
    for (const Run& run : runs_) {
      Spec spec(whole.dtype(), {run.last - run.first, whole.shape()[1]});
      for (const Cut& cut : whole.spec.cuts()) spec.place(cut.axis, cut.as);
      Value part{.name = name_of(RowsOf{whole.name, run.first, run.last, whole.shape()[0]}),
                 .spec = spec,
                 .kind = ValueKind::parameter};
      if (parts_.empty()) {
        graph_.value(table_) = std::move(part);
        parts_.push_back(table_);
      } else {
        parts_.push_back(graph_.add_value(std::move(part)));
      }
      Parameter parameter = like;
      parameter.value = parts_.back();
      parameter.trainable = run.trained;
      place = graph_.parameters.insert(place, parameter) + 1;
    }
  }

  void look_up(const Node& like) {
    ValueId sum = kNone;
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const ValueId row = part_of(like, i, graph_.value(like.outputs[0]).shape());
      if (i == 0) {
        sum = row;
        continue;
      }
      Node add = node_like(like, like.name + suffix(i, "_sum"), Op::add);
      add.inputs = {sum, row};
      sum = i + 1 == parts_.size() ? like.outputs[0] : value(add.name, like, graph_.value(like.outputs[0]).shape());
      add.outputs = {sum};
      graph_.nodes.push_back(std::move(add));
    }
  }

  void multiply(const Node& like) {
    Node join = node_like(like, like.name + ".rows_joined", Op::concat);
    const Shape& scores = graph_.value(like.outputs[0]).shape();
    for (std::size_t i = 0; i < parts_.size(); ++i)
      join.inputs.push_back(part_of(like, i, scores.with_last(runs_[i].last - runs_[i].first)));
    join.attributes = {{"dim", std::int64_t{-1}}};
    join.outputs = like.outputs;
    graph_.nodes.push_back(std::move(join));
  }

  /// `like` with a part in place of the table; returns its output.
  ValueId part_of(const Node& like, std::size_t i, const Shape& shape) {
    Node node = like;
    node.name += suffix(i, "");
    node.inputs[1] = parts_[i];
    node.outputs = {value(node.name, like, shape)};
    graph_.nodes.push_back(node);
    return node.outputs[0];
  }

  std::string suffix(std::size_t i, const char* what) const { return fmt::format(".rows_{}{}", runs_[i].first, what); }
  ValueId value(std::string name, const Node& like, const Shape& shape) {
    return graph_.add_value({.name = std::move(name), .spec = {graph_.value(like.outputs[0]).dtype(), shape}});
  }

  Graph& graph_;
  const ValueId table_;
  const std::vector<Run>& runs_;
  std::vector<ValueId> parts_;
};

}  // namespace

bool names_rows(const std::string& glob) { return glob.ends_with(']') && glob.find('[') != std::string::npos; }

std::vector<SelectionMistake> check_rows(const Graph& graph, const std::vector<std::string>& trainable) {
  std::vector<SelectionMistake> mistakes;
  for (const NamedRows& entry : entries_of(trainable)) {
    const std::string key = fmt::format("[{}]", entry.index);
    for (const ValueId table : matches(graph, entry, mistakes)) {
      const Value& value = graph.value(table);
      const std::int64_t rows = value.shape()[0];
      const auto parameter =
          std::ranges::find_if(graph.parameters, [&](const Parameter& each) { return each.value == table; });
      if (!run_of(entry.rows, rows))
        mistakes.push_back({key, fmt::format("{} has {} rows, of which [{}] is no part: write [first:last], [first:], "
                                             "[:last] or [row]",
                                             value.name, rows, entry.rows)});
      else if (parameter != graph.parameters.end() && parameter->trainable)
        mistakes.push_back({key, fmt::format("{} is trained whole by another entry", value.name)});
      else if (const Node* reader = other_reader(graph, table))
        mistakes.push_back({key, fmt::format("{} is also read by \"{}\" ({}): rows are trained of tables that lookups "
                                             "and linears without a bias read",
                                             value.name, reader->name, name_of(reader->op))});
    }
  }
  return mistakes;
}

std::vector<SelectionMistake> split_rows(Graph& graph, const std::vector<std::string>& trainable) {
  std::map<ValueId, std::vector<Run>> trained;
  std::vector<SelectionMistake> mistakes;
  for (const NamedRows& entry : entries_of(trainable))
    for (const ValueId table : matches(graph, entry, mistakes)) {
      const Value& value = graph.value(table);
      const bool cut = std::ranges::any_of(value.spec.cuts(), [](const Cut& each) { return each.as.is_shard(0); });
      if (cut)
        mistakes.push_back({fmt::format("[{}]", entry.index),
                            fmt::format("tensor parallelism cuts the rows of {}: some of them are trained under data "
                                        "and pipeline strategies only",
                                        value.name)});
      else if (const std::optional<Run> run = run_of(entry.rows, value.shape()[0]))
        trained[table].push_back(*run);
    }
  for (auto& [table, runs] : trained) {
    const std::vector<Run> parts = partition(std::move(runs), graph.value(table).shape()[0]);
    if (parts.size() > kMostParts)
      mistakes.push_back(
          {"", fmt::format("{} is cut into {} runs of trained and of frozen rows; at most {} are possible",
                           graph.value(table).name, parts.size(), kMostParts)});
    else if (parts.size() > 1)
      Split(graph, table, parts);
    else
      for (Parameter& parameter : graph.parameters)
        if (parameter.value == table) parameter.trainable = true;
  }
  return mistakes;
}

}  // namespace trainer
