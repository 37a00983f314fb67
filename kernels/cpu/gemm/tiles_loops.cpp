// The bf16 product on AMX tiles.
//
// 2 × 2 tiles of C stand in registers: 32 rows by a strip of 32 columns, four products for four loads. The order of
// blocks is that of the f32 way (blocking.h): a block of a strip of B lies in L1 in its packed form, the rows of A,
// copied in the order in which tiles read them, in L2. They pass L1 by (`load_once`), so that a block may take most of
// it, and what the next block is made of is asked for beside the products. A finished tile is stored between the first
// products of the next 32 rows, so that the products never wait for the stores.
//
//   block of A   [32 rows][32 steps][2 tiles][16 rows][16 pairs]
//   block of B   [32 steps][16 pairs][32 columns] (packed_blocks.h)
//
// One core of a Xeon with AMX (L1 of 48 KiB, L2 of 2 MiB), random operands: 2.5 TFLOP/s of products of tiles in L1,
// which power limits (3.5 with zeros), 1.9 where all tiles come from L2, 1.2 to 1.5 in whole products.
#include "kernels/cpu/gemm/tiles_loops.h"

#include "kernels/cpu/gemm/finish.h"
#include "kernels/cpu/gemm/packed_blocks.h"
#include "kernels/cpu/gemm/tiles.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

using gemm::Blocking;
using gemm::divide_up;
using gemm::kStrip;
using gemm::least;
using gemm::most;
using gemm::Order;
using gemm::Part;
using gemm::Problem;

constexpr std::int64_t kGroup = gemm::kTileRows;  // rows of two tiles
constexpr std::int64_t kTileWords = 16 * 16;
constexpr std::int64_t kTileSteps = 32;
constexpr std::int64_t kLineBytes = kStrip * 4;  // from one row of sums, or line of B, to the next

// ---- the innermost loop

// Registers: C is 2 × 2, A two rows, B two columns.
constexpr int kC00 = 0, kC01 = 1, kC10 = 2, kC11 = 3, kA0 = 4, kA1 = 5, kB0 = 6, kB1 = 7;

/// The tiles of C while the rows of A pass.
class Accumulators {
 public:
  /// sums[32][kStrip] (+)= a · b over `tile_steps` tiles; they reach memory during the next call, or at `flush`. Each
  /// step asks for `lines` of what is ahead.
  void multiply(const std::uint32_t* a, const std::uint32_t* b, std::int64_t tile_steps, float* sums, bool add,
                Ahead& ahead, std::int64_t lines) {
    Ahead asked = ahead;  // in registers
    asked.ask(lines);
    Tiles::load_once<kA0>(a, 64);
    Tiles::load<kB0>(b, kLineBytes);
    begin<kC00>(sums, 0, add);
    Tiles::multiply_add<kC00, kA0, kB0>();
    Tiles::load<kB1>(b + 16, kLineBytes);
    begin<kC01>(sums, 16, add);
    Tiles::multiply_add<kC01, kA0, kB1>();
    Tiles::load_once<kA1>(a + kTileWords, 64);
    begin<kC10>(sums, 16 * kStrip, add);
    Tiles::multiply_add<kC10, kA1, kB0>();
    begin<kC11>(sums, 16 * kStrip + 16, add);
    Tiles::multiply_add<kC11, kA1, kB1>();
    for (std::int64_t step = 1; step < tile_steps; ++step) {
      a += 2 * kTileWords, b += 16 * kStrip;
      asked.ask(lines);
      Tiles::load_once<kA0>(a, 64);
      Tiles::load<kB0>(b, kLineBytes);
      Tiles::load<kB1>(b + 16, kLineBytes);
      Tiles::multiply_add<kC00, kA0, kB0>();
      Tiles::multiply_add<kC01, kA0, kB1>();
      Tiles::load_once<kA1>(a + kTileWords, 64);
      Tiles::multiply_add<kC10, kA1, kB0>();
      Tiles::multiply_add<kC11, kA1, kB1>();
    }
    pending_ = sums;
    ahead = asked;
  }

  void flush() {
    if (!pending_) return;
    store<kC00>(0), store<kC01>(16), store<kC10>(16 * kStrip), store<kC11>(16 * kStrip + 16);
    pending_ = nullptr;
  }

 private:
  template <int kTile>
  void store(std::int64_t at) {
    Tiles::store<kTile>(pending_ + at, kLineBytes);
  }

  template <int kTile>
  void begin(const float* sums, std::int64_t at, bool add) {
    if (pending_) store<kTile>(at);
    add ? Tiles::load<kTile>(sums + at, kLineBytes) : Tiles::zero<kTile>();
  }

  float* pending_ = nullptr;
};

// ---- copying A

/// Two tiles of A that lies by rows, 16 × 2 rows of 32 steps; what lies outside is 0.
void copy_rows(const Bf16* a, std::int64_t lda, std::int64_t rows, std::int64_t steps, std::uint32_t* to) {
  for (std::int64_t i = 0; i < kGroup; ++i, to += 16) {
    if (i < rows && steps >= kTileSteps) {
      __builtin_memcpy(to, a + i * lda, 64);
      continue;
    }
    __builtin_memset(to, 0, 64);
    if (i < rows) __builtin_memcpy(to, a + i * lda, static_cast<std::size_t>(least(steps, kTileSteps)) * sizeof(Bf16));
  }
}

/// The same of A that lies by columns: packed as a strip of B is, and turned.
void copy_columns(const Bf16* a, std::int64_t lda, std::int64_t rows, std::int64_t steps, std::uint32_t* to) {
  alignas(64) std::uint32_t lines[16 * kStrip];
  pack_lines({a, lda, 1, steps, least(rows, kGroup)}, 0, 16, lines);
  for (int i = 0; i < kGroup; i += kLanes)
    for (int p = 0; p < 16; p += kLanes) {
      U32 square[kLanes];
#pragma GCC unroll 16
      for (int q = 0; q < kLanes; ++q) __builtin_memcpy(&square[q], lines + (p + q) * kStrip + i, sizeof(U32));
      transpose(square);
#pragma GCC unroll 16
      for (int q = 0; q < kLanes; ++q) __builtin_memcpy(to + (i + q) * 16 + p, &square[q], sizeof(U32));
    }
}

// ---- blocks

/// One part's work and where its scratch lies.
struct Worker {
  const Problem& problem;
  const Blocking& blocking;
  PackedBlocks block_of_b;
  std::uint32_t* a;
  float* c;

  std::int64_t tile_steps_of(std::int64_t block) const { return most(1, block_of_b.lines_of(block) / 16); }
  std::uint32_t* block_of_a(std::int64_t block) const {
    return a + block % blocking.blocks_at_once * blocking.rows * blocking.depth / 2;
  }

  /// Tile by tile in the order in which A lies.
  void copy_a(std::int64_t row, std::int64_t rows, std::int64_t block) const {
    const Bf16* from = static_cast<const Bf16*>(problem.a) + (problem.a_order == Order::rows
                                                                  ? row * problem.lda + block * blocking.depth
                                                                  : block * blocking.depth * problem.lda + row);
    const std::int64_t steps = block_of_b.steps(block), groups = divide_up(rows, kGroup),
                       tile_steps = tile_steps_of(block);
    std::uint32_t* const to = block_of_a(block);
    const auto place = [&](std::int64_t group, std::int64_t step) {
      return to + (group * tile_steps + step) * 2 * kTileWords;
    };
    if (problem.a_order == Order::rows) {
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t t = 0; t < tile_steps; ++t)
          copy_rows(from + g * kGroup * problem.lda + t * kTileSteps, problem.lda, rows - g * kGroup,
                    steps - t * kTileSteps, place(g, t));
      return;
    }
    for (std::int64_t t = 0; t < tile_steps; ++t)
      for (std::int64_t g = 0; g < groups; ++g)
        copy_columns(from + t * kTileSteps * problem.lda + g * kGroup, problem.lda, rows - g * kGroup,
                     steps - t * kTileSteps, place(g, t));
  }

  /// sums (+)= block · strip; after the last block each 32 rows go to C while the next are under way.
  void multiply_block(std::int64_t row, std::int64_t rows, std::int64_t strip, std::int64_t block, float* sums,
                      Ahead ahead) const {
    const std::uint32_t* b_block = block_of_b(strip, block);
    const std::int64_t tile_steps = tile_steps_of(block);
    const std::int64_t lines = divide_up(ahead.lines(), divide_up(rows, kGroup) * tile_steps);
    const bool last = block + 1 == blocking.blocks;
    const auto finish = [&](std::int64_t i) {
      finish_rows<Bf16>(problem, sums + i * kStrip, row + i, least(kGroup, rows - i), strip);
    };
    Accumulators accumulators;
    for (std::int64_t i = 0; i < rows; i += kGroup) {
      accumulators.multiply(block_of_a(block) + i / kGroup * tile_steps * 2 * kTileWords, b_block, tile_steps,
                            sums + i * kStrip, block > 0, ahead, lines);
      if (last && i > 0) finish(i - kGroup);
    }
    accumulators.flush();
    if (last) finish((rows - 1) / kGroup * kGroup);
  }

  void rows_of_c(std::int64_t row, std::int64_t rows, const Part& part) const {
    for_each_block(
        blocking, part, block_of_b, c,
        [&](std::int64_t first, std::int64_t end) {
          for (std::int64_t block = first; block < end; ++block) copy_a(row, rows, block);
        },
        [&](std::int64_t strip, std::int64_t block, float* sums, const Ahead& ahead) {
          multiply_block(row, rows, strip, block, sums, ahead);
        });
  }
};

}  // namespace

void tiles_part(const Problem& problem, const Blocking& blocking, const Part& part, unsigned char* scratch) {
  const Worker worker{problem,
                      blocking,
                      {problem, blocking, reinterpret_cast<std::uint32_t*>(scratch + blocking.a_bytes)},
                      reinterpret_cast<std::uint32_t*>(scratch),
                      reinterpret_cast<float*>(scratch + blocking.a_bytes + blocking.b_bytes)};
  const std::int64_t count = part.row_end - part.row, chunks = divide_up(count, blocking.rows);
  const std::int64_t chunk = chunks ? gemm::round_up(divide_up(count, chunks), kGroup) : 0;
  Tiles::configure();
  for (std::int64_t row = part.row; row < part.row_end; row += chunk)
    worker.rows_of_c(row, least(chunk, part.row_end - row), part);
  Tiles::release();
  fence();
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
