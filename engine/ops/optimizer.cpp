// The optimizers: what their updates move, and the products of Muon. No model names them, and they stand in no graph.
//
// Operands before `lr` are the master, the gradient and the states, in f32, in bf16, or as codes with scales
// (kernels/optimizer.h): so what a state is made of is read off the signature.
#include <algorithm>
#include <map>

#include "engine/core/matrix_list.h"
#include "engine/core/muon.h"
#include "engine/ops/common.h"

namespace trainer::define {
namespace {

using Of = UpdateDef::Operand;

/// Of an optimizer that is one op.
UpdateDef alone() { return {{Of::master, Of::gradient, Of::states, Of::rate, Of::scalars, Of::applied, Of::working}}; }

/// The products of the owner that has the most; what it does not own it writes 0 to.
double flops_muon_orthogonalize(const Signature& signature) {
  const std::int64_t parts = signature.operands[0].shape[0], steps = integer(signature, "steps");
  std::map<std::int64_t, double> of_owner;
  for (const OwnedMatrix& matrix : matrix_list(text(signature, "matrices")))
    of_owner[matrix.owner] += newton_schulz_flops(matrix.whole_rows(parts), matrix.whole_cols(parts), steps);
  double most = 0;
  for (const auto& [owner, flops] : of_owner) most = std::max(most, flops);
  return most;
}

}  // namespace

OpDef sgd() { return {.op = Op::sgd, .update = alone()}; }
OpDef adam() { return {.op = Op::adam, .update = alone()}; }
OpDef adamw() { return {.op = Op::adamw, .update = alone()}; }
OpDef lion() { return {.op = Op::lion, .update = alone()}; }

OpDef muon_momentum() {
  const UpdateDef update{{Of::gradient, Of::states, Of::scalars, Of::applied, Of::made}};
  return {.op = Op::muon_momentum, .update = update};
}
OpDef muon_orthogonalize() {  // rows in another order have the same orthogonal factor, in that order
  const UpdateDef update{{Of::changed, Of::scalars}, {Op::muon_momentum}, true};
  return {.op = Op::muon_orthogonalize, .flops = flops_muon_orthogonalize, .update = update};
}
OpDef muon() {
  const UpdateDef update{{Of::master, Of::taken, Of::rate, Of::scalars, Of::applied, Of::working},
                         {Op::muon_orthogonalize}};
  return {.op = Op::muon, .update = update};
}

}  // namespace trainer::define
