// How kernels of a graph's ops turn facts into facts: by the op's own sharding rule, axis by axis.
#include <algorithm>

#include "engine/ops/op_def.h"
#include "engine/plan/loop.h"
#include "engine/plan/verify/flow.h"

namespace trainer {
namespace {

using Note = Held::Note;
using Content = Facts::Content::Kind;

// Facts::run of a tensor that lies as `facts` say; 0 where no dim between is cut.
std::int64_t run_of(const TensorDesc& tensor, const Facts& facts) {
  int dim = 0;
  for (const Held& held : facts.held)
    if (held.is(Note::none) && held.placement.is_shard()) dim = std::max<int>(dim, held.placement.dim);
  if (dim == 0 || dim >= tensor.shape.rank() - 1) return 0;
  std::int64_t bytes = size_of(tensor.dtype);
  for (int i = dim; i < tensor.shape.rank(); ++i) bytes *= tensor.shape[i];
  return bytes;
}

bool is_cut(const std::vector<Facts>& inputs, Axis axis) {
  return std::ranges::any_of(inputs, [&](const Facts& input) { return input.on(axis).placement.is_shard(); });
}

// How many operands a kernel of a graph's op reads, or changes in place. The others are its outputs, which come last:
// the first of them is written, or added to.
std::size_t inputs_of(const Launch& launch, Op op) {
  const auto is_output = [&](const Operand& operand) {
    return access_of(operand) == Access::write || (access_of(operand) == Access::update && record(op).adds());
  };
  return static_cast<std::size_t>(std::ranges::find_if(launch.operands, is_output) - launch.operands.begin());
}

}  // namespace

void Flow::launch(std::size_t i, const Launch& launch) {
  const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
  const std::int32_t mine = program_.instructions[i].why.micro_batch;
  for (const Operand& operand : launch.operands)
    if (!may_hold(role_, region_of(operand), mine))
      report_(i, "touches what is of another micro-batch than " + std::to_string(mine));
  switch (signature.op) {
    case Op::zero:
      return write(i, region_of(launch.operands[0]), Facts::all(Held::zero(), std::nullopt));
    case Op::cast:
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
    case Op::outer_gradient:
      return outer_gradient(i, launch);
    case Op::outer_step:
      return outer_step(i, launch, signature);
    case Op::apply_delayed:
      return averaged(i, launch, signature);
    case Op::compress_bf16:
    case Op::quantize_int8:
    case Op::top_k_compress:
      return compress(i, launch, signature);
    case Op::dequantize_int8:
      return decompress(i, launch, signature, false);
    case Op::dequantize_sum_int8:
    case Op::top_k_sum:
      return decompress(i, launch, signature, true);
    default:
      break;
  }
  if (definition(signature.op).update) return update(i, launch, signature);
  graph_op(i, launch, signature);
}

void Flow::graph_op(std::size_t i, const Launch& launch, const Signature& signature) {
  std::vector<Facts>&inputs = inputs_, &outputs = outputs_;
  inputs.clear();
  outputs.clear();
  const std::size_t num_inputs = inputs_of(launch, signature.op);
  for (const Operand& operand : std::span(launch.operands).first(num_inputs)) {
    const TensorDesc& tensor = signature.operands[inputs.size()];
    const Facts& facts = inputs.emplace_back(uniform(region_of(operand)));
    if (facts.dtype && facts.dtype != tensor.dtype)
      report_(i, "reads as " + std::string(name_of(tensor.dtype)) + " what is " + std::string(name_of(*facts.dtype)));
    if (const std::int64_t due = run_of(tensor, facts); due != 0 && facts.run != 0 && facts.run != due)
      report_(i, "reads runs of another length than operand " + std::to_string(inputs.size() - 1) + " has");
  }
  for (std::size_t operand = num_inputs; operand < launch.operands.size(); ++operand)
    outputs.push_back(Facts::all(Held::same(), signature.operands[operand].dtype));
  for (Axis axis : kAxes) {
    if (!active(axis)) continue;
    if (axis == Axis::pipeline) {  // a stage's values are its part of what all stages make
      const Facts same = Facts::all(Held::same(), std::nullopt);
      const bool all = std::ranges::all_of(inputs, [&](const Facts& input) { return tables_.fits(same, input, axis); });
      for (Facts& output : outputs) output.on(axis) = all ? Held::same() : Held::partial();
      continue;
    }
    const Rules::Answer& answer =
        rules_.apply(launch.signature, inputs, axis, outputs.size(), launch.origin.along(axis));
    if (!answer && std::ranges::none_of(inputs, [&](const Facts& input) { return input.on(axis).is(Note::unknown); })) {
      std::string how;
      for (const Facts& input : inputs) how += (how.empty() ? "" : ", ") + input.along(axis);
      mix(i, axis, "cannot work on what is (" + how + ")");
    }
    for (std::size_t output = 0; output < outputs.size(); ++output) {
      outputs[output].on(axis) = answer ? (*answer)[output].held : Held();
      if (answer && (*answer)[output].row != 0) outputs[output].row = (*answer)[output].row;
    }
  }
  for (std::size_t output = 0; output < outputs.size(); ++output) {
    const Region& region = region_of(launch.operands[num_inputs + output]);
    if (access_of(launch.operands[num_inputs + output]) == Access::update)
      outputs[output] = added(i, uniform(region), outputs[output]);
    outputs[output].run = run_of(signature.operands[num_inputs + output], outputs[output]);
    write(i, region, outputs[output]);
  }
  // What is changed in place lies as it did: the rule has taken it so. What was 0 is now a sum over what a rank has.
  for (std::size_t input = 0; input < num_inputs; ++input) {
    if (access_of(launch.operands[input]) == Access::read) continue;
    FactRanges pieces = read(region_of(launch.operands[input]));
    for (FactRange& piece : pieces)
      for (Axis axis : kAxes)
        if (active(axis) && axis != Axis::pipeline && piece.facts.on(axis).is(Note::zero))
          piece.facts.on(axis) = is_cut(inputs, axis) ? Held::partial() : Held::same();
    write(i, region_of(launch.operands[input]), pieces);
  }
}

// The same elements, perhaps in another dtype.
void Flow::copy(std::size_t i, const Launch& launch, const Signature& signature) {
  const TensorDesc &from = signature.operands[0], &to = signature.operands[1];
  const Region& region = region_of(launch.operands[0]);
  const bool cuts = from.dtype == to.dtype && cuts_whole(region);
  FactRanges pieces =
      resized(cuts ? cut(i, region, size_of(from.dtype)) : read(region), size_of(from.dtype), size_of(to.dtype));
  const Region& out = region_of(launch.operands[1]);
  const std::int64_t home = signature.op == Op::cast ? home_of_copy(i, region) : -1;
  for (FactRange& piece : pieces) {
    if (piece.facts.dtype) piece.facts.dtype = to.dtype;
    if (piece.facts.is(Content::staged)) piece.facts.content = {};
    piece.facts.content.home = 0;
    if (home < 0) continue;
    piece.facts.content = {Content::updated};
    piece.facts.content.home = home - address(out);
  }
  write(i, out, std::move(pieces));
}

// Whether a rank takes its part of what it has whole.
bool Flow::cuts_whole(const Region& region) {
  if (region.step == 0) return false;
  const Facts facts = uniform(region);
  return std::ranges::none_of(
      kAxes, [&](Axis axis) { return region.over.has(axis) && active(axis) && facts.on(axis).placement.is_shard(); });
}

// Each rank of a group the next part, and all of it together: a slice of a flat buffer, or of its codes.
FactRanges Flow::cut(std::size_t i, const Region& region, std::int64_t width) {
  const int ranks = plan_.mesh.group_size(region.over);
  Facts facts = tables_.packed(read({region.buffer, region.offset, ranks * region.step}), width);
  if (region.step != region.bytes || facts.base != 0) report_(i, "takes another part than its own");
  for (Axis axis : plan_.mesh.active(region.over)) {
    if (facts.on(axis) != Held::same()) mix(i, axis, "takes a part of what is " + facts.along(axis));
    facts.on(axis) = Placement::shard(0);
  }
  if (facts.is(Content::code)) {
    if (facts.content.chunks % ranks != 0) report_(i, "cuts codes where none begin");
    facts.content.chunks /= ranks;
  }
  return {{0, region.bytes, facts}};
}

// Of flat buffers, element by element; of values of a graph by their rule.
void Flow::add(std::size_t i, const Launch& launch, const Signature& signature) {
  const Region &a = region_of(launch.operands[0]), &b = region_of(launch.operands[1]);
  if (is_pass(program_.instructions[i].why.phase) || a.bytes != b.bytes) return graph_op(i, launch, signature);
  const std::array<FactRanges, 2> both{read(a), read(b)};
  const auto sum = [&](const Facts& one, const Facts& other) { return added(i, one, other); };
  write(i, region_of(launch.operands[2]), overlaid(both, a.bytes, sum));
}

Facts Flow::added(std::size_t i, Facts a, Facts b) {
  tables_.unite(a, b);
  Facts sum = merged(a, b);
  for (Axis axis : kAxes)
    if (active(axis) && sum.on(axis).is(Note::unknown) && !a.on(axis).is(Note::unknown) &&
        !b.on(axis).is(Note::unknown))
      mix(i, axis, "adds what is " + b.along(axis) + " to what is " + a.along(axis));
  return sum;
}

}  // namespace trainer
