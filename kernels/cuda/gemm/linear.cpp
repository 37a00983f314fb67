// linear and its gradients: each one product by cuBLASLt (products.h) with what belongs to it as its epilogue. Where
// cuBLASLt has no such epilogue for a shape or a dtype (an odd vocabulary, GELU in f32), a pass of its own stands in,
// in the same launch. Which of the two it is is found out when the kernel is prepared: the faster where choices are
// made by time (timed_choices.h), else the epilogue where there is one. The bias gradient is a pass unless the epilogue
// was measured to be faster: cuBLASLt accepts BGRADB where it has only slow kernels for it (llm.c leaves it out for
// that reason), and the pass costs one read of dy.
//
//   y  = x·Wᵀ + b     left x, right W transposed; bias by epilogue, else y is filled with it and the product adds to y
//   dx = dy·W         left dy, right W
//   dW = dyᵀ·x, db    left dy transposed, right x; db, the sums of left, by column sums after it, or by epilogue
#include "kernels/linear.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/compression.h"
#include "engine/core/error.h"
#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/gemm/linear_parts.h"
#include "kernels/cuda/gemm/linear_product.h"
#include "kernels/cuda/gemm/products.h"
#include "kernels/cuda/runtime/device_choices.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/timed_choices.h"
#include "kernels/cuda/target.h"

namespace trainer::kernels::cuda {
namespace {

using ProductPtr = std::unique_ptr<LinearProduct>;

const TensorDesc& desc(const Signature& s, int index) { return s.operands[static_cast<std::size_t>(index)]; }

void expect_one_dtype(const Signature& s, int first, int last) {
  for (int i = first + 1; i <= last; ++i)
    if (desc(s, i).dtype != desc(s, first).dtype) refuse_dtypes(s, "one compute dtype for all but parameter gradients");
}

ProductPtr make_product(const ProductSpec& spec, const Context& context, const Signature& s) {
  ProductPtr product = LinearProduct::make(spec, context);
  if (!product) throw IoError("cuBLASLt: no algorithm for a " + spec.str() + " in " + describe(s));
  return product;
}

/// The activation as a kernel of its own: gelu(x) in place, or its gradient in place of dy.
Prepared make_activation(Op op, const TensorDesc& tensor, const Context& context) {
  Signature s{op, {{"approximate", std::string("tanh")}}, {tensor, tensor}};
  if (op == Op::gelu) return prepare_activation(s, context);
  s.operands.push_back(tensor);
  return prepare_activation_grad(s, context);
}

void run_beside(Kernel& kernel, const Call& call, std::initializer_list<void*> operands) {
  kernel.run({.operands = std::span(operands.begin(), operands.size()), .stream = call.stream});
}

/// Whether GELU and sums are left to the library's epilogues. A bias always is.
enum class Fused : bool { no, yes };

/// All that a choice depends on.
std::string key_of(const Signature& s) {
  std::string key = describe(s);
  for (const auto& [name, value] : s.attributes.items()) {
    key += " " + name + "=";
    std::visit(
        [&](const auto& is) {
          if constexpr (std::is_same_v<std::decay_t<decltype(is)>, std::string>)
            key += is;
          else
            key += std::to_string(is);
        },
        value);
  }
  return key;
}

/// Milliseconds of a run on scratch memory; nothing where that is too small.
std::optional<float> time_of(Kernel& kernel, const Signature& s, const Context& context) {
  Scratch scratch(context);
  std::vector<void*> operands;
  for (const TensorDesc& tensor : s.operands) operands.push_back(scratch.take(tensor.bytes()));
  void* const workspace = scratch.take(CudaTarget(context.capability, context.units).workspace_bytes(s));
  if (workspace == nullptr || std::ranges::find(operands, nullptr) != operands.end()) return std::nullopt;
  return time_on_device(
      [&](cudaStream_t stream) { kernel.run({.operands = operands, .workspace = workspace, .stream = stream}); });
}

/// K(s, context, fused): as `unmeasured`, or of both ways the faster.
template <typename K>
Prepared make_linear(const Signature& s, const Context& context, bool has_choice, Fused unmeasured) {
  if (product_scales(s) != Fp8Scales::none)
    return std::make_unique<K>(s, context, Fused::no);  // it has no such epilogues
  if (!has_choice || context.choices == nullptr) return std::make_unique<K>(s, context, unmeasured);
  const std::string together = "as an epilogue", apart = "as a pass of its own";
  const std::optional<std::string> choice = context.choices->choose(
      key_of(s), [&](const std::string& known) { return known == together || known == apart; },
      [&]() -> std::optional<std::string> {
        K one(s, context, Fused::yes), two(s, context, Fused::no);
        if (!one.has_epilogue()) return apart;
        float epilogue = std::numeric_limits<float>::infinity(), pass = epilogue;
        for (int turn = 0; turn < kTimedTurns; ++turn) {
          const std::optional<float> first = time_of(one, s, context), second = time_of(two, s, context);
          if (!first || !second) return std::nullopt;
          epilogue = std::min(epilogue, *first), pass = std::min(pass, *second);
        }
        return epilogue <= pass ? together : apart;
      });
  if (!choice) return std::make_unique<K>(s, context, unmeasured);
  return std::make_unique<K>(s, context, *choice == together ? Fused::yes : Fused::no);
}

// ---- linear ----

struct Forward {
  ProductPtr product;
  bool fills = false;   ///< y holds the bias before the product adds to it
  Prepared activation;  ///< or null: there is none, or the product has it
};

Epilogue gelu_epilogue(bool bias, bool pre) {
  if (pre) return bias ? Epilogue::gelu_aux_bias : Epilogue::gelu_aux;
  return bias ? Epilogue::gelu_bias : Epilogue::gelu;
}

Forward make_forward(const Signature& s, const Context& context, bool bias, Fused fused) {
  using At = LinearOperands;
  const bool has_bias = flag(s, "bias"), gelu = flag(s, "gelu"), pre = flag(s, "pre");
  const TensorDesc &x = desc(s, At::x), &y = desc(s, At::y(has_bias));
  ProductSpec spec{.rows = x.shape.rows(),
                   .columns = y.shape[-1],
                   .inner = x.shape[-1],
                   .right_transposed = true,
                   .operands = x.dtype,
                   .result = x.dtype,
                   .workspace_bytes = product_workspace(context.capability),
                   .fp8 = product_scales(s),
                   .square_right = true};
  Forward forward;
  if (gelu) {
    spec.epilogue = gelu_epilogue(bias, pre);
    if (fused == Fused::yes) forward.product = LinearProduct::make(spec, context);
    if (forward.product) return forward;
    forward.activation = make_activation(Op::gelu, y, context);
  }
  spec.epilogue = bias ? Epilogue::bias : Epilogue::none;
  forward.product = LinearProduct::make(spec, context);
  if (forward.product) return forward;
  forward.fills = bias;
  spec.epilogue = Epilogue::none;
  spec.accumulate = bias;
  forward.product = make_product(spec, context, s);
  return forward;
}

class Linear final : public Kernel {
 public:
  Linear(const Signature& s, const Context& context, Fused fused)
      : bias_(flag(s, "bias")),
        pre_(flag(s, "pre")),
        y_(desc(s, LinearOperands::y(bias_))),
        whole_(make_forward(s, context, bias_, fused)) {
    if (bias_ && flag(s, "partial")) without_bias_ = make_forward(s, context, false, fused);
  }
  bool has_epilogue() const { return !whole_.activation; }

  void run(const Call& call) override {
    using At = LinearOperands;
    const bool bias = bias_ && (call.origin == 0 || !without_bias_.product);
    Forward& forward = bias || !bias_ ? whole_ : without_bias_;
    void* const y = operand<void>(call, At::y(bias_));
    void* const pre = pre_ ? operand<void>(call, At::pre(bias_)) : nullptr;
    void* const result = forward.activation && pre ? pre : y;  // what the activation reads
    void* const vector = bias ? operand<void>(call, At::bias) : nullptr;
    if (forward.fills) fill_rows(call, y_.dtype, vector, result, y_.shape.rows(), y_.shape[-1]);
    forward.product->run(
        call, {operand<void>(call, At::x), operand<void>(call, At::weight), result, vector, pre, call.workspace});
    if (forward.activation) run_beside(*forward.activation, call, {result, y});
  }

 private:
  bool bias_, pre_;
  TensorDesc y_;
  Forward whole_;
  Forward without_bias_;  ///< of a `partial` one, where its origin is not 0
};

// ---- linear_grad_input ----

class GradInput final : public Kernel {
 public:
  GradInput(const Signature& s, const Context& context, Fused fused) : gelu_(flag(s, "gelu")) {
    using At = LinearGradInputOperands;
    const TensorDesc &dy = desc(s, At::dy), &dx = desc(s, At::dx(gelu_));
    ProductSpec spec{.rows = dy.shape.rows(),
                     .columns = dx.shape[-1],
                     .inner = dy.shape[-1],
                     .operands = dy.dtype,
                     .result = dy.dtype,
                     .workspace_bytes = product_workspace(context.capability),
                     .fp8 = product_scales(s),
                     .left_code = Fp8Code::e5m2,
                     .square_right = true};
    if (gelu_) {
      spec.epilogue = Epilogue::gelu_gradient;
      if (fused == Fused::yes) product_ = LinearProduct::make(spec, context);
      if (product_) return;
      activation_ = make_activation(Op::gelu_grad, dx, context);
      spec.epilogue = Epilogue::none;
    }
    product_ = make_product(spec, context, s);
  }
  bool has_epilogue() const { return !activation_; }

  void run(const Call& call) override {
    using At = LinearGradInputOperands;
    void* const dx = operand<void>(call, At::dx(gelu_));
    void* const pre = gelu_ ? operand<void>(call, At::pre) : nullptr;
    product_->run(call, {.left = operand<void>(call, At::dy),
                         .right = operand<void>(call, At::weight),
                         .result = dx,
                         .aux = pre,
                         .workspace = call.workspace});
    if (activation_) run_beside(*activation_, call, {dx, pre, dx});
  }

 private:
  bool gelu_;
  ProductPtr product_;
  Prepared activation_;  ///< or null
};

// ---- linear_grad_weight ----

class GradWeight final : public Kernel {
 public:
  GradWeight(const Signature& s, const Context& context, Fused fused)
      : bias_(flag(s, "bias")),
        accumulate_(accumulates(s)),
        apart_(rounds_apart(s)),
        r_(desc(s, LinearGradWeightOperands::dweight).dtype),
        elements_(desc(s, LinearGradWeightOperands::dweight).elements()),
        sums_(desc(s, LinearGradWeightOperands::dy).dtype, r_, desc(s, LinearGradWeightOperands::dy).shape.rows(),
              desc(s, LinearGradWeightOperands::dy).shape[-1], accumulate_, context.units) {
    const TensorDesc &x = desc(s, LinearGradWeightOperands::x), &dy = desc(s, LinearGradWeightOperands::dy);
    ProductSpec spec{.rows = dy.shape[-1],
                     .columns = x.shape[-1],
                     .inner = dy.shape.rows(),
                     .left_transposed = true,
                     .operands = dy.dtype,
                     .result = apart_ ? DType::f32 : r_,
                     .accumulate = accumulate_ && !apart_,
                     .workspace_bytes = product_workspace(context.capability),
                     .fp8 = product_scales(s),
                     .left_code = Fp8Code::e5m2};
    if (fused == Fused::yes && bias_ && !apart_ && (!accumulate_ || r_ == DType::f32)) {
      // The library overwrites the sums: those to be added come by way of the end of the product's workspace.
      ProductSpec with_sums = spec;
      with_sums.epilogue = Epilogue::left_sums;
      if (accumulate_) with_sums.workspace_bytes -= padded_to_64(sums_.cut.columns * size_of(r_));
      aside_ = with_sums.workspace_bytes;
      if (aside_ > 0) product_ = LinearProduct::make(with_sums, context);
      has_sums_ = product_ != nullptr;
    }
    if (!product_) product_ = make_product(spec, context, s);
  }
  bool has_epilogue() const { return has_sums_; }

  void run(const Call& call) override {
    using At = LinearGradWeightOperands;
    char* const start = static_cast<char*>(call.workspace);
    char* const workspace = apart_ ? start + aligned(elements_ * size_of(DType::f32)) : start;
    const void* const dy = operand<void>(call, At::dy);
    void* const dweight = operand<void>(call, At::dweight);
    void* const dbias = bias_ ? operand<void>(call, At::dbias) : nullptr;
    void* const summed = has_sums_ && accumulate_ ? workspace + aside_ : dbias;
    product_->run(call, {.left = dy,
                         .right = operand<void>(call, At::x),
                         .result = apart_ ? start : dweight,
                         .bias = summed,
                         .workspace = workspace});
    if (apart_) round_to(call, reinterpret_cast<const float*>(start), r_, dweight, elements_, accumulate_);
    if (!bias_) return;
    if (!has_sums_)
      sums_.run(call, dy, dbias, reinterpret_cast<float*>(workspace));
    else if (accumulate_)
      round_to(call, static_cast<const float*>(summed), r_, dbias, sums_.cut.columns, true);
  }

 private:
  bool bias_, accumulate_, apart_, has_sums_ = false;
  DType r_;
  std::int64_t elements_, aside_ = 0;
  ColumnSums sums_;
  ProductPtr product_;
};

}  // namespace

Prepared prepare_linear(const Signature& s, const Context& context) {
  using At = LinearOperands;
  const bool bias = flag(s, "bias"), pre = flag(s, "pre"), gelu = flag(s, "gelu");
  expect_operands(s, static_cast<std::size_t>(At::y(bias)) + (pre ? 2 : 1));
  expect_compute_dtype(s, At::x);
  expect_one_dtype(s, At::x, static_cast<int>(s.operands.size()) - 1);
  CHECK(!(pre && !gelu) && !(gelu && flag(s, "partial")),
        describe(s) + ": pre stands with gelu alone, and partial never does");
  return make_linear<Linear>(s, context, gelu, Fused::yes);
}

Prepared prepare_linear_grad_input(const Signature& s, const Context& context) {
  const bool gelu = flag(s, "gelu");
  expect_operands(s, static_cast<std::size_t>(LinearGradInputOperands::dx(gelu)) + 1);
  expect_compute_dtype(s, 0);
  expect_one_dtype(s, 0, LinearGradInputOperands::dx(gelu));
  return make_linear<GradInput>(s, context, gelu, Fused::yes);
}

Prepared prepare_linear_grad_weight(const Signature& s, const Context& context) {
  using At = LinearGradWeightOperands;
  const bool bias = flag(s, "bias");
  expect_operands(s, static_cast<std::size_t>(bias ? At::dbias : At::dweight) + 1);
  expect_compute_dtype(s, At::x);
  expect_one_dtype(s, At::x, At::dy);
  const DType r = desc(s, At::dweight).dtype;
  if (r != DType::f32 && r != DType::bf16) refuse_dtypes(s, "f32 or bf16 gradients of parameters");
  if (bias) expect_one_dtype(s, At::dweight, At::dbias);
  return make_linear<GradWeight>(s, context, bias, Fused::no);
}

}  // namespace trainer::kernels::cuda
