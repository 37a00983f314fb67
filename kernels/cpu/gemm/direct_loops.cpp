// The product of f32 operands of which one is small: those of low-rank adapters, and of models whose weights stay in
// cache. To copy A first, as widen_loops.cpp does, would take time for nothing: A is read where it lies, and C is
// written once.
//
// If A lies by rows, B is the small one. It is packed once. Some rows of A stay in L2 while the groups of columns of B
// pass by, each in pieces of k that stay in L1.
//
// If A lies by columns and B by rows, C is small and k is long. C waits in f32 sums while k passes in pieces of 32
// steps, of which A and B stay in L1 and L2. The next piece is asked for meanwhile: its rows lie pages apart.
//
// An element of C is the sum over k in the same order as in widen_loops.cpp, so both give the same bits.
#include "kernels/cpu/gemm/direct_loops.h"

#include "kernels/cpu/gemm/b_block.h"
#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/gemm/widen_loops.h"
#include "kernels/cpu/runtime/transpose.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::kStrip;
using gemm::least;
using gemm::Order;
using gemm::Part;
using gemm::Problem;

/// Rows of a tile, at most: of two vectors, or of one.
template <int kCount>
constexpr int kMostRows = (kCount == 1 ? 2 : 1) * gemm::widen_rules(kLanes == 16).panel_rows;

struct Matrix {
  const float* data;
  std::int64_t ld;
};

// ---- the innermost loop

/// `kRows` rows and kCount vectors of C in registers.
template <int kRows, int kCount>
struct Tile {
  F32 sum[kRows][kCount];

  [[gnu::always_inline]] void add_products(bool by_rows, const Matrix& a, const Matrix& b, std::int64_t steps) {
#pragma GCC unroll 2
    for (std::int64_t p = 0; p < steps; ++p) {
      F32 row[kCount];
#pragma GCC unroll 2
      for (int v = 0; v < kCount; ++v) row[v] = load(b.data + p * b.ld + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const float x = by_rows ? a.data[r * a.ld + p] : a.data[p * a.ld + r];
#pragma GCC unroll 2
        for (int v = 0; v < kCount; ++v) sum[r][v] += row[v] * x;
      }
    }
  }

  [[gnu::always_inline]] void load_from(const float* c, std::int64_t ldc) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kCount; ++v) sum[r][v] = c ? load(c + r * ldc + v * kLanes) : F32{};
  }
  [[gnu::always_inline]] void store_to(float* c, std::int64_t ldc) const {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kCount; ++v) store(c + r * ldc + v * kLanes, sum[r][v]);
  }
};

/// Sums over the pieces of k before this one, if there are any, [rows][kColumns]; and whether this is the last, whose
/// sums go to C: plus bias and addend, where these are there.
struct Piece {
  float* sums;
  bool first, last;
  const float *bias, *addend;
};

/// c [kRows, kCount vectors] = a · b over a piece of k, where A lies by rows.
template <int kRows, int kCount>
void row_tile(const Matrix& a, const Matrix& b, std::int64_t steps, const Piece& piece, float* c, std::int64_t ldc) {
  Tile<kRows, kCount> tile;
  tile.load_from(piece.first ? nullptr : piece.sums, kColumns);
  tile.add_products(true, a, b, steps);
  if (!piece.last) return tile.store_to(piece.sums, kColumns);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kCount; ++v) {
      F32& y = tile.sum[r][v];
      if (piece.bias) y += load(piece.bias + v * kLanes);
      if (piece.addend) y += load(piece.addend + r * ldc + v * kLanes);
    }
  tile.store_to(c, ldc);
}

/// c (+)= a · b over a piece of k, where A lies by columns.
template <int kRows, int kCount>
void part_tile(const Matrix& a, const Matrix& b, std::int64_t steps, bool add, float* c, std::int64_t ldc) {
  Tile<kRows, kCount> tile;
  tile.load_from(add ? c : nullptr, ldc);
  tile.add_products(false, a, b, steps);
  tile.store_to(c, ldc);
}

using RowTile = void (*)(const Matrix&, const Matrix&, std::int64_t, const Piece&, float*, std::int64_t);
using PartTile = void (*)(const Matrix&, const Matrix&, std::int64_t, bool, float*, std::int64_t);

/// Of tiles of equal height for `rows` rows.
template <int kCount>
std::int64_t height_of(std::int64_t rows) {
  return gemm::divide_up(rows, gemm::divide_up(rows, kMostRows<kCount>));
}

/// The tile for `rows` of 1 to kRows.
template <int kCount, int kRows = kMostRows<kCount>>
RowTile row_tile_for(std::int64_t rows) {
  if constexpr (kRows == 1)
    return row_tile<1, kCount>;
  else
    return rows == kRows ? row_tile<kRows, kCount> : row_tile_for<kCount, kRows - 1>(rows);
}
template <int kCount, int kRows = kMostRows<kCount>>
PartTile part_tile_for(std::int64_t rows) {
  if constexpr (kRows == 1)
    return part_tile<1, kCount>;
  else
    return rows == kRows ? part_tile<kRows, kCount> : part_tile_for<kCount, kRows - 1>(rows);
}

constexpr std::int64_t kSteps = 32;  // of k that pass at a time where they lie in rows

// ---- B

/// Columns [column, column + kColumns) of `steps` steps of B from `step`, to [steps][kColumns]; 0 behind the last.
void pack_group(const Problem& p, std::int64_t column, std::int64_t step, std::int64_t steps, float* to) {
  const auto* const b = static_cast<const float*>(p.b);
  const std::int64_t columns = least(kColumns, p.n - column);
  if (p.b_order == Order::rows) {
    for (std::int64_t i = 0; i < steps; ++i) {
      for (int j = 0; j < kColumns; j += kLanes) store(to + i * kColumns + j, F32{});
      for_each_vector(0, columns, [&](std::int64_t j, auto get, auto put) {
        put(to + i * kColumns + j, get(b + (step + i) * p.ldb + column + j));
      });
    }
    return;
  }
  for (std::int64_t j = 0; j < kColumns; j += kLanes)
    for (std::int64_t i = 0; i < steps; i += kLanes) {
      const std::int64_t across = least(kLanes, columns - j), down = least(kLanes, steps - i);
      U32 square[kLanes];
      for (std::int64_t q = 0; q < kLanes; ++q) {
        const float* from = b + (column + j + q) * p.ldb + step + i;
        square[q] = q >= across      ? U32{}
                    : down == kLanes ? (U32)load(from)
                                     : (U32)load_first(from, static_cast<int>(down));
      }
      transpose(square);
      for (std::int64_t q = 0; q < down; ++q) store(to + (i + q) * kColumns + j, (F32)square[q]);
    }
}

}  // namespace

// What lies by rows is read some rows at a time: a group's 64 or 128 bytes of each row alone would share few cache
// sets.
void direct_pack(const Problem& p, std::int64_t strip, std::int64_t strip_end, float* to) {
  const std::int64_t end = least(strip_end * kStrip, p.n), piece = p.b_order == Order::rows ? kSteps : p.k;
  for (std::int64_t step = 0; step < p.k; step += piece)
    for (std::int64_t column = strip * kStrip; column < end; column += kColumns)
      pack_group(p, column, step, least(piece, p.k - step), to + column * p.k + step * kColumns);
}

// ---- C

namespace {

/// A part of C from sums [rows][ld].
void finish_from(const Problem& p, const float* sums, std::int64_t ld, std::int64_t row, std::int64_t rows,
                 std::int64_t column, std::int64_t columns) {
  const auto* const bias = p.bias ? static_cast<const float*>(p.bias) + column : nullptr;
  const std::int64_t at = row * p.ldc + column;
  const auto* const addend = p.addend ? static_cast<const float*>(p.addend) + at : nullptr;
  finish_edge<float, float>(sums, ld, rows, columns, bias, addend, static_cast<float*>(p.c) + at, p.ldc);
}

}  // namespace

// ---- A by rows

namespace {

constexpr std::int64_t kDepth = 384;  // steps of a piece of k, at most: of B 24 KiB, or 48 with AVX-512

/// Rows of A that share what is read of B: 256 KiB of them, but not so few that they would wait for B.
constexpr std::int64_t kLeastShare = 28, kMostShare = 98;
constexpr std::int64_t rows_sharing(std::int64_t k) {
  constexpr std::int64_t kFloats = 64 * 1024;
  return least(kMostShare, gemm::most(kLeastShare, kFloats / k));
}

/// A group of columns of C, for the rows [row, row + count), which share what is read of B.
template <int kCount>
void group_of_rows(const Problem& p, const Matrix& a, const float* packed, std::int64_t row, std::int64_t count,
                   std::int64_t height, std::int64_t column) {
  alignas(64) float sums[kMostShare * kColumns];
  const std::int64_t pieces = gemm::divide_up(p.k, kDepth), depth = gemm::divide_up(p.k, pieces);
  const std::int64_t columns = least(kCount * kLanes, p.n - column);
  const bool edge = columns < kCount * kLanes;
  const auto* const bias = p.bias ? static_cast<const float*>(p.bias) + column : nullptr;
  for (std::int64_t step = 0; step < p.k; step += depth) {
    const Matrix b{packed + column * p.k + step * kColumns, kColumns};
    const bool last = step + depth >= p.k;
    for (std::int64_t i = 0; i < count; i += height) {
      const std::int64_t rows = least(height, count - i), at = (row + i) * p.ldc + column;
      const auto* const addend = p.addend ? static_cast<const float*>(p.addend) + at : nullptr;
      row_tile_for<kCount>(rows)({a.data + i * a.ld + step, a.ld}, b, least(depth, p.k - step),
                                 {sums + i * kColumns, step == 0, last && !edge, bias, addend},
                                 static_cast<float*>(p.c) + at, p.ldc);
    }
  }
  if (edge) finish_from(p, sums, kColumns, row, count, column, columns);
}

template <int kCount>
void rows_by_groups(const Problem& p, const float* packed, std::int64_t row, std::int64_t row_end) {
  const std::int64_t height = height_of<kCount>(row_end - row), most = rows_sharing(p.k) / height * height;
  const std::int64_t chunks = gemm::divide_up(row_end - row, most),
                     chunk = gemm::round_up(gemm::divide_up(row_end - row, chunks), height);
  for (; row < row_end; row += chunk) {
    const std::int64_t count = least(chunk, row_end - row);
    const Matrix a{static_cast<const float*>(p.a) + row * p.lda, p.lda};
    for (std::int64_t column = 0; column < p.n; column += kColumns)
      group_of_rows<kCount>(p, a, packed, row, count, height, column);
  }
}

}  // namespace

void direct_rows(const Problem& p, const float* packed, std::int64_t row, std::int64_t row_end) {
  p.n <= kLanes ? rows_by_groups<1>(p, packed, row, row_end) : rows_by_groups<kVectors>(p, packed, row, row_end);
}

// ---- A by columns

namespace {

/// Asks for a line of each of the rows [row, row + rows) of a matrix, for L2.
void ask(const Matrix& m, std::int64_t row, std::int64_t rows, std::int64_t column) {
  for (std::int64_t i = 0; i < rows; ++i) __builtin_prefetch(m.data + (row + i) * m.ld + column, 0, 2);
}

/// sums (+)= columns of B from `column` on, `steps` steps from `step`.
template <int kCount>
void add_group(const Problem& p, const Part& part, std::int64_t column, std::int64_t step, std::int64_t steps,
               float* sums, std::int64_t ld) {
  alignas(64) float edge[kSteps * kColumns];
  const auto* const from = static_cast<const float*>(p.a) + step * p.lda;
  Matrix b{static_cast<const float*>(p.b) + step * p.ldb + column, p.ldb};
  if (p.n - column < kCount * kLanes) {
    pack_group(p, column, step, steps, edge);
    b = {edge, kColumns};
  }
  const std::int64_t height = height_of<kCount>(part.row_end - part.row);
  for (std::int64_t row = part.row; row < part.row_end; row += height)
    part_tile_for<kCount>(least(height, part.row_end - row))({from + row, p.lda}, b, steps, step > 0,
                                                             sums + row * ld + column, ld);
}

}  // namespace

void direct_sums(const Problem& p, const Part& part, float* sums) {
  const std::int64_t ld = gemm::round_up(p.n, kStrip), first = part.strip * kStrip,
                     end = least(part.strip_end * kStrip, p.n);
  const Matrix a{static_cast<const float*>(p.a), p.lda}, b{static_cast<const float*>(p.b), p.ldb};
  constexpr std::int64_t kLine = 16;  // floats
  for (std::int64_t step = 0; step < p.k; step += kSteps) {
    const std::int64_t steps = least(kSteps, p.k - step), next = step + steps, more = least(kSteps, p.k - next);
    for (std::int64_t row = part.row; row < part.row_end; row += kLine) ask(a, next, more, row);
    for (std::int64_t column = first; column < end; column += kColumns) {
      for (std::int64_t j = column; j < least(column + kColumns, end); j += kLine) ask(b, next, more, j);
      if (p.n - column > kLanes)
        add_group<kVectors>(p, part, column, step, steps, sums, ld);
      else
        add_group<1>(p, part, column, step, steps, sums, ld);
    }
  }
  finish_from(p, sums + part.row * ld + first, ld, part.row, part.row_end - part.row, first, end - first);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
