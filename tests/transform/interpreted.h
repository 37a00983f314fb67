// Graphs run in f64 on random weights and data, the same for the same names and shapes in whatever graph.
#pragma once

#include <functional>
#include <map>
#include <random>
#include <string>

#include "tests/reference/interpreter.h"

namespace trainer::test {

/// What the value holds: ids below 4 where it is i32, normals elsewhere.
inline reference::Tensor random_value(const Value& value) {
  std::mt19937_64 generator(std::hash<std::string>()(value.name));
  std::normal_distribution<double> normal(0, 0.4);
  reference::Tensor tensor(value.shape());
  for (double& x : tensor.data)
    x = value.dtype() == DType::i32 ? static_cast<double>(generator() % 4) : normal(generator);
  return tensor;
}

using Values = std::map<std::string, reference::Tensor>;

/// Runs the graph; `given` are values by name in place of random ones.
inline reference::Interpreter interpret(const Graph& graph, const Values& given = {}) {
  reference::Interpreter values(graph);
  const auto set = [&](ValueId id) {
    const auto at = given.find(graph.value(id).name);
    values.set(id, at == given.end() ? random_value(graph.value(id)) : at->second);
  };
  for (ValueId id : graph.inputs) set(id);
  for (const Parameter& parameter : graph.parameters) set(parameter.value);
  if (graph.seed != kNone) values.set(graph.seed, reference::Tensor({1}, 1));
  if (graph.step != kNone) values.set(graph.step, reference::Tensor({1}, 3));
  values.run();
  return values;
}

inline ValueId parameter_named(const Graph& graph, const std::string& name) {
  for (const Parameter& parameter : graph.parameters)
    if (graph.value(parameter.value).name == name) return parameter.value;
  return kNone;
}

}  // namespace trainer::test
