// A float is not finite if its exponent is all ones, so each dtype is searched by one mask.
#include "engine/run/non_finite.h"

namespace trainer {

// An exponent of all ones: infinity or NaN, in any of our float formats.
std::int64_t first_non_finite(DType dtype, const std::byte* data, std::int64_t elements) {
  const auto search = [&](auto word, auto exponent) -> std::int64_t {
    using Word = decltype(word);
    const Word* words = reinterpret_cast<const Word*>(data);
    for (std::int64_t i = 0; i < elements; ++i)
      if ((words[i] & exponent) == exponent) return i;
    return -1;
  };
  switch (dtype) {
    case DType::f64:
      return search(std::uint64_t{}, std::uint64_t{0x7FF0000000000000u});
    case DType::f32:
      return search(std::uint32_t{}, std::uint32_t{0x7F800000u});
    case DType::bf16:
      return search(std::uint16_t{}, std::uint16_t{0x7F80u});
    case DType::f16:
      return search(std::uint16_t{}, std::uint16_t{0x7C00u});
    case DType::i32:
    case DType::u8:
      return -1;
  }
  return -1;
}

std::optional<NonFinite> inspect_results(const Role& role, const Issued& issued, std::int32_t index,
                                         const FirstIn& first_in) {
  if (!std::holds_alternative<Launch>(issued.instruction)) return std::nullopt;
  const Launch& launch = std::get<Launch>(issued.instruction);
  const Signature& signature = role.signatures[static_cast<std::size_t>(launch.signature)];
  for (std::size_t i = 0; i < launch.operands.size(); ++i) {
    const TensorDesc& tensor = signature.operands[i];
    if (access_of(launch.operands[i]) == Access::read) continue;
    Region region = region_of(launch.operands[i]);
    region.bytes = tensor.elements() * size_of(tensor.dtype);
    const std::int64_t element = first_in(tensor.dtype, region);
    if (element >= 0)
      return NonFinite{role.name(launch.name), role.name(role.buffer(region.buffer).name), element,
                       pass_micro_batch(issued), index};
  }
  return std::nullopt;
}

}  // namespace trainer
