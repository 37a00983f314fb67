// The list of matrices as text, and back.
#include "engine/core/muon.h"

#include <algorithm>
#include <array>
#include <charconv>

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
  std::array<std::int64_t, 3> numbers{};
  for (std::int64_t& number : numbers) {
    const std::string_view field = take(text, ':');
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number);
    CHECK(error == std::errc() && end == field.data() + field.size(),
          "a matrix of muon is offset:rows:cols:cut, not " + whole);
  }
  const std::size_t cut = text.size() == 1 ? kCuts.find(text[0]) : std::string_view::npos;
  CHECK(cut != std::string_view::npos, "the cut of a matrix of muon is -, 0 or 1, not that of " + whole);
  CHECK(numbers[0] >= 0 && numbers[1] > 0 && numbers[2] > 0, "a matrix of muon has a place and elements: " + whole);
  return {numbers[0], numbers[1], numbers[2], static_cast<MuonMatrix::Cut>(cut)};
}

}  // namespace

std::string muon_text(std::span<const MuonMatrix> matrices) {
  std::string text;
  for (const MuonMatrix& m : matrices) {
    if (!text.empty()) text += ',';
    text += std::to_string(m.offset) + ':' + std::to_string(m.rows) + ':' + std::to_string(m.cols) + ':';
    text += kCuts[static_cast<std::size_t>(m.cut)];
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

double newton_schulz_flops(std::int64_t rows, std::int64_t cols, std::int64_t steps) {
  const auto s = static_cast<double>(std::min(rows, cols)), l = static_cast<double>(std::max(rows, cols));
  return static_cast<double>(steps) * (4 * s * s * l + 2 * s * s * s);
}

}  // namespace trainer
