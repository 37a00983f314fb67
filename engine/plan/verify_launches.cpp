// How kernels of a graph's ops turn facts into facts: by the op's own sharding rule, axis by axis.
#include <algorithm>

#include "engine/ops/op_def.h"
#include "engine/plan/verify_flow.h"

namespace trainer {
namespace {

using Kind = Way::Kind;

// Facts::run of a tensor that lies as `facts` say; 0 where no dim between is cut.
std::int64_t run_of(const TensorDesc& tensor, const Facts& facts) {
  int dim = 0;
  for (const Way& way : facts.ways)
    if (way.is(Kind::cut) && way.dim > 0) dim = std::max<int>(dim, way.dim);
  if (dim == 0 || dim >= tensor.shape.rank() - 1) return 0;
  std::int64_t bytes = size_of(tensor.dtype);
  for (int i = dim; i < tensor.shape.rank(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

}  // namespace

void Flow::launch(std::size_t i, const Launch& launch) {
  const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
  for (const Operand& operand : launch.operands) {
    const std::int32_t micro_batch = role_.buffer(region_of(operand).buffer).micro_batch;
    if (launch.micro_batch >= 0 && micro_batch >= 0 && micro_batch != launch.micro_batch)
      report_(i, "touches micro-batch " + std::to_string(micro_batch));
  }
  switch (signature.op) {
    case Op::zero:
      return write(i, region_of(launch.operands[0]), Facts::all(Way::zero(), std::nullopt));
    case Op::cast:
    case Op::pack_weight:
      return copy(i, launch, signature);
    case Op::add:
      return add(i, launch, signature);
    case Op::sum_squares:
      return sum_squares(i, launch, signature);
    case Op::loss_seed:
      return seed(i, launch);
    case Op::update_scalars:
      return update_scalars(i, launch);
    case Op::scale:
      return scale(i, launch, signature);
    case Op::outer_step:
    case Op::apply_delayed:
      return averaged(i, launch, signature);
    case Op::compress_bf16:
    case Op::quantize_int8:
    case Op::top_k_compress:
      return compress(i, launch, signature);
    case Op::dequantize_int8:
    case Op::dequantize_sum_int8:
    case Op::top_k_sum:
      return decompress(i, launch, signature);
    default:
      break;
  }
  if (definition(signature.op).updates) return optimizer(i, launch, signature);
  graph_op(i, launch, signature);
}

void Flow::graph_op(std::size_t i, const Launch& launch, const Signature& signature) {
  std::size_t num_inputs = 0;
  std::vector<Facts>&inputs = inputs_, &outputs = outputs_;
  inputs.clear();
  outputs.clear();
  while (num_inputs < launch.operands.size() && access_of(launch.operands[num_inputs]) == Access::read)
    inputs.push_back(uniform(i, region_of(launch.operands[num_inputs++])));
  for (std::size_t input = 0; input < num_inputs; ++input)
    if (inputs[input].dtype && inputs[input].dtype != signature.operands[input].dtype)
      report_(i, "reads as " + std::string(name_of(signature.operands[input].dtype)) + " what is " + std::string(name_of(*inputs[input].dtype)));
  for (std::size_t input = 0; input < num_inputs; ++input)
    if (const std::int64_t due = run_of(signature.operands[input], inputs[input]); due != 0 && inputs[input].run != 0 && inputs[input].run != due)
      report_(i, "reads runs of another length than operand " + std::to_string(input) + " has");
  for (std::size_t operand = num_inputs; operand < launch.operands.size(); ++operand)
    outputs.push_back(Facts::all(Way::same(), signature.operands[operand].dtype));
  for (Axis axis : kAxes) {
    if (!active(axis)) continue;
    std::vector<Way>& ways = ways_;
    ways.clear();
    for (const Facts& input : inputs) ways.push_back(input.on(axis));
    if (axis == Axis::pipeline) {
      const bool same = std::all_of(ways.begin(), ways.end(), [](const Way& way) { return way.is(Kind::same) || way.is(Kind::zero); });
      for (Facts& output : outputs) output.on(axis) = same ? Way::same() : Way::piece();
      continue;
    }
    const WayRules::Answer& answer = rules_.apply(launch.signature, ways, outputs.size(), launch.origin.along(axis));
    if (!answer) {
      std::string how;
      bool known = true;
      for (const Way& way : ways) {
        how += (how.empty() ? "" : ", ") + describe(way);
        known = known && !way.is(Kind::unknown);
      }
      if (known) mix(i, axis, "cannot work on what is (" + how + ")");
    }
    for (std::size_t output = 0; output < outputs.size(); ++output) outputs[output].on(axis) = answer ? (*answer)[output] : Way{};
  }
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const Operand& operand = launch.operands[num_inputs + output];
    outputs[output].run = run_of(signature.operands[num_inputs + output], outputs[output]);
    if (access_of(operand) == Access::update) {
      const Facts before = uniform(i, region_of(operand));
      for (Axis axis : kAxes) {
        if (!active(axis)) continue;
        const Way sum = merged(before.on(axis), outputs[output].on(axis));
        if (sum.is(Kind::unknown) && !before.on(axis).is(Kind::unknown) && !outputs[output].on(axis).is(Kind::unknown))
          mix(i, axis, "adds what is " + describe(outputs[output].on(axis)) + " to what is " + describe(before.on(axis)));
        outputs[output].on(axis) = sum;
      }
    }
    write(i, region_of(operand), outputs[output]);
  }
}

// The same elements in another dtype or layout.
void Flow::copy(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &from = region_of(launch.operands[0]), &to = region_of(launch.operands[1]);
  const DType dtype = signature.operands[1].dtype;
  if (signature.op == Op::pack_weight) {
    Facts facts = uniform(i, from);
    facts.dtype = dtype;
    return write(i, to, facts);
  }
  const std::int64_t in = size_of(signature.operands[0].dtype), out = size_of(dtype);
  FactRanges pieces = read(i, from);
  for (FactRange& piece : pieces) {
    piece.first = piece.first / in * out;
    piece.last = piece.last / in * out;
    for (Axis axis : slice_axes())
      if (Way& way = piece.facts.on(axis); way.is(Kind::slice)) way.base = way.base / in * out;
    if (piece.facts.dtype) piece.facts.dtype = dtype;
  }
  write(i, to, pieces);
}

// Two slices of sums that have their zeros in different places become slices of one layout.
void Flow::unite(Facts& a, Facts& b) {
  const Way &left = a.on(Axis::tensor), &right = b.on(Axis::tensor);
  if (!left.is(Kind::slice) || !right.is(Kind::slice) || left.index == right.index) return;
  const auto both = merged(tables_.layouts[static_cast<std::size_t>(left.index)], tables_.layouts[static_cast<std::size_t>(right.index)]);
  if (!both) return;
  const std::int32_t index = tables_.index_of(*both);
  for (Facts* facts : {&a, &b})
    for (Axis axis : slice_axes() | Axis::tensor)
      if (facts->on(axis).is(Kind::slice)) facts->on(axis).index = index;
}

// Of flat buffers, element by element; of values of a graph by their rule.
void Flow::add(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &a = region_of(launch.operands[0]), &b = region_of(launch.operands[1]);
  if (launch.micro_batch >= 0 || a.bytes != b.bytes) return graph_op(i, launch, signature);
  const FactRanges left = read(i, a), right = read(i, b);
  AddressMap<Facts> sum;
  for (const FactRange& piece : left) sum.assign(piece.first, piece.last, piece.facts);
  for (const FactRange& piece : right)
    sum.update(piece.first, piece.last, [&](Facts& facts) {
      Facts added = piece.facts;
      unite(facts, added);
      for (Axis axis : kAxes) {
        if (!active(axis)) continue;
        const Way both = merged(facts.on(axis), added.on(axis));
        if (both.is(Kind::unknown))
          mix(i, axis, "adds what is " + describe(piece.facts.on(axis)) + " to what is " + describe(facts.on(axis)));
        facts.on(axis) = both;
      }
    });
  FactRanges result;
  sum.update_pieces(0, a.bytes, [&](std::int64_t first, std::int64_t last, const Facts& facts) { result.push_back({first, last, facts}); });
  write(i, region_of(launch.operands[2]), result);
}

// Squares are of whole sums; every element is to count once.

}  // namespace trainer
