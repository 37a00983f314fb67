// The matrix product by f32 multiply-adds: bf16 operands are widened, f32 ones copied, block by block into scratch that
// stays in cache. It serves every instruction set, and for bf16 on Intel's processors it is the fastest AVX-512 way
// too: vdpbf16ps issues there every second cycle, half the FLOPs of two f32 FMAs a cycle (Emerald Rapids, measured).
//
// A block of A is [rows][kRowStride] if A lies by rows, else panels [steps][kSlot]; a block of B is as b_block.h says.
// Sums over the blocks of k stand in f32 strips of C, [rows][kStrip]: one, or one for each strip if k is so deep that
// A is widened piece by piece.
//
// Tried without gain: rows of A packed as panels (a transposition, and the rows are as fast), 12 rows in registers,
// widening all rows before the first strip (up to 15% slower where C is narrow), prefetching whole panels.
#include "kernels/cpu/gemm/widen_loops.h"
#include "kernels/cpu/gemm/b_block.h"
#include "kernels/cpu/gemm/block_order.h"
#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/gemm/quantized_blocks.h"
#include "kernels/cpu/runtime/transpose.h"
#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::Blocking;
using gemm::divide_up;
using gemm::kRowStride;
using gemm::kStrip;
using gemm::least;
using gemm::Order;
using gemm::Part;
using gemm::Problem;

constexpr int kPanel = gemm::widen_rules(kLanes == 16).panel_rows;
constexpr int kSlot = gemm::round_up(kPanel, kLanes);  // floats of a step of a panel of A by columns

// ---- the innermost loop

/// c[kRows][kStrip] (+)= a · b over `steps`, for kColumns columns. Each step also does a step of `side`.
template <int kRows, int kRowStep, int kStep, typename Side>
void multiply(const float* __restrict a, const float* __restrict b, std::int64_t steps, float* __restrict c, bool add,
              Side& side) {
  F32 sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = add ? load(c + r * kStrip + v * kLanes) : F32{};
  Side aside = side;  // in registers
#pragma GCC unroll 2
  for (std::int64_t p = 0; p < steps; ++p) {
    F32 row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + p * kColumns + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r * kRowStep + p * kStep];
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] += row[v] * x;
    }
    aside.step();
  }
  side = aside;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(c + r * kStrip + v * kLanes, sum[r][v]);
}

template <typename Side>
using Multiply = void (*)(const float*, const float*, std::int64_t, float*, bool, Side&);

/// The loop for `rows` of 1 to kPanel.
template <int kRowStep, int kStep, typename Side, int kRows = kPanel>
Multiply<Side> multiply_for(std::int64_t rows) {
  if constexpr (kRows == 1) {
    return multiply<1, kRowStep, kStep, Side>;
  } else {
    return rows == kRows ? multiply<kRows, kRowStep, kStep, Side>
                         : multiply_for<kRowStep, kStep, Side, kRows - 1>(rows);
  }
}

// ---- widening (of bf16; f32 is copied)

// Widening a panel of A takes as long as memory does, and memory has nothing else to do while a panel is multiplied: so
// the next panel is widened vector by vector between the steps of this one.

struct NoSide {
  [[gnu::always_inline]] void step() {}
};

/// A panel, `rows` by `steps`, of A that lies by rows: a vector a step, the rest in `finish`.
template <typename T>
class RowsSide {
 public:
  RowsSide(const T* from, std::int64_t lda, std::int64_t rows, std::int64_t steps, float* to)
      : from_(from), lda_(lda), left_(steps < kLanes ? 0 : rows), rows_(rows), steps_(steps), to_(to) {}

  [[gnu::always_inline]] void step() {
    if (left_ <= 0) return;
    store(to_ + at_, load(from_ + at_));
    at_ += kLanes;
    if (at_ + kLanes <= steps_) return;
    widen_tail();
    at_ = 0, --left_, --rows_, from_ += lda_, to_ += kRowStride;
  }
  void finish() {
    while (left_ > 0) step();
    for (; rows_ > 0; --rows_, from_ += lda_, to_ += kRowStride) widen_tail();
  }

 private:
  [[gnu::always_inline]] void widen_tail() {
    if (at_ < steps_) {
      const int count = static_cast<int>(steps_ - at_);
      store_first(to_ + at_, load_first(from_ + at_, count), count);
    }
  }

  const T* from_;
  std::int64_t lda_, left_, rows_, steps_, at_ = 0;
  float* to_;
};

/// The same of A that lies by columns, of which `readable` ≥ rows may be read. The processor does not foresee rows that
/// are pages apart: each is asked for kAhead steps before it is read, the first ones of a panel during the panel
/// before.
template <typename T>
class ColumnsSide {
 public:
  ColumnsSide(const T* from, std::int64_t lda, std::int64_t rows, std::int64_t readable, std::int64_t steps, float* to)
      : from_(from), lda_(lda), left_(kSlot <= readable ? steps : 0), edge_(steps - left_), rows_(rows), to_(to) {
    next_ = from + rows;
    ahead_ = kAhead < steps ? from + kAhead * lda : next_;
    ahead_left_ = kAhead < steps ? steps - kAhead : 0;
  }

  [[gnu::always_inline]] void step() {
    if (left_ <= 0) return;
#pragma GCC unroll 2
    for (int j = 0; j < kSlot; j += kLanes) store(to_ + j, load(from_ + j));
    __builtin_prefetch(ahead_ + kSlot - 1);  // the panel before has touched the line where it begins
    ahead_ += lda_;
    if (--ahead_left_ == 0) ahead_ = next_;
    --left_, from_ += lda_, to_ += kSlot;
  }
  void finish() {
    while (left_ > 0) step();
    for (; edge_ > 0; --edge_, from_ += lda_, to_ += kSlot)
      for_each_vector(0, rows_, [&](std::int64_t j, auto get, auto put) { put(to_ + j, get(from_ + j)); });
  }

 private:
  static constexpr std::int64_t kAhead = 48;
  const T* from_;
  std::int64_t lda_, left_, edge_,
      rows_;  ///< steps left by whole vectors, and, at the edge of A, by the rows there are
  float* to_;
  const T *ahead_, *next_;  ///< what is asked for, and the panel behind this one
  std::int64_t ahead_left_;
};

/// `steps` of `columns` ≤ kStrip columns of B that lies by rows; the other columns become 0.
template <typename T>
void widen_plain(const T* b, std::int64_t ldb, std::int64_t columns, std::int64_t steps, const BBlock& out) {
  if (columns == kStrip) {
    for (std::int64_t p = 0; p < steps; ++p)
#pragma GCC unroll 8
      for (int j = 0; j < kStrip; j += kLanes) store(out.at(p, j), load(b + p * ldb + j));
    return;
  }
  for (std::int64_t p = 0; p < steps; ++p) {
    for (int j = 0; j < kStrip; j += kLanes) store(out.at(p, j), F32{});
    for_each_vector(0, columns, [&](std::int64_t j, auto get, auto put) { put(out.at(p, j), get(b + p * ldb + j)); });
  }
}

/// The same of B that lies by columns: squares of registers are transposed.
template <typename T>
void widen_turned(const T* b, std::int64_t ldb, std::int64_t columns, std::int64_t steps, const BBlock& out) {
  for (std::int64_t j = 0; j < kStrip; j += kLanes)
    for (std::int64_t p = 0; p < steps; p += kLanes) {
      const std::int64_t across = least(kLanes, columns - j), down = least(kLanes, steps - p);
      U32 square[kLanes];
      if (across == kLanes && down == kLanes) {
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) square[i] = (U32)load(b + (j + i) * ldb + p);
      } else {
        for (int i = 0; i < kLanes; ++i)
          square[i] = i < across ? (U32)load_first(b + (j + i) * ldb + p, static_cast<int>(down)) : U32{};
      }
      transpose(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(out.at(p + i, j), (F32)square[i]);
    }
}

// ---- blocks

/// Rows of C that share the widened blocks of B, in panels of `panel` rows (the last may have fewer).
struct Rows {
  std::int64_t begin, count, panel;
};

/// B of a product, and how blocks of it are widened. T: what the operands hold.
template <typename T>
struct BlocksOfB {
  const Problem& problem;
  const Blocking& blocking;

  std::int64_t steps(std::int64_t block) const { return steps_of(problem, blocking, block); }

  template <bool kNf4>
  void decode(std::int64_t column, std::int64_t columns, std::int64_t step, std::int64_t steps,
              const BBlock& to) const {
    if (problem.b_order == Order::columns)
      decode_columns<kNf4>(problem.quantized, column, columns, step, steps, to);
    else
      decode_rows<kNf4>(problem.quantized, step, steps, column, to);
  }

  void widen(std::int64_t strip, std::int64_t block, const BBlock& to) const {
    const std::int64_t step = block * blocking.depth, column = strip * kStrip,
                       columns = least(kStrip, problem.n - column);
    if (problem.quantized.blocks > 0)
      return problem.quantized.nf4 ? decode<true>(column, columns, step, steps(block), to)
                                   : decode<false>(column, columns, step, steps(block), to);
    const T* from = static_cast<const T*>(problem.b);
    if (problem.b_order == Order::rows)
      widen_plain(from + step * problem.ldb + column, problem.ldb, columns, steps(block), to);
    else
      widen_turned(from + column * problem.ldb + step, problem.ldb, columns, steps(block), to);
  }

  /// Where a block lies among the floats of a B that has been widened as a whole.
  std::int64_t place(std::int64_t strip, std::int64_t block) const {
    return (strip * blocking.blocks + block) * blocking.depth * kStrip;
  }

  /// What the block is made of, which is asked for while the block before it is multiplied.
  Ahead ahead_of(std::int64_t strip, std::int64_t block) const {
    constexpr auto kFloat = static_cast<std::int64_t>(sizeof(float));
    if (problem.b_order == Order::blocks)
      return {static_cast<const float*>(problem.b) + place(strip, block), 0, 1, blocking.depth * kStrip * kFloat};
    if (problem.quantized.blocks > 0) return {};  // read from end to end
    return ahead_of_plain<T>(problem, blocking, strip, block);
  }
};

/// One part's work and where its scratch lies. T: what the operands hold.
template <typename T>
struct Worker {
  const Problem& problem;
  const Blocking& blocking;
  BlocksOfB<T> blocks;
  float *a, *b, *c;

  std::int64_t steps_of(std::int64_t block) const { return blocks.steps(block); }
  float* block_of_a(std::int64_t block) const {
    return a + block % blocking.blocks_at_once * (blocking.a_bytes / blocking.blocks_at_once / 4);
  }

  std::int64_t step_of(std::int64_t block) const { return block * blocking.depth; }

  /// How panel [row, row + rows) of A is widened.
  auto rows_side(std::int64_t row, std::int64_t rows, std::int64_t block, float* to) const {
    return RowsSide<T>(static_cast<const T*>(problem.a) + row * problem.lda + step_of(block), problem.lda, rows,
                       steps_of(block), to);
  }
  auto columns_side(std::int64_t row, std::int64_t rows, std::int64_t block, float* to) const {
    return ColumnsSide<T>(static_cast<const T*>(problem.a) + step_of(block) * problem.lda + row, problem.lda, rows,
                          problem.m - row, steps_of(block), to);
  }

  /// The widened block: where B lies so, or made now.
  const float* block_of_b(std::int64_t strip, std::int64_t block) const {
    if (problem.b_order == Order::blocks) return static_cast<const float*>(problem.b) + blocks.place(strip, block);
    blocks.widen(strip, block, {b, blocking.depth});
    return b;
  }

  /// Floats from one panel of a block of A to the next.
  template <int kStep>
  static constexpr std::int64_t panel_floats(std::int64_t panel_rows) {
    return (kStep == 1 ? panel_rows : kSlot) * kRowStride;
  }

  /// sums (+)= block · strip, panel by panel for some columns after the others; the first of them widen each panel of
  /// the first strip, by side_of(row, rows, block, to), during the one before. After the last block each panel goes to
  /// C at once: so its stores drain while the next is multiplied.
  template <int kRowStep, int kStep, typename SideOf>
  void multiply_block(const Rows& rows, std::int64_t strip, std::int64_t block, bool first, float* sums, Ahead ahead,
                      SideOf side_of) const {
    using Side = decltype(side_of(0, 0, 0, nullptr));
    const float* const b_block = block_of_b(strip, block);
    const bool last = block + 1 == blocking.blocks, add = block > 0;
    const std::int64_t steps = steps_of(block), panels = divide_up(rows.count, rows.panel);
    const std::int64_t rest = rows.count - (panels - 1) * rows.panel;  // rows of the last panel
    const int columns = static_cast<int>(
        gemm::round_up(least(kStrip, problem.n - strip * kStrip), kColumns));            // behind them there is nothing
    const std::int64_t lines = divide_up(ahead.lines(), panels * (columns / kColumns));  // a panel
    float* const block_a = block_of_a(block);
    const auto side_at = [&](std::int64_t panel) {
      return side_of(rows.begin + panel * rows.panel, panel + 1 < panels ? rows.panel : rest, block,
                     block_a + panel * panel_floats<kStep>(rows.panel));
    };
    if (first) side_at(0).finish();
    for (int j = 0; j < columns; j += kColumns) {
      const bool widens = first && j == 0, ends = last && j + kColumns == columns;
      const auto whole = multiply_for<kRowStep, kStep, NoSide>(rows.panel);
      const auto beside = multiply_for<kRowStep, kStep, Side>(rows.panel);
      const float *panel = block_a, *const columns_of_b = b_block + j * blocking.depth;
      float* to = sums + j;
      for (std::int64_t i = 0; i < panels; ++i, panel += panel_floats<kStep>(rows.panel), to += rows.panel * kStrip) {
        const bool end = i + 1 == panels;
        ahead.ask(lines);
        NoSide none;
        if (end) {
          multiply_for<kRowStep, kStep, NoSide>(rest)(panel, columns_of_b, steps, to, add, none);
        } else if (widens) {
          Side side = side_at(i + 1);
          beside(panel, columns_of_b, steps, to, add, side);
          side.finish();
        } else {
          whole(panel, columns_of_b, steps, to, add, none);
        }
        if (ends) finish_rows<T>(problem, to - j, rows.begin + i * rows.panel, end ? rest : rows.panel, strip);
      }
    }
  }

  void rows_of_c(const Rows& rows, const Part& part) const {
    const auto by_rows = [&](auto... panel) { return rows_side(panel...); };
    const auto by_columns = [&](auto... panel) { return columns_side(panel...); };
    for_each_block(
        blocking, part, blocks, c, [](std::int64_t, std::int64_t) {},
        [&](std::int64_t strip, std::int64_t block, float* sums, const Ahead& ahead) {
          if (problem.a_order == Order::rows)
            multiply_block<kRowStride, 1>(rows, strip, block, strip == part.strip, sums, ahead, by_rows);
          else
            multiply_block<1, kSlot>(rows, strip, block, strip == part.strip, sums, ahead, by_columns);
        });
  }
};

template <typename T>
void run_part(const Problem& problem, const Blocking& blocking, const Part& part, unsigned char* scratch) {
  const Worker<T> worker{problem,
                         blocking,
                         {problem, blocking},
                         reinterpret_cast<float*>(scratch),
                         reinterpret_cast<float*>(scratch + blocking.a_bytes),
                         reinterpret_cast<float*>(scratch + blocking.a_bytes + blocking.b_bytes)};
  const std::int64_t count = part.row_end - part.row, chunks = divide_up(count, blocking.rows);
  const std::int64_t chunk = chunks ? gemm::round_up(divide_up(count, chunks), kPanel) : 0;
  for (std::int64_t row = part.row; row < part.row_end; row += chunk) {
    const std::int64_t rows = least(chunk, part.row_end - row);
    worker.rows_of_c({row, rows, divide_up(rows, divide_up(rows, kPanel))}, part);  // panels of equal size
  }
  fence();
}

template <typename T>
void run_strips(const Problem& problem, const Blocking& blocking, std::int64_t strip, std::int64_t strip_end,
                float* to) {
  const BlocksOfB<T> blocks{problem, blocking};
  for (; strip < strip_end; ++strip)
    for (std::int64_t block = 0; block < blocking.blocks; ++block)
      blocks.widen(strip, block, {to + blocks.place(strip, block), blocking.depth});
}

}  // namespace

void widen_strips(const Problem& problem, const Blocking& blocking, std::int64_t strip, std::int64_t strip_end,
                  float* to) {
  problem.inputs_are_f32 ? run_strips<float>(problem, blocking, strip, strip_end, to)
                         : run_strips<Bf16>(problem, blocking, strip, strip_end, to);
}

void widen_part(const Problem& problem, const Blocking& blocking, const Part& part, unsigned char* scratch) {
  problem.inputs_are_f32 ? run_part<float>(problem, blocking, part, scratch)
                         : run_part<Bf16>(problem, blocking, part, scratch);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
