// A batch norm in training, in f64: its gradient is the slope of all that depends on x, the statistics among it; what
// two ranks make of halves of a batch with joined sums is what one makes of the whole, and with sums of their own what
// each makes of its half.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "engine/ops/op_def.h"
#include "tests/reference/reference.h"

using namespace trainer;
using reference::Tensor;

namespace {

const Shape kX{4, 3, 5}, kSums{2, 3}, kChannels{3};
const double kEps = 1e-3;

Tensor random_tensor(const Shape& shape, int seed) {
  Tensor tensor(shape);
  std::mt19937_64 generator(static_cast<unsigned>(seed));
  std::normal_distribution<double> normal;
  for (double& x : tensor.data) x = normal(generator);
  return tensor;
}

Attributes counted(const Tensor& x) { return {{"eps", kEps}, {"count", x.size() / x.shape[1]}}; }

Tensor sums_of(const Tensor& x) { return reference::run(Op::batch_norm_sums, {}, {x}, {kSums})[0]; }

Tensor forward(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return reference::run(Op::batch_norm_apply, counted(x), {x, sums_of(x), weight, bias}, {x.shape})[0];
}

struct Gradients {
  Tensor x, weight, bias;
};
/// With the sums of `whole`, and `more` added to the gradient's sums.
Gradients backward(const Tensor& dy, const Tensor& x, const Tensor& weight, const Tensor& sums,
                   const Attributes& attributes, const Tensor* more = nullptr) {
  std::vector<Tensor> grads =
      reference::run(Op::batch_norm_grad_sums, attributes, {dy, x, sums}, {kSums, kChannels, kChannels});
  Tensor total = grads[0];
  for (std::int64_t i = 0; more != nullptr && i < total.size(); ++i) total[i] += (*more)[i];
  return {reference::run(Op::batch_norm_grad, attributes, {dy, x, weight, sums, total}, {x.shape})[0], grads[1],
          grads[2]};
}

Tensor half(const Tensor& whole, int rank) {
  Shape shape = whole.shape;
  shape[0] /= 2;
  Tensor part(shape);
  for (std::int64_t i = 0; i < part.size(); ++i) part[i] = whole[rank * part.size() + i];
  return part;
}

double worst(const Tensor& a, const Tensor& b) {
  double result = 0;
  for (std::int64_t i = 0; i < a.size(); ++i) result = std::fmax(result, std::fabs(a[i] - b[i]));
  return result;
}

}  // namespace

TEST_CASE("a batch norm in training has mean 0 and variance 1 in each channel, scaled and shifted") {
  const Tensor x = random_tensor(kX, 1), weight = random_tensor(kChannels, 2), bias = random_tensor(kChannels, 3);
  const Tensor sums = sums_of(forward(x, weight, bias)), of_x = sums_of(x);
  for (std::int64_t c = 0; c < 3; ++c) {
    const double mean = sums[c] / 20, variance = sums[3 + c] / 20 - mean * mean,
                 before = of_x[3 + c] / 20 - of_x[c] / 20 * (of_x[c] / 20);
    CHECK(mean == doctest::Approx(bias[c]).epsilon(1e-12));
    CHECK(variance == doctest::Approx(weight[c] * weight[c] * before / (before + kEps)).epsilon(1e-12));
  }
}

TEST_CASE("the gradient of a batch norm goes through its statistics") {
  const Tensor x = random_tensor(kX, 1), weight = random_tensor(kChannels, 2), bias = random_tensor(kChannels, 3),
               dy = random_tensor(kX, 4);
  const Gradients got = backward(dy, x, weight, sums_of(x), counted(x));
  const auto slope = [&](Tensor in[3], int which, std::int64_t i) {
    const auto objective = [&](double h) {
      Tensor moved[3] = {in[0], in[1], in[2]};
      moved[which][i] += h;
      const Tensor y = forward(moved[0], moved[1], moved[2]);
      double sum = 0;
      for (std::int64_t k = 0; k < y.size(); ++k) sum += y[k] * dy[k];
      return sum;
    };
    return (objective(0x1p-17) - objective(-0x1p-17)) / 0x1p-16;
  };
  Tensor in[3] = {x, weight, bias};
  for (std::int64_t i = 0; i < x.size(); ++i) CHECK(std::fabs(got.x[i] - slope(in, 0, i)) < 1e-8);
  for (std::int64_t c = 0; c < 3; ++c) {
    CHECK(std::fabs(got.weight[c] - slope(in, 1, c)) < 1e-8);
    CHECK(std::fabs(got.bias[c] - slope(in, 2, c)) < 1e-8);
  }
}

TEST_CASE("two ranks with joined sums are one, and parameters' gradients are sums over them") {
  const Tensor x = random_tensor(kX, 1), weight = random_tensor(kChannels, 2), dy = random_tensor(kX, 4);
  const Tensor sums = sums_of(x);
  const Gradients whole = backward(dy, x, weight, sums, counted(x));
  for (const int rank : {0, 1}) {
    const int other = 1 - rank;
    const Tensor more = reference::run(Op::batch_norm_grad_sums, counted(x), {half(dy, other), half(x, other), sums},
                                       {kSums, kChannels, kChannels})[0];
    const Gradients mine = backward(half(dy, rank), half(x, rank), weight, sums, counted(x), &more);
    const Gradients theirs = backward(half(dy, other), half(x, other), weight, sums, counted(x));
    CHECK(worst(mine.x, half(whole.x, rank)) < 1e-12);
    for (std::int64_t c = 0; c < 3; ++c) CHECK(std::fabs(mine.weight[c] + theirs.weight[c] - whole.weight[c]) < 1e-12);
  }
}

TEST_CASE("where ranks normalise by their own sums, sums are parts, and a rank counts its own elements") {
  Graph graph;
  graph.mesh = Mesh{{Axis::replicate, 2}};
  const auto value = [&](DType dtype, const Shape& shape, Placement placement) {
    Spec spec(dtype, shape);
    spec.place(Axis::replicate, placement);
    return graph.add_value({.name = "v", .spec = spec});
  };
  const Placement cut = Placement::shard(0), whole = {}, part = Placement::partial();
  for (const bool own : {false, true}) {
    Node apply{.name = "bn", .op = Op::batch_norm_apply};
    apply.attributes = {{"eps", kEps}, {"count", std::int64_t{20}}, {"own", own}};
    apply.inputs = {value(DType::f32, kX, cut), value(DType::f64, kSums, own ? part : whole),
                    value(DType::f32, kChannels, whole), value(DType::f32, kChannels, whole)};
    apply.outputs = {value(DType::f32, kX, cut)};
    CHECK(propagate(graph, apply, Axis::replicate) == std::vector{cut});
    CHECK(integer(signature_of(graph, apply), "count") == (own ? 10 : 20));
    apply.inputs[1] = value(DType::f64, kSums, own ? whole : part);
    CHECK_FALSE(propagate(graph, apply, Axis::replicate));
    Node update{.name = "bn", .op = Op::batch_norm_update};
    update.inputs = {value(DType::f64, kSums, part), value(DType::f32, kChannels, whole),
                     value(DType::f32, kChannels, whole)};
    CHECK_FALSE(propagate(graph, update, Axis::replicate));
    update.inputs[0] = value(DType::f64, kSums, whole);
    CHECK(propagate(graph, update, Axis::replicate) == std::vector<Placement>{});
  }
}
