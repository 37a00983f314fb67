// The matrices of a unit that an op of an optimizer reads whole (UpdateDef::whole), as its attribute `matrices` lists
// them: one place for the planner that writes the list, the kernels that read it (kernels/muon.h), and the cost of
// their work.
//
//   matrices  text: "offset:rows:cols:cut:owner,…", in the unit's flat order. offset is where the matrix begins, in
//             elements; rows and cols are those of the piece that one of the `parts` ranks holds. cut is `-` (every
//             rank holds the whole matrix), `0` (the whole is the ranks' pieces one below the other) or `1` (side by
//             side). owner is the rank that computes it, among those that share the work.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainer {

struct OwnedMatrix {
  enum class Cut : std::uint8_t { none, rows, columns };
  std::int64_t offset = 0;
  std::int64_t rows = 0, cols = 0;  ///< of the local piece
  Cut cut = Cut::none;
  std::int64_t owner = 0;

  std::int64_t elements() const { return rows * cols; }
  std::int64_t end() const { return offset + elements(); }
  std::int64_t whole_rows(std::int64_t parts) const { return cut == Cut::rows ? rows * parts : rows; }
  std::int64_t whole_cols(std::int64_t parts) const { return cut == Cut::columns ? cols * parts : cols; }
  friend bool operator==(const OwnedMatrix&, const OwnedMatrix&) = default;
};

/// The list as text. REQUIRES: ascending and disjoint.
std::string matrix_list_text(std::span<const OwnedMatrix> matrices);

/// The list that `text` stands for. Raises Bug where it is none: a field that is missing or no number, matrices that
/// are empty, overlap or are out of order.
std::vector<OwnedMatrix> matrix_list(std::string_view text);

}  // namespace trainer
