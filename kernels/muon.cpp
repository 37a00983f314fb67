// What muon's signature says, checked once for all devices.
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"

namespace trainer::kernels {

bool MuonUpdate::has(const MuonMatrix& matrix, std::int64_t first) const {
  const std::int64_t last = first + count;
  if (matrix.end() <= first || matrix.offset >= last) return false;
  CHECK(matrix.offset >= first && matrix.end() <= last, "a matrix of muon crosses the border of a slice");
  return true;
}

double MuonUpdate::adjustment(const MuonMatrix& matrix) const {
  const auto rows = static_cast<double>(matrix.whole_rows(parts)), cols = static_cast<double>(matrix.whole_cols(parts));
  return matches_adamw ? 0.2 * std::sqrt(std::max(rows, cols)) : std::sqrt(std::max(1.0, rows / cols));
}

MuonUpdate muon_update(const Signature& s) {
  using At = MuonOperands;
  const Attributes& attributes = s.attributes;
  MuonUpdate update;
  update.working = attributes.flag("working", false);
  expect_operands(s, At::applied + 1 + (update.working ? 1 : 0));
  update.count = s.operands[At::master].elements();
  const Shape& u = s.operands[At::u].shape;
  CHECK(u.rank() == 2 && u[0] >= 1, describe(s) + ": u is not [parts, n]");
  update.parts = u[0];
  expect_operand(s, At::master, DType::f32, update.count);
  expect_shape(s, At::u, DType::f32, {update.parts, update.count});
  expect_operand(s, At::lr, DType::f32, 1);
  expect_operand(s, At::scalars, DType::f32, 4);
  expect_operand(s, At::applied, DType::i32, 1);
  update.elements = attributes.integer("elements");
  update.steps = attributes.integer("steps");
  update.eps = attributes.real("eps");
  update.weight_decay = attributes.real("weight_decay");
  const std::string& adjust = attributes.text("adjust");
  CHECK(adjust == "original" || adjust == "match_rms_adamw",
        "muon's adjust is original or match_rms_adamw, not " + adjust);
  update.matches_adamw = adjust == "match_rms_adamw";
  CHECK(update.elements >= update.count && update.steps >= 1 && update.eps > 0,
        describe(s) + ": a slice of the unit, at least one step, eps above 0");
  for (const MuonMatrix& matrix : muon_matrices(attributes.text("matrices"))) {
    CHECK(matrix.end() <= update.elements, describe(s) + ": a matrix beyond the unit");
    if (matrix.elements() > update.count) continue;
    const std::int64_t rows = matrix.whole_rows(update.parts), cols = matrix.whole_cols(update.parts);
    update.matrices.push_back(matrix);
    update.most_elements = std::max(update.most_elements, rows * cols);
    update.most_small = std::max(update.most_small, std::min(rows, cols));
  }
  return update;
}

}  // namespace trainer::kernels
