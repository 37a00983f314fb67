// Names of ops.
#include "engine/core/op.h"

namespace trainer {

std::string_view name_of(Op op) {
  switch (op) {
#define TRAINER_OP(name, kernel) \
  case Op::name:                 \
    return #name;
#include "engine/core/ops.inc"
  }
  return "?";
}

std::optional<Op> op_named(std::string_view name) {
  for (int i = 0; i < kNumOps; ++i)
    if (name == name_of(static_cast<Op>(i))) return static_cast<Op>(i);
  return std::nullopt;
}

}  // namespace trainer
