// Ops that move values, and sums over one dim.
#include <cmath>
#include <sstream>

#include "tests/reference/reference.h"

namespace trainer::reference {

namespace {

/// Elements of `shape` from dim `dim`, counted from the last, on.
std::int64_t elements_from(const Shape& shape, std::int64_t dim) {
  std::int64_t elements = 1;
  for (int i = static_cast<int>(dim); i < 0; ++i) elements *= shape[i];
  return elements;
}

/// Calls visit(piece, element of the piece, element of the whole).
template <class Pieces, class Visit>
void each_of_pieces(const Call& c, const Shape& whole, const Pieces& pieces, const Visit& visit) {
  const std::int64_t dim = c.integer("dim", -1), all = elements_from(whole, dim);
  std::int64_t before = 0;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const std::int64_t width = elements_from(pieces[p].shape, dim);
    for (std::int64_t i = 0; i < pieces[p].size(); ++i) visit(p, i, i / width * all + before + i % width);
    before += width;
  }
}

}  // namespace

void split(const Call& c) {
  each_of_pieces(c, c.in[0].shape, c.out,
                 [&](std::size_t p, std::int64_t i, std::int64_t whole) { c.out[p][i] = c.in[0][whole]; });
}

void concat(const Call& c) {
  each_of_pieces(c, c.out[0].shape, c.in,
                 [&](std::size_t p, std::int64_t i, std::int64_t whole) { c.out[0][whole] = c.in[p][i]; });
}

void slice(const Call& c) {
  const std::int64_t dim = c.integer("dim", -1), inner = elements_from(c.in[0].shape, dim + 1);
  const std::int64_t all = elements_from(c.in[0].shape, dim), width = elements_from(c.out[0].shape, dim);
  for (std::int64_t i = 0; i < c.out[0].size(); ++i)
    c.out[0][i] = c.in[0][i / width * all + c.integer("start", 0) * inner + i % width];
}

void slice_grad(const Call& c) {
  const std::int64_t dim = c.integer("dim", -1), inner = elements_from(c.in[0].shape, dim + 1);
  const std::int64_t all = elements_from(c.out[0].shape, dim), width = elements_from(c.in[0].shape, dim);
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    c.out[0][i / width * all + c.integer("start", 0) * inner + i % width] = c.in[0][i];
}

void expand(const Call& c) {
  const std::int64_t dim = c.integer("dim", 0), copies = c.out[0].shape[static_cast<int>(dim)];
  std::int64_t inner = 1;
  for (int i = static_cast<int>(dim); i < c.in[0].shape.rank(); ++i) inner *= c.in[0].shape[i];
  for (std::int64_t i = 0; i < c.out[0].size(); ++i) c.out[0][i] = c.in[0][i / (inner * copies) * inner + i % inner];
}

void transpose(const Call& c) {
  std::istringstream text(c.attributes.text("dims"));
  std::vector<int> order;
  for (std::string dim; std::getline(text, dim, ',');) order.push_back(std::stoi(dim));
  const Shape &x = c.in[0].shape, &y = c.out[0].shape;
  for (std::int64_t i = 0; i < c.out[0].size(); ++i) {
    std::int64_t place[Shape::kMaxDims] = {}, rest = i, from = 0;
    for (int dim = y.rank() - 1; dim >= 0; --dim) {
      place[order[static_cast<std::size_t>(dim)]] = rest % y[dim];
      rest /= y[dim];
    }
    for (int dim = 0; dim < x.rank(); ++dim) from = from * x[dim] + place[dim];
    c.out[0][i] = c.in[0][from];
  }
}

void mean(const Call& c) {
  const std::int64_t dim = c.integer("dim", -1), inner = elements_from(c.in[0].shape, dim + 1);
  const std::int64_t all = elements_from(c.in[0].shape, dim);
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    c.out[0][i / all * inner + i % inner] += c.in[0][i] * static_cast<double>(inner) / static_cast<double>(all);
}

void mean_grad(const Call& c) {
  const std::int64_t dim = c.integer("dim", -1), inner = elements_from(c.out[0].shape, dim + 1);
  const std::int64_t all = elements_from(c.out[0].shape, dim);
  for (std::int64_t i = 0; i < c.out[0].size(); ++i)
    c.out[0][i] = c.in[0][i / all * inner + i % inner] * static_cast<double>(inner) / static_cast<double>(all);
}

void row_squares(const Call& c) {
  const Tensor &w = c.in[0], &a = c.in[1], &b = c.in[2];
  const std::int64_t columns = w.shape[1], rank = a.shape[0];
  for (std::int64_t i = 0; i < w.size(); ++i) {
    double value = w[i];
    for (std::int64_t k = 0; k < rank; ++k)
      value += c.attributes.real("factor") * b[i / columns * rank + k] * a[k * columns + i % columns];
    c.out[0][i / columns] += value * value;
  }
}

void over_root(const Call& c) {
  for (std::int64_t i = 0; i < c.in[0].size(); ++i)
    c.out[0][i] = c.in[1][i] == 0 ? 0 : c.in[0][i] / std::sqrt(c.in[1][i]);
}

}  // namespace trainer::reference
