// Messages and checks of preparation, and of what ops are given.
#include "kernels/prepare.h"

#include <algorithm>
#include <cmath>

#include "engine/core/compression.h"
#include "engine/core/error.h"
#include "engine/core/op_record.h"
#include "kernels/activations.h"
#include "kernels/attention.h"
#include "kernels/attention_block.h"
#include "kernels/attention_cached.h"
#include "kernels/documents.h"
#include "kernels/dropout.h"
#include "kernels/embedding.h"
#include "kernels/loss.h"
#include "kernels/optimizer.h"

namespace trainer::kernels {

std::string describe(const Signature& signature) {
  std::string text(name_of(signature.op));
  for (std::size_t i = 0; i < signature.operands.size(); ++i) {
    const TensorDesc& operand = signature.operands[i];
    text += (i ? ", " : "(") + std::string(name_of(operand.dtype)) + " " + operand.shape.str();
  }
  return text + ")";
}

void expect_operands(const Signature& signature, std::size_t count) {
  CHECK(signature.operands.size() == count, describe(signature) + " takes " + std::to_string(count) + " operands");
}

void refuse_dtypes(const Signature& signature, const std::string& takes) {
  UNREACHABLE("no kernel for " + describe(signature) + "; it takes " + takes);
}

void expect_alike(const Signature& signature, std::initializer_list<int> operands) {
  const TensorDesc& first = signature.operands[static_cast<std::size_t>(*operands.begin())];
  for (int index : operands) expect_operand(signature, index, first.dtype, first.elements());
}

void expect_operand(const Signature& signature, int index, DType dtype, std::int64_t elements) {
  const TensorDesc& found = signature.operands[static_cast<std::size_t>(index)];
  CHECK(found.dtype == dtype && found.elements() == elements,
        "operand " + std::to_string(index) + " of " + describe(signature) + " must be " + std::string(name_of(dtype)) +
            " of " + std::to_string(elements) + " elements");
}

void expect_shape(const Signature& signature, int operand, DType dtype, const Shape& shape) {
  const TensorDesc& is = signature.operands[static_cast<std::size_t>(operand)];
  CHECK(is.dtype == dtype && is.shape == shape, describe(signature) + ": operand " + std::to_string(operand) +
                                                    " is not " + std::string(name_of(dtype)) + " " + shape.str());
}

std::int64_t expect_flat(const Signature& signature, int operands) {
  expect_operands(signature, static_cast<std::size_t>(operands));
  const std::int64_t count = signature.operands[0].elements();
  for (int i = 0; i < operands; ++i) expect_operand(signature, i, DType::f32, count);
  return count;
}

void refuse_launch(const Signature& signature) {
  const bool communicates = has(signature.op, Trait::collective) && signature.op != Op::replicate;
  UNREACHABLE(describe(signature) + (communicates ? " is communication: a plan has a collective for it, never a launch"
                                                  : " only renames memory: it is never launched"));
}

bool gelu_is_tanh(const Signature& signature) {
  const std::string& form = text(signature, "approximate");
  CHECK(form == "tanh" || form == "none", "gelu's approximate is tanh or none, not " + form);
  return form == "tanh";
}

bool glu_is_gelu(const Signature& signature) { return text(signature, "activation") == "gelu"; }

float activation_number(const Signature& signature) {
  for (const AttributeDef& def : record(signature.op).attributes)
    if (def.type == AttributeDef::Type::real) return static_cast<float>(real(signature, def.name));
  return 0;
}

void check_ids(std::span<const std::int32_t> ids, std::int64_t rows) {
  const std::uint32_t bound = static_cast<std::uint32_t>(rows);
  std::uint32_t outside = 0;
  for (std::int32_t id : ids) outside |= static_cast<std::uint32_t>(static_cast<std::uint32_t>(id) >= bound);
  if (outside == 0) return;
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (static_cast<std::uint32_t>(ids[i]) >= bound)
      throw DataError("id " + std::to_string(ids[i]) + " at place " + std::to_string(i) +
                      " of the batch is outside of 0 to " + std::to_string(rows - 1));
}

void check_targets(std::span<const std::int32_t> targets, std::int64_t classes, std::int64_t ignore_index) {
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (targets[i] != ignore_index && (targets[i] < 0 || targets[i] >= classes))
      throw DataError("target " + std::to_string(targets[i]) + " at place " + std::to_string(i) +
                      " of the batch is outside of 0 to " + std::to_string(classes - 1));
}

AttentionShape attention_shape(const Signature& s, int q) {
  const Shape& shape = s.operands[static_cast<std::size_t>(q)].shape;
  CHECK(shape.rank() == 3, describe(s) + ": q is not [batch, seq, heads * head_dim]");
  const bool block = s.op == Op::attention_block || s.op == Op::attention_block_grad;
  AttentionShape a;
  a.packed = !block && flag(s, "packed");
  a.heads = integer(s, "heads");
  a.kv_heads = given_integer(s, "kv_heads").value_or(a.heads);
  CHECK(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0, describe(s) + ": kv_heads does not divide heads");
  const std::int64_t row_heads = a.packed ? a.heads + 2 * a.kv_heads : a.heads;
  a.batch = shape[0];
  a.queries = shape[1];
  a.head_dim = shape[2] / row_heads;
  CHECK(a.head_dim > 0 && shape[2] % row_heads == 0, describe(s) + ": the heads do not divide a row");
  a.keys = a.packed ? a.queries : s.operands[static_cast<std::size_t>(q) + 1].shape[1];
  const std::int64_t values = a.packed ? a.head_dim * a.kv_heads : s.operands[static_cast<std::size_t>(q) + 2].shape[2];
  CHECK(values > 0 && values % a.kv_heads == 0, describe(s) + ": the heads do not divide a row of values");
  a.v_dim = values / a.kv_heads;
  a.causal = flag(s, "causal");
  a.padded = flag(s, "padded");
  a.by_document = flag(s, "by_document");
  a.rope_theta = real(s, "rope_theta");
  CHECK(!a.has_positions() || a.keys >= a.queries, describe(s) + ": queries are a part of the keys' sequence");
  a.scale = s.attributes.has("scale") ? real(s, "scale") : 1 / std::sqrt(static_cast<double>(a.head_dim));
  a.softcap = real(s, "softcap");
  const std::int64_t window = integer(s, "window");
  CHECK(window >= 0 && (window == 0 || a.causal), describe(s) + ": a window is of causal attention");
  const std::int64_t whole = a.keys * (block ? integer(s, "ranks") : 1);
  a.window = window == 0 ? whole : std::min(window, whole);
  CHECK(!a.padded || window == 0, describe(s) + ": lengths go with no window");
  CHECK(!a.padded || !a.by_document, describe(s) + ": documents go with no lengths");
  const int mask = q + (a.packed ? 1 : 3);
  if (a.padded) expect_shape(s, mask, DType::i32, {a.batch});
  if (a.by_document) expect_shape(s, mask, DType::i32, {a.batch, whole});
  return a;
}

namespace {

// Checks the results of a block that stand at `o` and `lse`.
void expect_results(const Signature& s, const AttentionShape& a, int o, DType dtype) {
  expect_shape(s, o, dtype, {a.batch, a.queries, a.heads * a.v_dim});
  expect_shape(s, o + 1, DType::f32, {a.batch, a.heads, a.queries});
}

}  // namespace

AttentionBlockShape attention_block_shape(const Signature& s) {
  const bool forward = s.op == Op::attention_block;
  const int q = forward ? 0 : 1;
  AttentionBlockShape shape;
  shape.of = attention_shape(s, q);
  shape.ranks = integer(s, "ranks"), shape.step = integer(s, "step"), shape.continues = flag(s, "continues");
  shape.last = shape.step + 1 == shape.ranks;
  const AttentionShape& a = shape.of;
  const DType c = s.operands[static_cast<std::size_t>(q)].dtype, sum = shape.last ? c : DType::f32;
  CHECK(shape.ranks > 0 && shape.step >= 0 && shape.step < shape.ranks, describe(s) + ": no step of its ring");
  CHECK(a.queries % 2 == 0 && a.keys % 2 == 0, describe(s) + ": a rank has two chunks");
  CHECK(!a.has_positions() || a.queries == a.keys, describe(s) + ": queries and keys of one sequence");
  expect_shape(s, q, c, {a.batch, a.queries, a.heads * a.head_dim});
  expect_shape(s, q + 1, c, {a.batch, a.keys, a.kv_heads * a.head_dim});
  expect_shape(s, q + 2, c, {a.batch, a.keys, a.kv_heads * a.v_dim});
  int at = q + shape.num_inputs();
  if (forward) {
    if (shape.continues) expect_results(s, a, at, DType::f32), at += 2;
    expect_results(s, a, at, sum);
    expect_operands(s, static_cast<std::size_t>(at) + 2);
    return shape;
  }
  expect_shape(s, 0, c, {a.batch, a.queries, a.heads * a.v_dim});
  expect_results(s, a, at, c), at += 2;
  if (shape.continues) expect_shape(s, at++, DType::f32, {a.batch, a.queries, a.heads * a.head_dim});
  expect_shape(s, at, sum, {a.batch, a.queries, a.heads * a.head_dim});
  expect_shape(s, at + 1, DType::f32, {a.batch, a.keys, a.kv_heads * a.head_dim});
  expect_shape(s, at + 2, DType::f32, {a.batch, a.keys, a.kv_heads * a.v_dim});
  expect_operands(s, static_cast<std::size_t>(at) + 3);
  return shape;
}

void expect_ring_rank(const AttentionBlockShape& shape, std::int64_t origin) {
  CHECK(origin >= 0 && origin < shape.ranks,
        "attention_block: rank " + std::to_string(origin) + " of a ring of " + std::to_string(shape.ranks));
}

CachedAttentionShape cached_attention_shape(const Signature& s) {
  using At = CachedAttentionOperands;
  expect_operands(s, At::count);
  const auto shape = [&](int operand) -> const Shape& { return s.operands[static_cast<std::size_t>(operand)].shape; };
  CachedAttentionShape a;
  a.dtype = s.operands[At::q].dtype;
  a.heads = integer(s, "heads");
  a.kv_heads = given_integer(s, "kv_heads").value_or(a.heads);
  CHECK(a.heads > 0 && a.kv_heads > 0 && a.heads % a.kv_heads == 0, describe(s) + ": kv_heads does not divide heads");
  CHECK(shape(At::q).rank() == 3 && shape(At::k_cache).rank() == 3 && shape(At::v).rank() == 3,
        describe(s) + ": rows of heads are [batch, tokens, heads * head_dim]");
  a.batch = shape(At::q)[0], a.tokens = shape(At::q)[1], a.room = shape(At::k_cache)[1];
  a.head_dim = shape(At::q)[2] / a.heads, a.v_dim = shape(At::v)[2] / a.kv_heads;
  const std::int64_t keys = a.kv_heads * a.head_dim, values = a.kv_heads * a.v_dim;
  expect_shape(s, At::q, a.dtype, {a.batch, a.tokens, a.heads * a.head_dim});
  expect_shape(s, At::k, a.dtype, {a.batch, a.tokens, keys});
  expect_shape(s, At::v, a.dtype, {a.batch, a.tokens, values});
  expect_shape(s, At::position, DType::i32, {1});
  expect_shape(s, At::k_cache, a.dtype, {a.batch, a.room, keys});
  expect_shape(s, At::v_cache, a.dtype, {a.batch, a.room, values});
  expect_shape(s, At::o, a.dtype, {a.batch, a.tokens, a.heads * a.v_dim});
  CHECK(a.tokens <= a.room, describe(s) + ": the caches have no room for the tokens");
  a.scale = s.attributes.has("scale") ? real(s, "scale") : 1 / std::sqrt(static_cast<double>(a.head_dim));
  a.softcap = real(s, "softcap");
  const std::int64_t window = integer(s, "window");
  a.window = window == 0 ? a.room : std::min(window, a.room);
  return a;
}

void expect_cached_position(const CachedAttentionShape& shape, std::int64_t position) {
  CHECK(position >= 0 && position + shape.tokens <= shape.room,
        "attention_cached: tokens [" + std::to_string(position) + ", " + std::to_string(position + shape.tokens) +
            ") in caches for " + std::to_string(shape.room));
}

void check_lengths(std::span<const std::int32_t> lengths, std::int64_t keys) {
  for (std::size_t i = 0; i < lengths.size(); ++i)
    if (lengths[i] < 1 || lengths[i] > keys)
      throw DataError("length " + std::to_string(lengths[i]) + " of sample " + std::to_string(i) +
                      " of the batch is outside of 1 to " + std::to_string(keys));
}

std::string wrong_document(std::int64_t number, std::int64_t sample, std::int64_t position) {
  return "document " + std::to_string(number) + " at position " + std::to_string(position) + " of sample " +
         std::to_string(sample) +
         " of the batch: numbers of documents are 0 or more and never descend, but for -1 at the end";
}

void find_documents(std::span<const std::int32_t> documents, std::int64_t batch, std::vector<DocumentRun>& runs) {
  runs.clear();
  const std::int64_t keys = static_cast<std::int64_t>(documents.size()) / batch;
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int32_t* row = documents.data() + b * keys;
    for (std::int64_t i = 0; i < keys; ++i) {
      const bool first = i == 0 || row[i] != row[i - 1];
      const bool sound = row[i] == -1 || (row[i] >= 0 && (i == 0 || (row[i - 1] >= 0 && row[i - 1] <= row[i])));
      if (!sound) throw DataError(wrong_document(row[i], b, i));
      if (row[i] == -1) continue;
      if (first) runs.push_back({b, i, i});
      runs.back().end = i + 1;
    }
  }
}

DocumentPositionsShape document_positions_shape(const Signature& s) {
  expect_operands(s, 2);
  const Shape &all = s.operands[0].shape, &ids = s.operands[1].shape;
  CHECK(all.rank() == 2 && ids.rank() == 2 && ids[0] == all[0] && ids[1] <= all[1],
        describe(s) + ": ids of a part of the documents' positions");
  expect_operand(s, 0, DType::i32, all.elements());
  expect_operand(s, 1, DType::i32, ids.elements());
  return {all[0], ids[1], all[1], integer(s, "offset"), integer(s, "zigzag") > 0};
}

void expect_document_origin(const DocumentPositionsShape& shape, std::int64_t origin) {
  CHECK(origin >= 0 && origin + shape.seq <= shape.all, "document_positions: positions [" + std::to_string(origin) +
                                                            ", " + std::to_string(origin + shape.seq) +
                                                            ") of a sequence of " + std::to_string(shape.all));
}

StateOperands expect_states(const Signature& s, int first, int states, std::int64_t count) {
  StateOperands found{.format = StateFormat::f32, .states = {}, .end = first};
  if (states == 0) return found;
  CHECK(first < static_cast<int>(s.operands.size()), describe(s) + " lacks its states");
  const DType dtype = s.operands[static_cast<std::size_t>(first)].dtype;
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::u8)
    refuse_dtypes(s, "states in f32, bf16, or u8 with scales");
  found.format = dtype == DType::f32 ? StateFormat::f32 : dtype == DType::bf16 ? StateFormat::bf16 : StateFormat::int8;
  const int operands = found.format == StateFormat::int8 ? 2 : 1;
  CHECK(first + operands * states <= static_cast<int>(s.operands.size()), describe(s) + " lacks a state or its scales");
  for (int i = 0; i < states; ++i, found.end += operands) {
    expect_operand(s, found.end, dtype, count);
    if (operands == 2) expect_operand(s, found.end + 1, DType::f32, int8_blocks(count));
    found.states.push_back({found.end, operands == 2 ? found.end + 1 : -1});
  }
  return found;
}

std::array<PositionRows, 2> positions_rows(const Signature& s, std::int64_t origin) {
  const bool forward = s.op == Op::positions;
  const std::int64_t rows = s.operands[forward ? 0 : 1].shape[0],
                     seq = (forward ? s.operands.back() : s.operands[0]).shape[0], offset = integer(s, "offset"),
                     whole = integer(s, "zigzag"), place = origin % rows, half = whole > 0 ? seq / 2 : 0;
  CHECK(whole == 0 || seq % 2 == 0, describe(s) + ": a rank has two chunks");
  const std::array<PositionRows, 2> both{PositionRows{offset + place, seq - half},
                                         PositionRows{offset + whole - place - half, half}};
  for (const PositionRows& run : both)
    CHECK(origin >= 0 && (run.count == 0 || (run.first >= 0 && run.first + run.count <= rows)),
          describe(s) + ": rows [" + std::to_string(run.first) + ", " + std::to_string(run.first + run.count) +
              ") of a table of " + std::to_string(rows));
  return both;
}

void expect_attention_origin(const AttentionShape& shape, std::int64_t origin) {
  CHECK(origin >= 0 && (!shape.has_positions() || origin + shape.queries <= shape.keys),
        "attention: queries [" + std::to_string(origin) + ", " + std::to_string(origin + shape.queries) +
            ") of a sequence of " + std::to_string(shape.keys));
}

DropoutMask dropout_mask(const Signature& s) {
  expect_operands(s, 3);
  expect_alike(s, {0, 2});
  expect_operand(s, 1, DType::i32, 1);
  const TensorDesc& x = s.operands[0];
  const double p = real(s, "p");
  CHECK(x.shape.rank() >= 1, describe(s) + ": dim 0 counts samples");
  CHECK(p >= 0 && p < 1, "dropout's p must be in [0, 1)");
  const std::int64_t elements = x.elements(), row = given_integer(s, "row").value_or(x.shape[-1]);
  DropoutMask mask;
  mask.key = static_cast<std::uint64_t>(integer(s, "key"));
  mask.threshold = static_cast<std::uint32_t>(std::min(std::ceil(p * 0x1p32), 0x1p32 - 1));
  mask.scale = static_cast<float>(1.0 / (1.0 - p));
  mask.sample = given_integer(s, "sample").value_or(elements / std::max<std::int64_t>(x.shape[0], 1));
  mask.stride = given_integer(s, "stride").value_or(row);
  CHECK(mask.sample < std::int64_t{1} << 34, "a sample has fewer than 2^34 elements");
  CHECK(elements == 0 || (row > 0 && elements % row == 0), describe(s) + ": a piece is a number of whole rows");
  CHECK(mask.stride >= row, describe(s) + ": a piece of a row is no longer than the row");
  mask.zigzag = flag(s, "zigzag");
  CHECK(!mask.zigzag || (mask.stride == mask.sample && 2 * row < mask.sample),
        describe(s) + ": zigzag halves are of parts of samples");
  mask.columns = mask.stride == row ? std::max<std::int64_t>(elements, 1) : row;
  return mask;
}

}  // namespace trainer::kernels
