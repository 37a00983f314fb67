// Kernels by op, as engine/core/ops.inc binds them.
#include "kernels/cuda/table.h"

#include "engine/core/op_record.h"
#include "kernels/cuda/families.h"
#include "kernels/prepare.h"

namespace trainer::kernels::cuda {

namespace {

Prepared prepare_none(const Signature& s, const Context&) { refuse_launch(s); }
}  // namespace

std::unique_ptr<Kernel> prepare(const Signature& s, const Context& c) {
  expect_recorded(s);
  switch (s.op) {
#define TRAINER_OP(name, kernel) \
  case Op::name:                 \
    return prepare_##kernel(s, c);
#include "engine/core/ops.inc"
  }
  refuse_launch(s);
}

}  // namespace trainer::kernels::cuda
