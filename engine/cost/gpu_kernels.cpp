// Kernels on a GPU by class: products, attention, and everything else, which moves bytes.
#include <algorithm>
#include <cmath>
#include <string>

#include "engine/core/check.h"
#include "engine/core/op_record.h"
#include "engine/core/zigzag.h"
#include "engine/cost/gpu_attention.h"
#include "engine/cost/gpu_gemm.h"
#include "engine/cost/kernel_times.h"
#include "engine/cost/work.h"
#include "engine/ops/op_def.h"

namespace trainer::cost {
namespace {

// What a kernel takes from its first load to its last store besides moving: one round trip to memory and the tail of
// its last blocks.
constexpr double kRamp_us = 1.5;

// `extra` bytes beside those of the operands.
Estimate stream(const DeviceModel& device, const Signature& signature, const Cost& cost, double extra = 0) {
  const double bytes = cost.bytes_read + cost.bytes_written + extra;
  if (bytes == 0) return {};
  const double bandwidth =
      device.memory_bandwidth.value * device.achievable_or("memory", 0.88) * record(signature.op).bandwidth / 1e6;
  // What fits the last-level cache beside its neighbours was written or will be read there, at some twice the
  // bandwidth.
  const double near = bytes < 0.25 * static_cast<double>(device.cache_bytes) ? 0.5 : 1;
  const double moving = bytes * near / bandwidth;
  const auto share = device.achievable.find("memory");
  const double spread =
      std::hypot(moving > kRamp_us ? 0.1 : 0.35, share == device.achievable.end() ? 0.1 : share->second.spread);
  return {kRamp_us + moving, spread, moving > kRamp_us ? Bound::memory : Bound::latency};
}

std::int64_t row_alignment(std::initializer_list<std::int64_t> elements, DType dtype) {
  std::int64_t alignment = 16;
  for (std::int64_t row : elements)
    while (row * size_of(dtype) % alignment != 0) alignment /= 2;
  return alignment;
}

Product product_of(const Signature& s, const Cost& cost, int first_output) {
  const TensorDesc& out = s.operands[static_cast<std::size_t>(first_output)];
  Product p;
  p.dtype = s.operands[0].dtype;
  const bool accumulate = accumulates(s);
  p.result_bytes = static_cast<double>(out.bytes()) * (accumulate ? 2 : 1);
  p.operand_bytes = std::max(0.0, cost.bytes_read + cost.bytes_written - p.result_bytes);
  return p;
}

// Products of all experts in one kernel, each of its own rows: as one of all rows that hold a choice.
Product expert_product(const Signature& s, const Cost& cost) {
  const bool grad_weight = s.op == Op::expert_linear_grad_weight;
  const std::size_t at = grad_weight ? 3 : 2;
  const Shape& weight = s.operands[at].shape;
  const auto rows =
      static_cast<std::int64_t>(std::ceil(real(s, "filled") * static_cast<double>(s.operands[at - 1].elements())));
  Product p = product_of(s, cost, 3);
  p.m = grad_weight ? weight[0] * weight[1] : rows;
  p.n = s.op == Op::expert_linear ? weight[1] : weight[2];
  p.k = grad_weight ? std::max<std::int64_t>(1, rows / weight[0]) : s.op == Op::expert_linear ? weight[2] : weight[1];
  p.alignment = row_alignment({weight[1], weight[2]}, p.dtype);
  return p;
}

Estimate plus(Estimate a, const Estimate& b) {
  const double us = a.us + b.us;
  a.spread = us > 0 ? (a.us * a.spread + b.us * b.spread) / us : 0;
  if (b.us > a.us) a.bound = b.bound;
  a.us = us;
  return a;
}

Product linear_product(const Signature& s, const Cost& cost) {
  const auto& in = s.operands;
  if (s.op == Op::expert_linear || s.op == Op::expert_linear_grad_input || s.op == Op::expert_linear_grad_weight)
    return expert_product(s, cost);
  if (s.op == Op::linear_grad_weight) {  // dW [out, in] = dyᵀ·x over the rows
    Product p = product_of(s, cost, 2);
    p.m = in[1].shape[-1], p.n = in[0].shape[-1], p.k = in[0].shape.rows();
    p.alignment = row_alignment({p.m, p.n}, p.dtype);
    return p;
  }
  const std::int64_t out = in[1].shape[0], inner = in[1].shape[1], rows = in[0].shape.rows();
  Product p = product_of(s, cost, static_cast<int>(in.size()) - 1);
  p.m = rows;
  p.n = s.op == Op::linear ? out : inner;
  p.k = s.op == Op::linear ? inner : out;
  p.alignment = row_alignment({out, inner}, p.dtype);
  // An epilogue's second tensor moves where the result does: written beside it, or read before it.
  if (flag(s, s.op == Op::linear ? "pre" : "gelu")) {
    p.operand_bytes -= p.result_bytes;
    p.result_bytes *= 2;
  }
  return p;
}

// Both operands are read and their codes written first, those with one scale read once more before that. The activation
// is a pass of its own.
Estimate fp8_linear(const DeviceModel& device, const Signature& s, const Cost& cost) {
  Product p = linear_product(s, cost);
  const TensorDesc& result = s.operands[s.op == Op::linear_grad_weight ? 2 : s.operands.size() - 1];
  const auto codes = static_cast<double>(p.m * p.k + p.k * p.n), written = static_cast<double>(result.bytes());
  p.fp8 = true;
  p.operand_bytes = codes;
  p.result_bytes = written * (accumulates(s) ? 2 : 1);
  const bool gelu = s.op != Op::linear_grad_weight && flag(s, "gelu");
  const double passes = codes * (text(s, "fp8") == name_of(Fp8Scales::tensor) ? 5 : 3) +
                        (gelu ? written * (s.op == Op::linear ? 2 : 3) : 0);
  return plus(gpu_product(device, p), stream(device, s, Cost{}, passes));
}

// The bias gradient is a pass over dy of its own.
Estimate linear(const DeviceModel& device, const Signature& s, const Cost& cost) {
  const Estimate product =
      multiplies_fp8(s) ? fp8_linear(device, s, cost) : gpu_product(device, linear_product(s, cost));
  if (s.op != Op::linear_grad_weight || !flag(s, "bias")) return product;
  return plus(product, stream(device, s, Cost{}, static_cast<double>(s.operands[1].bytes())));
}

// The weight is decoded into memory first, which is read again by the product.
Estimate quantized_product(const DeviceModel& device, const Signature& s, const Cost& cost) {
  const bool forward = s.op == Op::quantized_linear;
  const Shape &from = s.operands.front().shape, &to = s.operands.back().shape;
  const std::int64_t out = forward ? to[-1] : from[-1], inner = forward ? from[-1] : to[-1];
  const auto plain = static_cast<double>(out * inner * size_of(s.operands.front().dtype));
  Product p = product_of(s, cost, static_cast<int>(s.operands.size()) - 1);
  p.m = from.rows();
  p.n = forward ? out : inner;
  p.k = forward ? inner : out;
  p.alignment = row_alignment({out, inner}, p.dtype);
  double parts = 0;
  for (std::size_t i = 1; i + 1 < s.operands.size(); ++i)
    if (s.operands[i].dtype == DType::u8) parts += static_cast<double>(s.operands[i].bytes());
  p.operand_bytes += plain - parts;
  return plus(gpu_product(device, p), stream(device, s, Cost{}, parts + plain));
}

// Implicit products over gathered patches.
Product conv_product(const Signature& s, const Cost& cost) {
  constexpr double kGather = 0.8;  // of a plain product of that shape
  const bool weight_gradient = s.op == Op::conv2d_grad_weight || s.op == Op::conv1d_grad_weight,
             input_gradient = s.op == Op::conv2d_grad_input || s.op == Op::conv1d_grad_input;
  const Shape& weight = s.operands[weight_gradient ? 2 : 1].shape;
  const Shape& image = s.operands[weight_gradient ? 1 : input_gradient ? 0 : s.operands.size() - 1].shape;  // y or dy
  const std::int64_t pixels = image.elements() / image[1], patch = weight.elements() / weight[0];
  Product p = product_of(s, cost, weight_gradient ? 2 : static_cast<int>(s.operands.size()) - 1);
  p.m = weight_gradient ? weight[0] : pixels;
  p.n = weight_gradient || input_gradient ? patch : weight[0];
  p.k = weight_gradient ? pixels : input_gradient ? weight[0] : patch;
  p.share = kGather;
  return p;
}

// Muon's products in bf16, at the rate of the last of a step of the matrix with the most; and what the operands move.
Estimate muon(const DeviceModel& device, const Signature& s, const Cost& cost) {
  const Work work = work_of(s);
  if (work.amount == 0) return stream(device, s, cost);
  Product p;
  p.m = work.sizes[0], p.k = work.sizes[1], p.n = work.sizes[2];
  p.dtype = DType::bf16;
  p.result_bytes = static_cast<double>(p.m * p.n) * 8;  // added to, in f32
  p.operand_bytes = static_cast<double>(p.m * p.k + p.k * p.n) * 2;
  p.alignment = row_alignment({p.k, p.n}, p.dtype);
  Estimate products = gpu_product(device, p);
  products.us *= work.amount / (2 * static_cast<double>(p.m) * static_cast<double>(p.k) * static_cast<double>(p.n));
  return plus(products, stream(device, s, cost));
}

// A block of a ring: the mean rank's pairs of a query and a key, as keys that all of its queries see. Every block is
// the work of our own kernels, in pairs of chunks.
Attention block_of(const Signature& s, const Cost& cost) {
  Attention a;
  a.backward = s.op == Op::attention_block_grad;
  const std::size_t first = a.backward ? 1 : 0;
  const Shape &q = s.operands[first].shape, &k = s.operands[first + 1].shape, &v = s.operands[first + 2].shape;
  a.heads = integer(s, "heads");
  a.batch = q[0], a.queries = q[1];
  const std::int64_t width = q[2] + v[2] / std::max<std::int64_t>(1, integer(s, "kv_heads")) * a.heads;
  const double of_one_key = (a.backward ? 4.0 : 2.0) * static_cast<double>(a.batch * width * a.queries);
  a.keys = std::clamp<std::int64_t>(std::llround(cost.flops / of_one_key), 1, k[1]);
  a.head_dim = width / 2 / std::max<std::int64_t>(1, a.heads);
  a.causal = false;
  a.own = true;
  a.dtype = s.operands[0].dtype;
  a.bytes = cost.bytes_read + cost.bytes_written;
  return a;
}

// Beside attention a block has passes that join in f32 what pairs of chunks gave (kernels/cuda/attention/block.cpp):
// of each result first what there is of it (4 bytes an element written, and as many read if it continues), for every
// pair its result written and read in the compute dtype and added (read and written in f32), and in the end the sum
// read, and written as the block's result.
Estimate passes_of_block(const DeviceModel& device, const Signature& s) {
  const bool backward = s.op == Op::attention_block_grad, continues = flag(s, "continues");
  const std::size_t q = backward ? 1 : 0;
  const auto rank = integer(s, "ranks") / 2;
  const auto pairs =
      static_cast<double>(ChunkPairs(rank, integer(s, "ranks"), integer(s, "step"), flag(s, "causal")).size());
  const double width = size_of(s.operands[q].dtype), launch_us = device.launch_us.value;
  const auto elements = [&](std::size_t operand) { return static_cast<double>(s.operands[operand].elements()); };
  const double of_pair = pairs / 2 * (2 * width + 8);  // a pair has half the rows
  const auto samples = static_cast<double>(s.operands[q].shape[0]);
  double bytes = 0, launches = 0;
  if (backward) {
    const double keys = elements(q + 1) + elements(q + 2);
    bytes = elements(q) * (4 + of_pair + 8 + (continues ? 4 : 0)) + keys * (4 + of_pair) + elements(q + 1) * 8;
    launches = 5 + 6 * pairs * samples;
  } else {
    bytes = elements(s.operands.size() - 2) *
            ((continues ? 8 : 4) + of_pair + (integer(s, "step") + 1 == integer(s, "ranks") ? 4 + width : 0));
    launches = 3 + 2 * pairs * samples;
  }
  Estimate passes = stream(device, s, Cost{}, bytes);
  passes.us += launches * launch_us;
  return passes;
}

Attention attention_of(const DeviceModel& device, const Signature& s, const Cost& cost) {
  if (s.op == Op::attention_block || s.op == Op::attention_block_grad) return block_of(s, cost);
  const bool backward = s.op == Op::attention_grad;
  const Shape& o = s.operands[backward ? 0 : s.operands.size() - 2].shape;
  Attention a;
  a.batch = o[0], a.queries = o[1], a.heads = integer(s, "heads");
  a.keys = s.operands[(backward ? 1U : 0U) + (flag(s, "packed") ? 0U : 1U)].shape[1];
  const Shape& q = flag(s, "packed") ? o : s.operands[backward ? 1 : 0].shape;
  a.head_dim = (q[2] + o[2]) / 2 / std::max<std::int64_t>(1, a.heads);  // of one product, and of the other
  a.causal = flag(s, "causal");
  a.window = integer(s, "window");
  a.backward = backward;
  a.dtype = s.operands[0].dtype;
  a.bytes = cost.bytes_read + cost.bytes_written;
  const FusedAttentionShape shape{.dtype = a.dtype,
                                  .batch = a.batch,
                                  .heads = a.heads,
                                  .kv_heads = given_integer(s, "kv_heads").value_or(a.heads),
                                  .queries = a.queries,
                                  .keys = a.keys,
                                  .head_dim = q[2] / std::max<std::int64_t>(1, a.heads),
                                  .v_dim = o[2] / std::max<std::int64_t>(1, a.heads),
                                  .special = real(s, "softcap") != 0 || (a.window > 0 && a.window < a.keys) ||
                                             flag(s, "padded") || flag(s, "by_document")};
  a.fused = has_fused_kernel(shape);
  if (backward) a.pieces = fused_grad_pieces(shape, device.capability);
  return a;
}

// Rotary positions turn q and k in a pass of their own: each read and written.
double rope_bytes(const Signature& s) {
  if (real(s, "rope_theta") <= 0) return 0;
  const bool backward = has(s.op, Trait::backward), block = record(s.op).attribute("packed") == nullptr;
  const bool packed = !block && flag(s, "packed");
  const TensorDesc& o = packed ? s.operands[backward ? 0 : s.operands.size() - 2] : s.operands[backward ? 1 : 0];
  const double heads = static_cast<double>(integer(s, "heads")), kv = static_cast<double>(integer(s, "kv_heads"));
  const Shape& k = s.operands[(backward ? 1U : 0U) + (packed ? 0U : 1U)].shape;
  const double keys = static_cast<double>(k[1]) / static_cast<double>(std::max<std::int64_t>(1, o.shape[1]));
  return 2 * static_cast<double>(o.bytes()) * (1 + keys * kv / std::max(1.0, heads));
}

Estimate alone(const DeviceModel& device, const Signature& s) {
  const Cost cost = cost_of(s);
  switch (record(s.op).work) {
    case WorkClass::none:
      break;
    case WorkClass::product:
      return s.op == Op::quantized_linear || s.op == Op::quantized_linear_grad_input
                 ? quantized_product(device, s, cost)
                 : linear(device, s, cost);
    case WorkClass::convolution:
      return gpu_product(device, conv_product(s, cost));
    case WorkClass::attention: {
      const Attention attention = attention_of(device, s, cost);
      const Estimate fused = gpu_attention(device, attention);
      // The own kernel turns dq and dk back before it writes them; after cuDNN's that is a pass like the one before.
      const double rope = rope_bytes(s) * (attention.backward && attention.pieces.count > 0 ? 2 : 1);
      const bool block = s.op == Op::attention_block || s.op == Op::attention_block_grad;
      const Estimate joined = block ? plus(fused, passes_of_block(device, s)) : fused;
      return rope > 0 ? plus(joined, stream(device, s, Cost{}, rope)) : joined;
    }
    case WorkClass::orthogonalize:
      return muon(device, s, cost);
    case WorkClass::elements:
    case WorkClass::rows:
    case WorkClass::scalars:
    case WorkClass::own:
      return stream(device, s, cost);
  }
  UNREACHABLE(std::string(name_of(s.op)) + " is never launched, and so takes no time");
}

}  // namespace

Estimate gpu_kernel(const MachineModel& machine, const Signature& signature) {
  Estimate estimate = alone(machine.device, signature);
  if (estimate.us > 0) estimate.us += machine.device.launch_us.value;
  return estimate;
}

}  // namespace trainer::cost
