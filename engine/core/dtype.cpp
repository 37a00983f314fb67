// Names of element types.
#include "engine/core/dtype.h"

namespace trainer {

std::optional<DType> dtype_named(std::string_view name) {
  for (DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::u8})
    if (name == name_of(dtype)) return dtype;
  return std::nullopt;
}

}  // namespace trainer
