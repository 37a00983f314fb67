// What the signature of muon_orthogonalize says, checked once for all devices.
#include "kernels/muon.h"

#include <algorithm>

#include "engine/core/check.h"
#include "engine/core/op_record.h"

namespace trainer::kernels {

double MuonMatrices::adjustment(const OwnedMatrix& matrix) const {
  return muon_adjustment(matrix.whole_rows(parts), matrix.whole_cols(parts), matches_adamw);
}

MuonMatrices muon_matrices_of(const Signature& s) {
  MuonMatrices all;
  expect_operands(s, 2);
  const Shape& x = s.operands[0].shape;
  CHECK(x.rank() == 2 && x[0] >= 1, describe(s) + ": x is not [parts, n]");
  all.parts = x[0];
  all.elements = x[1];
  expect_shape(s, 0, DType::f32, {all.parts, all.elements});
  expect_operand(s, 1, DType::f32, 4);
  all.steps = integer(s, "steps");
  all.eps = real(s, "eps");
  const std::string& adjust = text(s, "adjust");
  CHECK(adjust == "original" || adjust == "match_rms_adamw",
        "muon's adjust is original or match_rms_adamw, not " + adjust);
  all.matches_adamw = adjust == "match_rms_adamw";
  CHECK(all.steps >= 1 && all.eps > 0, describe(s) + ": at least one step, eps above 0");
  all.matrices = matrix_list(text(s, "matrices"));
  for (const OwnedMatrix& matrix : all.matrices) {
    CHECK(matrix.end() <= all.elements, describe(s) + ": a matrix beyond the unit");
    const std::int64_t rows = matrix.whole_rows(all.parts), cols = matrix.whole_cols(all.parts);
    all.most_elements = std::max(all.most_elements, rows * cols);
    all.most_small = std::max(all.most_small, std::min(rows, cols));
  }
  return all;
}

}  // namespace trainer::kernels
