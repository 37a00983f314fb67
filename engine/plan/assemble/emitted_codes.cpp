// Codes of 8 bits in place of weights and gradients on the wire.
#include "engine/core/compression.h"
#include "engine/plan/assemble/emitted_step.h"

namespace trainer {

Region EmittedStep::packets(const Unit& unit, std::int64_t elements, int slices) {
  return emit_.whole(emit_.buffer(unit.name + ".packet", Category::communication, slices * int8_bytes(elements)));
}

Region EmittedStep::encode(const Unit& unit, DType dtype, const Region& region, int slices) {
  const std::int64_t elements = region.bytes / size_of(dtype);
  const Region codes = packets(unit, elements / slices, slices);
  emit_.launch(unit.name,
               {Op::quantize_int8,
                {{"slices", slices}, {"feedback", false}},
                {flat(dtype, elements), flat(DType::u8, codes.bytes)}},
               {Read{region}, Write{codes}});
  return codes;
}

// Slice i of each rank's codes goes to rank i, which sums them.
void EmittedStep::scatter_codes(const Unit& unit, const Region& all, const Region& slice) {
  const Axes axes = unit.slice_axes();
  const int shards = options_.mesh.group_size(axes);
  const std::int64_t elements = slice.bytes / size_of(options_.reduce);
  const Region theirs = packets(unit, elements, shards);
  emit_.collective(unit.name, CollectiveKind::all_to_all, DType::u8, axes, encode(unit, options_.reduce, all, shards),
                   theirs);
  put_off([this, name = unit.name, shards, theirs, slice, elements] {
    emit_.launch(name,
                 {Op::dequantize_sum_int8,
                  {{"slices", shards}},
                  {flat(DType::u8, theirs.bytes), flat(options_.reduce, elements)}},
                 {Read{theirs}, Write{slice}});
  });
}

void EmittedStep::gather_codes(const Unit& unit, const Region& from, BufferId gathered) {
  const int shards = options_.mesh.group_size(unit.slice_axes());
  const Region all = codes_[&unit] = packets(unit, unit.elements / shards, shards);
  const bool coded = secondary_.contains(&unit);
  gather(unit, DType::u8, coded ? from : encode(unit, unit.compute, from, 1), all);
  encoded_[&unit] = [this, &unit, shards, all, gathered, why = emit_.why()] {
    const auto then = emit_.because(why);
    emit_.launch(
        unit.name,
        {Op::dequantize_int8, {{"slices", shards}}, {flat(DType::u8, all.bytes), flat(unit.compute, unit.elements)}},
        {Read{all}, Write{emit_.whole(gathered)}});
  };
}

// As late as that: a kernel that waits for a gather holds up all that are behind it.
void EmittedStep::decode_working(const Unit& unit) {
  if (const auto codes = encoded_.extract(&unit)) codes.mapped()();
}

}  // namespace trainer
