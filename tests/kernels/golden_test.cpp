// Kernels, forward and backward, on the operands of the goldens.
//
// Each kernel of a case (the op, then the nodes of its declared gradient) runs on what the kernels before it left, and
// is compared with the reference in f64 on those very operands. So the tolerance is that of one kernel: its sums in
// f32, 2^-24 of the sum of the terms' sizes times a small factor (32 here: the longest sum has 266 terms), and one
// rounding of the output, 2^-8 of a bf16 value, 2^-11 of an f16 one. What the f64 reference gives is itself held to
// PyTorch elsewhere (tests/ops).
#include <doctest/doctest.h>

#include <cmath>
#include <string>

#include "tests/kernels/against_reference.h"
#include "tests/ops/one_node.h"

using namespace trainer;
using goldens::Case;
using goldens::OneNode;
using kernels::test::Buffer;
using kernels::test::Runner;
using reference::Tensor;

namespace {

void store(const Tensor& from, DType dtype, Buffer& to) {
  for (std::int64_t i = 0; i < from.size(); ++i) kernels::test::write(to, dtype, i, from[i]);
}

Tensor load(const Buffer& from, DType dtype, const Shape& shape) {
  Tensor to(shape);
  for (std::int64_t i = 0; i < to.size(); ++i) to[i] = kernels::test::value_at(from, dtype, i);
  return to;
}

double largest(const Tensor& t) {
  double result = 0;
  for (double x : t.data) result = std::fmax(result, std::fabs(x));
  return result;
}

/// How far `got` is from `want` at worst, as a multiple of the tolerance for `dtype` at that element. `terms` is the
/// size of the largest term that is summed, where that may be far above the sum.
double excess(const Tensor& got, const Tensor& want, DType dtype, double terms = 0) {
  const double sums = 32 * 0x1p-24 * (std::fmax(terms, largest(want)) + 1e-6),
               rounding = std::fmax(kernels::test::bound(dtype), 0x1p-22);
  double worst = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) {
    const double off =
        std::fabs(got[i] - want[i]) / (sums + rounding * std::fabs(want[i]) + kernels::test::subnormals(dtype));
    worst = std::isnan(off) ? INFINITY : std::fmax(worst, off);
  }
  return worst;
}

/// Runs the kernels of a case one after another.
class Kernels {
 public:
  Kernels(const Case& c, const OneNode& one, Runner& runner) : one_(one), runner_(runner), origin_(c.origin) {
    for (const Value& value : one.graph.values) buffers_.emplace_back(value.desc().bytes());
    for (std::size_t i = 0; i < c.in.size(); ++i) put(one.inputs[i], c.in[i]);
    if (one.dout != kNone) put(one.dout, c.dout);
  }

  Tensor get(ValueId id) const {
    const Value& value = one_.graph.value(id);
    return load(buffers_[static_cast<std::size_t>(one_.graph.storage(id))], value.dtype(), value.shape());
  }

  void run(const Node& node, bool accumulate) {
    if (one_.graph.value(node.outputs[0]).alias_of != kNone) return;
    Signature signature = signature_of(one_.graph, node);
    if (record(node.op).adds()) signature.attributes.set("accumulate", accumulate);
    std::vector<void*> operands;
    for (ValueId id : node.inputs)
      operands.push_back(buffers_[static_cast<std::size_t>(one_.graph.storage(id))].data());
    for (ValueId id : node.outputs)
      operands.push_back(buffers_[static_cast<std::size_t>(one_.graph.storage(id))].data());
    runner_.run(signature, operands, origin_);
  }

  /// Runs with output 0 in the memory of a copy of input `index`; returns the output.
  Tensor run_in_place(const Node& node, std::size_t index) {
    Signature signature = signature_of(one_.graph, node);
    if (record(node.op).adds()) signature.attributes.set("accumulate", false);
    const Value& value = one_.graph.value(node.inputs[index]);
    Buffer shared(value.desc().bytes());
    store(get(node.inputs[index]), value.dtype(), shared);
    std::vector<void*> operands;
    for (ValueId id : node.inputs)
      operands.push_back(buffers_[static_cast<std::size_t>(one_.graph.storage(id))].data());
    for (ValueId id : node.outputs)
      operands.push_back(buffers_[static_cast<std::size_t>(one_.graph.storage(id))].data());
    operands[index] = operands[node.inputs.size()] = shared.data();
    runner_.run(signature, operands, origin_);
    return load(shared, value.dtype(), one_.graph.value(node.outputs[0]).shape());
  }

 private:
  void put(ValueId id, const Tensor& tensor) {
    store(tensor, one_.graph.value(id).dtype(), buffers_[static_cast<std::size_t>(id)]);
  }

  const OneNode& one_;
  Runner& runner_;
  const std::int64_t origin_;
  std::vector<Buffer> buffers_;
};

/// What the reference makes of a node's present inputs.
struct Expected {
  std::vector<Tensor> outputs;
  double terms = 0;  ///< size of the terms of the outputs, where they cancel by design
};

Expected expected(const Graph& graph, const Node& node, const Kernels& kernels, std::int64_t origin) {
  std::vector<Tensor> inputs;
  for (ValueId id : node.inputs) inputs.push_back(kernels.get(id));
  std::vector<Shape> shapes;
  for (ValueId id : node.outputs) shapes.push_back(graph.value(id).shape());
  Expected result{reference::run(node.op, node.attributes, inputs, shapes, origin), 0};
  if (node.op == Op::layer_norm_grad ||
      node.op == Op::rms_norm_grad) {  // rstd·(dy·w − its projections); dy·(x·rstd − mean·rstd)
    result.terms = largest(inputs[0]) * std::fmax(largest(inputs[1]), largest(inputs[2])) * largest(inputs.back());
  }
  const DType dtype = graph.value(node.outputs[0]).dtype();
  if ((node.op == Op::attention || node.op == Op::attention_grad) && dtype != DType::f32) {
    // Tensor cores take what stands between two products in 16 bits: a few roundings of numbers around 1, in place of
    // those of the sums.
    double size = 1;
    for (const Tensor& output : result.outputs) size = std::fmax(size, largest(output));
    result.terms = 4 * kernels::test::bound(dtype) * size * 0x1p24 / 32;
  }
  return result;
}

void check_case(const Case& c, DType compute, DType reduce, Runner& runner) {
  const OneNode one = goldens::one_node(c, compute, reduce);
  Kernels kernels(c, one, runner);
  for (const Node& node : one.graph.nodes) {
    CAPTURE(name_of(node.op));
    const auto [want, terms] = expected(one.graph, node, kernels, c.origin);
    kernels.run(node, false);
    for (std::size_t i = 0; i < want.size(); ++i) {
      CAPTURE(i);
      CHECK(excess(kernels.get(node.outputs[i]), want[i], one.graph.value(node.outputs[i]).dtype(), terms) <= 1);
    }
    if (!record(node.op).adds()) continue;
    kernels.run(node, true);  // the outputs that accumulate are doubled
    for (std::size_t i = 0; i < want.size(); ++i) {
      const Value& output = one.graph.value(node.outputs[i]);
      if (output.kind != ValueKind::gradient && output.dtype() != DType::f64) continue;
      Tensor twice = want[i];
      for (double& x : twice.data) x *= 2;
      CHECK(excess(kernels.get(node.outputs[i]), twice, output.dtype(), 2 * terms) <= 1);
    }
    kernels.run(node, false);
  }
}

/// Every pair of operands that may share memory, sharing it.
void check_in_place(const Case& c, DType compute, Runner& runner) {
  const OneNode one = goldens::one_node(c, compute, DType::f32);
  Kernels kernels(c, one, runner);
  for (const Node& node : one.graph.nodes) {
    CAPTURE(name_of(node.op));
    kernels.run(node, false);
    const Tensor apart = kernels.get(node.outputs[0]);
    for (const auto& [input, output] : definition(node.op).in_place) {
      if (input >= static_cast<int>(node.inputs.size()) || output >= static_cast<int>(node.outputs.size()))
        continue;  // of the fused form
      REQUIRE(output == 0);
      CHECK(kernels.run_in_place(node, static_cast<std::size_t>(input)).data == apart.data);
    }
  }
}

void check_all(DType compute, DType reduce) {
  for (Runner* runner : kernels::test::few_runners()) {
    for (const Case& c : goldens::load_cases()) {
      if (definition(c.op).update) continue;
      CAPTURE(runner->name());
      CAPTURE(name_of(compute));
      CAPTURE(c.name);
      check_case(c, compute, reduce, *runner);
    }
  }
}

}  // namespace

TEST_CASE("f32 kernels agree with the reference, forward and backward") { check_all(DType::f32, DType::f32); }

TEST_CASE("kernels of 16 bits agree with the reference, forward and backward") {
  for (DType compute : kernels::test::compute_dtypes())
    if (compute != DType::f32) check_all(compute, DType::f32);
}

TEST_CASE("kernels write gradients in bf16 where they are reduced so") { check_all(DType::bf16, DType::bf16); }

TEST_CASE("kernels that may write over an input give the same bits when they do") {
  for (DType compute : kernels::test::compute_dtypes()) {
    for (const Case& c : goldens::load_cases()) {
      if (definition(c.op).update) continue;
      CAPTURE(c.name);
      check_in_place(c, compute, kernels::test::best_runner());
    }
  }
}

TEST_CASE("optimizers update in place as PyTorch does, whole or cut in slices") {
  for (const Case& c : goldens::load_cases()) {
    if (!definition(c.op).update) continue;
    CAPTURE(c.name);
    const std::size_t num_states = c.out.size() - 1;
    for (const bool working : {false, true}) {
      for (const std::int64_t cut : {c.in[0].size(), std::int64_t{16}}) {
        std::vector<Tensor> got(c.out.size() + 1, Tensor(c.in[0].shape));
        for (std::int64_t first = 0; first < c.in[0].size(); first += cut) {
          const std::int64_t count = std::min(cut, c.in[0].size() - first);
          Signature signature{c.op, c.attributes, {}};
          signature.attributes.set("working", working);
          std::vector<Buffer> buffers;
          std::vector<void*> operands;
          for (std::size_t i = 0; i < c.in.size() + (working ? 1 : 0); ++i) {
            const bool vector = i < 2 + num_states || i >= c.in.size();
            const DType dtype = i >= c.in.size() ? DType::bf16 : c.integer[i] ? DType::i32 : DType::f32;
            const Shape shape = vector ? Shape{count} : c.in[i].shape;
            buffers.emplace_back(shape.elements() * size_of(dtype));
            signature.operands.push_back({dtype, shape});
            if (i >= c.in.size()) continue;
            Tensor part(shape);
            for (std::int64_t e = 0; e < part.size(); ++e) part[e] = c.in[i][vector ? first + e : e];
            store(part, dtype, buffers.back());
          }
          for (const Buffer& buffer : buffers) operands.push_back(buffer.data());
          kernels::test::best_runner().run(signature, operands, first);
          const auto collect = [&](std::size_t operand, std::size_t output, DType dtype) {
            for (std::int64_t e = 0; e < count; ++e)
              got[output][first + e] = kernels::test::read(buffers[operand], dtype, e);
          };
          collect(0, 0, DType::f32);
          for (std::size_t s = 0; s < num_states; ++s) collect(2 + s, 1 + s, DType::f32);
          if (working) collect(c.in.size(), c.out.size(), DType::bf16);
        }
        for (std::size_t i = 0; i < c.out.size(); ++i) CHECK(excess(got[i], c.out[i], DType::f32) <= 1);
        if (working) CHECK(excess(got.back(), c.out[0], DType::bf16) <= 1);
      }
    }
  }
}
