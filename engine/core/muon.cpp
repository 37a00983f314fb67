// The list of matrices as text, and back.
#include "engine/core/muon.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "engine/core/check.h"

namespace trainer {
namespace {

constexpr std::string_view kCuts = "-01";  // in the order of Cut

/// What stands before the first `separator`, which is removed with it; all of it where there is none.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t at = text.find(separator);
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(at == std::string_view::npos ? text.size() : at + 1);
  return taken;
}

MuonMatrix matrix_of(std::string_view text) {
  const std::string whole(text);
  const auto number = [&] {
    const std::string_view field = take(text, ':');
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    CHECK(error == std::errc() && end == field.data() + field.size(),
          "a matrix of muon is offset:rows:cols:cut:owner, not " + whole);
    return value;
  };
  MuonMatrix matrix{.offset = number(), .rows = number(), .cols = number()};
  const std::string_view field = take(text, ':');
  const std::size_t cut = field.size() == 1 ? kCuts.find(field[0]) : std::string_view::npos;
  CHECK(cut != std::string_view::npos, "the cut of a matrix of muon is -, 0 or 1, not that of " + whole);
  matrix.cut = static_cast<MuonMatrix::Cut>(cut);
  matrix.owner = number();
  CHECK(text.empty() && matrix.offset >= 0 && matrix.rows > 0 && matrix.cols > 0 && matrix.owner >= 0,
        "a matrix of muon has a place, elements and an owner: " + whole);
  return matrix;
}

}  // namespace

std::string muon_text(std::span<const MuonMatrix> matrices) {
  std::string text;
  for (const MuonMatrix& m : matrices) {
    if (!text.empty()) text += ',';
    text += std::to_string(m.offset) + ':' + std::to_string(m.rows) + ':' + std::to_string(m.cols) + ':';
    text += kCuts[static_cast<std::size_t>(m.cut)];
    text += ':' + std::to_string(m.owner);
  }
  return text;
}

std::vector<MuonMatrix> muon_matrices(std::string_view text) {
  std::vector<MuonMatrix> matrices;
  while (!text.empty()) {
    matrices.push_back(matrix_of(take(text, ',')));
    CHECK(matrices.size() < 2 || matrices[matrices.size() - 2].end() <= matrices.back().offset,
          "matrices of muon are in order and apart");
  }
  return matrices;
}

double muon_adjustment(std::int64_t rows, std::int64_t cols, bool matches_adamw) {
  const auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  return matches_adamw ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
}

double newton_schulz_flops(std::int64_t rows, std::int64_t cols, std::int64_t steps) {
  const auto s = static_cast<double>(std::min(rows, cols)), l = static_cast<double>(std::max(rows, cols));
  return static_cast<double>(steps) * (4 * s * s * l + 2 * s * s * s);
}

}  // namespace trainer
