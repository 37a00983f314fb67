// The gradient that each op declares, interpreted in f64, against PyTorch and against central differences.
//
// Against PyTorch: goldens are f32, so 2^-24 of each value, doubled, and of the largest of the tensor where sums cancel
// (1e-12 where everything does).
// Against differences: with step h = 2^-17 of a value of order 1 the error is h² f‴ / 6 ≈ 1e-11 and the roundoff
// 2^-53 |f| / h ≈ 1e-11 |f|; tolerance 1e-6 of the tensor's largest gradient.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/ops/one_node.h"
#include "tests/reference/interpreter.h"

using namespace trainer;
using goldens::Case;
using goldens::OneNode;
using reference::Interpreter;
using reference::Tensor;

namespace {

double largest(const Tensor& t) {
  double result = 0;
  for (double x : t.data) result = std::fmax(result, std::fabs(x));
  return result;
}

double worst_difference(const Tensor& a, const Tensor& b) {
  double result = a.size() == b.size() ? 0 : INFINITY;
  for (std::int64_t i = 0; i < b.size() && i < a.size(); ++i) {
    const double off = std::fabs(a[i] - b[i]);
    result = std::isnan(off) ? INFINITY : std::fmax(result, off);
  }
  return result;
}

Interpreter evaluated(const Case& c, const OneNode& one) {
  Interpreter values(one.graph);
  for (std::size_t i = 0; i < c.in.size(); ++i) values.set(one.inputs[i], c.in[i]);
  if (one.dout != kNone) values.set(one.dout, c.dout);
  values.run(0, SIZE_MAX, c.origin);
  return values;
}

/// Σ dout · output 0, with input `index` replaced.
double objective(const Case& c, std::size_t index, const Tensor& input) {
  std::vector<Tensor> in = c.in;
  in[index] = input;
  std::vector<Shape> shapes;
  for (const Tensor& out : c.out) shapes.push_back(out.shape);
  const Tensor out = reference::run(c.op, c.attributes, in, shapes, c.origin)[0];
  double sum = 0;
  for (std::int64_t i = 0; i < out.size(); ++i) sum += out[i] * c.dout[i];
  return sum;
}

Tensor central_differences(const Case& c, std::size_t index) {
  Tensor gradient(c.in[index].shape);
  const std::int64_t stride = gradient.size() / 300 + 1;  // of a large tensor, a few hundred elements
  for (std::int64_t i = 0; i < gradient.size(); i += stride) {
    const double h = 0x1p-17;
    Tensor more = c.in[index], less = c.in[index];
    more[i] += h;
    less[i] -= h;
    gradient[i] = (objective(c, index, more) - objective(c, index, less)) / (2 * h);
  }
  return gradient;
}

/// `t` where `central_differences` looks, else 0.
Tensor looked_at(Tensor t) {
  const std::int64_t stride = t.size() / 300 + 1;
  for (std::int64_t i = 0; i < t.size(); ++i) t[i] = i % stride == 0 ? t[i] : 0;
  return t;
}

}  // namespace

TEST_CASE("declared gradients are PyTorch's") {
  for (const Case& c : goldens::load_cases()) {
    if (c.gradients.empty()) continue;
    CAPTURE(c.name);
    const OneNode one = goldens::one_node(c, DType::f32, DType::f32);
    const Interpreter values = evaluated(c, one);
    for (const auto& [input, want] : c.gradients) {
      CAPTURE(input);
      const ValueId id = one.gradients[static_cast<std::size_t>(input)];
      REQUIRE(id != kNone);
      CHECK(worst_difference(values.get(id), want) <= 0x1p-23 * largest(want) + 1e-12);
    }
  }
}

TEST_CASE("declared gradients are the slopes of the outputs") {
  for (const Case& c : goldens::load_cases()) {
    if (c.gradients.empty()) continue;
    CAPTURE(c.name);
    const OneNode one = goldens::one_node(c, DType::f32, DType::f32);
    const Interpreter values = evaluated(c, one);
    for (const auto& [input, want] : c.gradients) {
      CAPTURE(input);
      const Tensor got = values.get(one.gradients[static_cast<std::size_t>(input)]);
      CHECK(worst_difference(looked_at(got), central_differences(c, static_cast<std::size_t>(input))) <=
            1e-6 * (largest(want) + 1e-3));
    }
  }
}

TEST_CASE("signatures of declared gradients say what kernels need") {
  for (const Case& c : goldens::load_cases()) {
    CAPTURE(c.name);
    const OneNode one = goldens::one_node(c, DType::bf16, DType::f32);
    for (const Node& node : one.graph.nodes) {
      const Signature signature = signature_of(one.graph, node);
      CHECK(signature.operands.size() == node.inputs.size() + node.outputs.size());
      CHECK(cost_of(signature).bytes_written > 0);
    }
  }
}

TEST_CASE("the slopes of a router's losses are those of what is added to its sums") {
  for (const char* score : {"softmax", "sigmoid"}) {
    const Shape of_logits{2, 4, 5}, chosen{2, 4, 2};
    Tensor logits(of_logits), choices(chosen);
    for (std::int64_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(1.7 * static_cast<double>(i * i + 1));
    for (std::int64_t i = 0; i < choices.size(); ++i) choices[i] = static_cast<double>((3 * i + i / 2) % 5);
    const Attributes losses{{"score", std::string(score)}, {"aux", 0.5}, {"z", 0.25}};
    const auto sum = [&](const Tensor& x) {
      return reference::run(Op::router_losses, losses, {x, choices, Tensor({2})}, {Shape{2}})[0][0];
    };
    Attributes of_gradient = losses;
    of_gradient.set("losses", true);
    const Tensor slopes =
        reference::run(Op::route_grad, of_gradient, {Tensor(chosen), logits, choices, Tensor({1}, 1)}, {of_logits})[0];
    for (std::int64_t i = 0; i < logits.size(); ++i) {
      Tensor more = logits, less = logits;
      more[i] += 0x1p-17;
      less[i] -= 0x1p-17;
      CHECK(std::fabs((sum(more) - sum(less)) * 0x1p16 - slopes[i]) < 1e-8);
    }
  }
}
