// The list of matrices as text, and back.
#include "engine/core/matrix_list.h"

#include <algorithm>
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

OwnedMatrix matrix_of(std::string_view text) {
  const std::string whole(text);
  const auto number = [&] {
    const std::string_view field = take(text, ':');
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    CHECK(error == std::errc() && end == field.data() + field.size(),
          "an owned matrix is offset:rows:cols:cut:owner, not " + whole);
    return value;
  };
  OwnedMatrix matrix{.offset = number(), .rows = number(), .cols = number()};
  const std::string_view field = take(text, ':');
  const std::size_t cut = field.size() == 1 ? kCuts.find(field[0]) : std::string_view::npos;
  CHECK(cut != std::string_view::npos, "the cut of an owned matrix is -, 0 or 1, not that of " + whole);
  matrix.cut = static_cast<OwnedMatrix::Cut>(cut);
  matrix.owner = number();
  CHECK(text.empty() && matrix.offset >= 0 && matrix.rows > 0 && matrix.cols > 0 && matrix.owner >= 0,
        "an owned matrix has a place, elements and an owner: " + whole);
  return matrix;
}

}  // namespace

std::string matrix_list_text(std::span<const OwnedMatrix> matrices) {
  std::string text;
  for (const OwnedMatrix& m : matrices) {
    if (!text.empty()) text += ',';
    text += std::to_string(m.offset) + ':' + std::to_string(m.rows) + ':' + std::to_string(m.cols) + ':';
    text += kCuts[static_cast<std::size_t>(m.cut)];
    text += ':' + std::to_string(m.owner);
  }
  return text;
}

std::vector<OwnedMatrix> matrix_list(std::string_view text) {
  std::vector<OwnedMatrix> matrices;
  while (!text.empty()) {
    matrices.push_back(matrix_of(take(text, ',')));
    CHECK(matrices.size() < 2 || matrices[matrices.size() - 2].end() <= matrices.back().offset,
          "owned matrices are in order and apart");
  }
  return matrices;
}

}  // namespace trainer
