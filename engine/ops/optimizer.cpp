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

double bytes_of(const Signature& signature, std::size_t first, std::size_t last) {
  double bytes = 0;
  for (std::size_t i = first; i < last; ++i) bytes += static_cast<double>(signature.operands[i].bytes());
  return bytes;
}

bool working(const Signature& signature) { return signature.attributes.flag("working", false); }

/// Master and states are read and written, the gradient read, the working copy written. Behind the states come lr,
/// scalars and applied.
Cost cost_update(const Signature& signature) {
  const std::size_t states_end = signature.operands.size() - (working(signature) ? 4 : 3);
  Cost cost = moved(signature, working(signature) ? 1 : 0);
  cost.bytes_written += bytes_of(signature, 0, 1) + bytes_of(signature, 2, states_end);
  return cost;
}

/// The gradient is read, the states read and written, the update written.
Cost cost_muon_momentum(const Signature& signature) {
  Cost cost = moved(signature, 1);
  cost.bytes_written += bytes_of(signature, 1, signature.operands.size() - 3);
  return cost;
}

/// The products of the owner that has the most; what it does not own it writes 0 to.
Cost cost_muon_orthogonalize(const Signature& signature) {
  const std::int64_t parts = signature.operands[0].shape[0], steps = signature.attributes.integer("steps");
  std::map<std::int64_t, double> of_owner;
  for (const OwnedMatrix& matrix : matrix_list(signature.attributes.text("matrices")))
    of_owner[matrix.owner] += newton_schulz_flops(matrix.whole_rows(parts), matrix.whole_cols(parts), steps);
  Cost cost = moved(signature, 0);
  cost.bytes_written += bytes_of(signature, 0, 1);
  for (const auto& [owner, flops] : of_owner) cost.flops = std::max(cost.flops, flops);
  return cost;
}

}  // namespace

OpDef sgd() { return {.op = Op::sgd, .cost = cost_update, .update = alone()}; }
OpDef adam() { return {.op = Op::adam, .cost = cost_update, .update = alone()}; }
OpDef adamw() { return {.op = Op::adamw, .cost = cost_update, .update = alone()}; }
OpDef lion() { return {.op = Op::lion, .cost = cost_update, .update = alone()}; }

OpDef muon_momentum() {
  const UpdateDef update{{Of::gradient, Of::states, Of::scalars, Of::applied, Of::made}};
  return {.op = Op::muon_momentum, .cost = cost_muon_momentum, .update = update};
}
OpDef muon_orthogonalize() {  // rows in another order have the same orthogonal factor, in that order
  const UpdateDef update{{Of::changed, Of::scalars}, {Op::muon_momentum}, true};
  return {.op = Op::muon_orthogonalize, .cost = cost_muon_orthogonalize, .update = update};
}
OpDef muon() {
  const UpdateDef update{{Of::master, Of::taken, Of::rate, Of::scalars, Of::applied, Of::working}, {Op::muon_orthogonalize}};
  return {.op = Op::muon, .cost = cost_update, .update = update};
}

}  // namespace trainer::define
