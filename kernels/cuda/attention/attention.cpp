// attention and attention_grad on GPUs: checks, where operands lie, and what runs in which order.
#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "engine/core/op_record.h"
#include "engine/core/rope.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/target.h"

namespace trainer::kernels::cuda {

Rotation rotation_of(const Signature& s, std::int64_t head_dim) {
  const RopeFrequencies rope = rope_frequencies(s.attributes, head_dim);
  Rotation rotation;
  rotation.half = static_cast<int>(rope.angles.size());
  rotation.interleaved = rope.interleaved;
  rotation.factor = static_cast<float>(rope.factor);
  for (std::size_t j = 0; j < rope.angles.size(); ++j) rotation.turns[j] = rope.angles[j] / (2 * std::numbers::pi);
  return rotation;
}

namespace {

/// What does not change from run to run.
struct Attention {
  DType dtype = DType::f32;
  bool packed = false, padded = false, by_document = false;
  AttentionArguments sizes;  ///< no addresses but that of faults
  Rotation rotation;

  /// Operands from q, or qkv, to v, or the lengths or documents.
  int num_inputs() const { return (packed ? 1 : 3) + (padded || by_document ? 1 : 0); }
  std::int64_t query_tokens() const { return static_cast<std::int64_t>(sizes.batch) * sizes.queries; }
  std::int64_t key_tokens() const { return static_cast<std::int64_t>(sizes.batch) * sizes.keys; }
  std::int64_t q_width() const { return static_cast<std::int64_t>(sizes.heads) * sizes.head_dim; }
  std::int64_t k_width() const { return static_cast<std::int64_t>(sizes.kv_heads) * sizes.head_dim; }
  std::int64_t v_width() const { return static_cast<std::int64_t>(sizes.kv_heads) * sizes.v_dim; }
  std::int64_t o_width() const { return static_cast<std::int64_t>(sizes.heads) * sizes.v_dim; }
};

/// Of a signature whose q, or qkv, is operand `q`.
Attention attention_of(const Signature& s, int q) {
  const AttentionShape shape = attention_shape(s, q);
  Attention a;
  a.dtype = expect_compute_dtype(s, q);
  a.packed = shape.packed, a.padded = shape.padded, a.by_document = shape.by_document;
  CHECK(std::max(shape.head_dim, shape.v_dim) <= kLargestHeadDim,
        describe(s) + ": on GPUs a head has at most " + std::to_string(kLargestHeadDim) + " elements");
  // Blocks of a grid are counted in 31 bits; the smallest have 32 rows.
  CHECK(shape.batch * shape.heads * (shape.keys / 32 + 1) * 2 <= std::numeric_limits<int>::max() &&
            shape.batch * shape.keys <= std::numeric_limits<int>::max(),
        describe(s) + ": more blocks than a launch has");
  a.sizes.batch = static_cast<int>(shape.batch), a.sizes.queries = static_cast<int>(shape.queries);
  a.sizes.keys = static_cast<int>(shape.keys);
  a.sizes.heads = static_cast<int>(shape.heads), a.sizes.kv_heads = static_cast<int>(shape.kv_heads);
  a.sizes.head_dim = static_cast<int>(shape.head_dim), a.sizes.v_dim = static_cast<int>(shape.v_dim);
  a.sizes.causal = shape.causal;
  a.sizes.vectors = shape.head_dim * size_of(a.dtype) % 16 == 0 && shape.v_dim * size_of(a.dtype) % 16 == 0;
  a.sizes.scale = static_cast<float>(shape.scale);
  a.sizes.softcap = static_cast<float>(shape.softcap);
  a.sizes.window = shape.window < shape.keys ? static_cast<int>(shape.window) : 1 << 30;
  a.rotation = rotation_of(s, shape.head_dim);
  return a;
}

void expect_qkv(const Signature& s, const Attention& a, int first) {
  const std::int64_t batch = a.sizes.batch;
  expect_shape(s, first, a.dtype,
               Shape{batch, a.sizes.queries, a.packed ? a.q_width() + 2 * a.k_width() : a.q_width()});
  if (a.packed) return;
  expect_shape(s, first + 1, a.dtype, Shape{batch, a.sizes.keys, a.k_width()});
  expect_shape(s, first + 2, a.dtype, Shape{batch, a.sizes.keys, a.v_width()});
}
void expect_o(const Signature& s, const Attention& a, int operand) {
  expect_shape(s, operand, a.dtype, Shape{a.sizes.batch, a.sizes.queries, a.o_width()});
}
void expect_lse(const Signature& s, const Attention& a, int operand) {
  expect_shape(s, operand, DType::f32, Shape{a.sizes.batch, a.sizes.heads, a.sizes.queries});
}

void* advance(const Attention& a, void* p, std::int64_t elements) {
  return static_cast<char*>(p) + elements * size_of(a.dtype);
}

struct Three {
  HeadRows q, k, v;
};
/// q, k and v, or their gradients, from operands [first, …).
Three three_of(const Attention& a, const Call& call, int first) {
  void* const q = operand<void>(call, first);
  if (!a.packed)
    return {
        {q, a.q_width()}, {operand<void>(call, first + 1), a.k_width()}, {operand<void>(call, first + 2), a.v_width()}};
  const std::int64_t row = a.q_width() + 2 * a.k_width();
  return {{q, row}, {advance(a, q, a.q_width()), row}, {advance(a, q, a.q_width() + a.k_width()), row}};
}

/// Bytes of the turned copies of q and k.
std::int64_t rotated_bytes(const Attention& a) {
  return a.rotation.half > 0
             ? aligned((a.query_tokens() * a.q_width() + a.key_tokens() * a.k_width()) * size_of(a.dtype))
             : 0;
}

/// Turned copies in `workspace` take the place of q and k.
void rotate(const Call& call, const Attention& a, AttentionArguments& at, void* workspace) {
  if (a.rotation.half == 0) return;
  const HeadRows q{workspace, a.q_width()}, k{advance(a, workspace, a.query_tokens() * a.q_width()), a.k_width()};
  rotate_heads(call, a.dtype, at, a.rotation, q, k);
  at.q = q, at.k = k;
}

/// Bytes of the bounds of documents.
std::int64_t document_bytes(const Attention& a) {
  return a.by_document ? aligned(a.key_tokens() * static_cast<std::int64_t>(sizeof(DocumentBounds))) : 0;
}

/// Finds the documents, whose numbers are operand `index`, into `workspace`.
void find_documents(const Call& call, const Attention& a, int index, AttentionArguments& at, void* workspace) {
  if (!a.by_document) return;
  auto* const bounds = static_cast<DocumentBounds*>(workspace);
  find_document_bounds(call, at, operand<const std::int32_t>(call, index), bounds);
  at.documents = bounds;
}

/// The sizes with the origin of this call.
AttentionArguments arguments_of(const Call& call, const Attention& a) {
  expect_attention_origin({.queries = a.sizes.queries,
                           .keys = a.sizes.keys,
                           .causal = a.sizes.causal || a.rotation.half > 0,
                           .by_document = a.by_document},
                          call.origin);
  AttentionArguments at = a.sizes;
  at.origin = static_cast<int>(call.origin);
  return at;
}

AttentionArguments forward_arguments(const Call& call, const Attention& a) {
  AttentionArguments at = arguments_of(call, a);
  const Three in = three_of(a, call, 0);
  const int o = a.num_inputs();
  if (a.padded) at.lengths = operand<std::int32_t>(call, o - 1);
  at.q = in.q, at.k = in.k, at.v = in.v;
  at.o = {operand<void>(call, o), a.o_width()};
  at.lse = operand<float>(call, o + 1);
  return at;
}

AttentionArguments backward_arguments(const Call& call, const Attention& a) {
  AttentionArguments at = arguments_of(call, a);
  const int o = 1 + a.num_inputs();
  if (a.padded) at.lengths = operand<std::int32_t>(call, o - 1);
  const Three in = three_of(a, call, 1), out = three_of(a, call, o + 2);
  at.q = in.q, at.k = in.k, at.v = in.v;
  at.dq = out.q, at.dk = out.k, at.dv = out.v;
  at.d_o = {operand<void>(call, 0), a.o_width()};
  at.o = {operand<void>(call, o), a.o_width()};
  at.lse = operand<float>(call, o + 1);
  return at;
}

// ---- cuDNN's kernels

/// `samples` samples and `kv_heads` heads of keys of the arguments, from sample `sample` and head `kv_head` on.
AttentionArguments piece_of(const Attention& a, const AttentionArguments& all, std::int64_t samples,
                            std::int64_t kv_heads, std::int64_t sample = 0, std::int64_t kv_head = 0) {
  const std::int64_t sharing = all.heads / all.kv_heads, head = kv_head * sharing;
  const auto moved = [&](const HeadRows& rows, std::int64_t of_heads) -> HeadRows {
    if (rows.data == nullptr) return rows;
    return {advance(a, rows.data, sample * all.keys * rows.stride + of_heads * all.head_dim), rows.stride};
  };
  AttentionArguments at = all;
  at.batch = static_cast<int>(samples);
  at.kv_heads = static_cast<int>(kv_heads), at.heads = static_cast<int>(kv_heads * sharing);
  at.q = moved(all.q, head), at.o = moved(all.o, head), at.d_o = moved(all.d_o, head), at.dq = moved(all.dq, head);
  at.k = moved(all.k, kv_head), at.v = moved(all.v, kv_head);
  at.dk = moved(all.dk, kv_head), at.dv = moved(all.dv, kv_head);
  if (all.lse != nullptr) at.lse = all.lse + (sample * all.heads + head) * all.keys;
  return at;
}

/// A plan of cuDNN's, and the pieces in which it is run.
struct Fused {
  std::shared_ptr<FusedAttention> plan;  ///< null: the own kernels
  FusedGradPieces pieces;                ///< backward
};

FusedDevice device_of(const Context& context) {
  return {.handle = context.cudnn, .description = {}, .capability = context.capability, .units = context.units};
}

/// As q and k are when they come rotated, for a plan: no addresses, only strides.
void expect_rotated(const Attention& a, AttentionArguments& at) {
  if (a.rotation.half > 0) at.q.stride = a.q_width(), at.k.stride = a.k_width();
}

/// Where the library refuses a signature, a note says so.
void note_refusal(const Signature& signature, const Context& context, const std::string& refused) {
  if (context.notes != nullptr)
    context.notes->push_back(describe(signature) + " runs on the own kernel, since cuDNN does not take it: " + refused);
}

Fused fused_for(const Signature& signature, const Attention& a, const Context& context) {
  if (context.cudnn == nullptr || !uses_cudnn(signature)) return {};
  const std::vector<void*> addresses(signature.operands.size());
  AttentionArguments at = forward_arguments({.operands = addresses}, a);
  expect_rotated(a, at);
  const std::int64_t room = CudaTarget(context.capability, context.units).workspace_bytes(signature) - rotated_bytes(a);
  std::string refused;
  Fused fused{fused_attention(device_of(context), a.dtype, at, room, refused), {}};
  if (fused.plan == nullptr) note_refusal(signature, context, refused);
  return fused;
}

Fused fused_grad_for(const Signature& signature, const Attention& a, const Context& context) {
  if (context.cudnn == nullptr) return {};
  const FusedGradPieces pieces = cudnn_pieces(signature, context.capability);
  if (pieces.count == 0) return {};
  const std::vector<void*> addresses(signature.operands.size());
  AttentionArguments at = backward_arguments({.operands = addresses}, a);
  expect_rotated(a, at);
  std::string refused;
  Fused fused{fused_attention_grad(device_of(context), a.dtype, piece_of(a, at, pieces.samples, pieces.kv_heads),
                                   pieces.bytes, refused),
              pieces};
  if (fused.plan == nullptr) note_refusal(signature, context, refused);
  return fused;
}

/// q and k of `at` come rotated; dq and dk leave turned back.
void run_fused_grad(const Call& call, const Attention& a, const Fused& fused, const AttentionArguments& at,
                    void* workspace) {
  const FusedGradPieces& pieces = fused.pieces;
  for (std::int64_t sample = 0; sample < at.batch; sample += pieces.samples)
    for (std::int64_t kv_head = 0; kv_head < at.kv_heads; kv_head += pieces.kv_heads)
      fused.plan->run(call, piece_of(a, at, pieces.samples, pieces.kv_heads, sample, kv_head), workspace);
  if (a.rotation.half == 0) return;
  // The gradient of a rotation is the rotation back, in place.
  AttentionArguments turned = at;
  turned.q = at.dq, turned.k = at.dk;
  Rotation back = a.rotation;
  for (double& turns : back.turns) turns = -turns;
  rotate_heads(call, a.dtype, turned, back, at.dq, at.dk);
}

void run_forward(const Call& call, const Attention& a, const Fused& fused) {
  AttentionArguments at = forward_arguments(call, a);
  char* const workspace = static_cast<char*>(call.workspace);
  find_documents(call, a, a.num_inputs() - 1, at, workspace);
  rotate(call, a, at, workspace + document_bytes(a));
  if (fused.plan != nullptr)
    fused.plan->run(call, at, workspace + rotated_bytes(a));
  else if (a.dtype == DType::f32)
    attention_forward_f32(call, at);
  else
    attention_forward(call, a.dtype, at);
}

void run_backward(const Call& call, const Attention& a, const Fused& fused) {
  AttentionArguments at = backward_arguments(call, a);
  char* const workspace = static_cast<char*>(call.workspace);
  find_documents(call, a, a.num_inputs(), at, workspace);
  char* const rotated = workspace + document_bytes(a);
  char* const rest = rotated + rotated_bytes(a);
  if (fused.plan != nullptr) {
    rotate(call, a, at, rotated);
    return run_fused_grad(call, a, fused, at, rest);
  }
  at.delta = reinterpret_cast<float*>(rest);
  attention_delta(call, a.dtype, at);
  rotate(call, a, at, rotated);
  if (a.dtype == DType::f32)
    attention_backward_f32(call, at, a.rotation);
  else
    attention_backward(call, a.dtype, at, a.rotation);
}

}  // namespace

Prepared prepare_attention(const Signature& signature, const Context& context) {
  Attention a = attention_of(signature, 0);
  a.sizes.fault = context.fault;
  const int o = a.num_inputs();
  expect_operands(signature, static_cast<std::size_t>(o) + 2);
  expect_qkv(signature, a, 0);
  expect_o(signature, a, o);
  expect_lse(signature, a, o + 1);
  if (a.dtype == DType::f32)
    allow_attention_forward_f32(a.sizes.widest());
  else
    allow_attention_forward(a.dtype, a.sizes.widest());
  return make_kernel([a, fused = fused_for(signature, a, context)](const Call& call) { run_forward(call, a, fused); });
}

Prepared prepare_attention_grad(const Signature& signature, const Context& context) {
  const Attention a = attention_of(signature, 1);
  const int o = 1 + a.num_inputs();
  expect_operands(signature, static_cast<std::size_t>(o) + (a.packed ? 3 : 5));
  expect_o(signature, a, 0);
  expect_qkv(signature, a, 1);
  expect_o(signature, a, o);
  expect_lse(signature, a, o + 1);
  expect_qkv(signature, a, o + 2);
  if (a.dtype == DType::f32)
    allow_attention_backward_f32(a.sizes.widest());
  else
    allow_attention_backward(a.dtype, a.sizes.widest());
  return make_kernel(
      [a, fused = fused_grad_for(signature, a, context)](const Call& call) { run_backward(call, a, fused); });
}

}  // namespace trainer::kernels::cuda
