// Tiles, waves and splits of K. The hardware file's `achievable.matmul` is what the best shapes reach under sustained
// load; all that other shapes lose is here: idle multiprocessors in the last wave, tiles that stick out over the edge,
// smaller tiles that re-read more, the start and the end of a tile, results that leave through memory. Sources: NVIDIA,
// Matrix Multiplication Background User's Guide (tile and wave quantisation, alignment); CUTLASS, Efficient GEMM in
// CUDA (threadblock tiles, epilogue, split-K); the tile shapes that names of cuBLAS's kernels list.
#include "engine/cost/gpu_gemm.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trainer::cost {
namespace {

struct Tile {
  std::int64_t m, n;
};

// What cuBLAS ships for sm_80; from sm_90 on it has widths between these too, and persistent kernels.
constexpr std::array<Tile, 8> kTiles{
    {{256, 128}, {128, 256}, {128, 128}, {256, 64}, {64, 256}, {128, 64}, {64, 128}, {64, 64}}};
constexpr std::array<Tile, 3> kTilesHopper{{{128, 192}, {192, 128}, {192, 192}}};
constexpr std::array<std::int64_t, 5> kSplits{1, 2, 3, 4, 8};

// The best shape of a search still has a last wave, a start and an end; its inner loop is by so much faster than what
// it reaches. MAMF's best on an H100, 2048 x 2048 x 13312, fills 128 of 132 multiprocessors: 0.97, and 0.02 for start
// and end. But no product runs faster than the best: what large ones save in waves they lose to the limit of power.
constexpr double kBestShape = 0.95;
// Relative cost of an operand's edge: a tile [m, n] reads (m + n) for m·n products, and shared memory feeds both.
// Largest tile: 1.
constexpr double kEdge = 12;
constexpr double kLargestEdge = 1.0 / 128 + 1.0 / 256;
// Filling the stages of a tile's pipeline from memory, some two round trips of 0.6 to 0.8 µs.
constexpr double kFill_us = 1.4;
// Of a tile's start and end, what a persistent kernel does not hide: K of 256 to 1024 at 8 waves in XLA's table for
// sm_90 (4 products of 2048 x 4096) takes some 1.7 µs a wave more than its loop.
constexpr double kSwitch = 0.37;
// A library picks its kernel by rules, not by trying: over a thousand shapes on an A100 cuBLASLt's heuristic is 5%
// slower than the best of its own kernels (CUDA-L2: 16.8% against 11.4% behind the same kernels).
constexpr double kChoice = 1.04;
// Results and memory-bound operands move at this share of what a stream of bytes reaches.
constexpr double kStreams = 0.9;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

double spread_of(const DeviceModel& device, const char* name) {
  const auto at = device.achievable.find(name);
  return at == device.achievable.end() ? 0.1 : at->second.spread;
}

// Of fp8 the same share as of the other dtypes: cuBLAS on an H100 after 10,000 repetitions (Azure AI benchmarking
// guide).
double peak_of(const DeviceModel& device, const Product& product) {
  if (product.fp8 && device.fp8_peak) return device.fp8_peak->value;
  const auto at = device.peak.find(product.dtype);
  return at != device.peak.end() ? at->second.value : device.peak.begin()->second.value;
}

// Unaligned rows forbid 16-byte copies into shared memory and the tensor memory accelerator: older, narrower kernels
// run. PyTorch issue 181718: 107 to 116 of 156 TFLOP/s at odd sizes on sm_89; ml-engineering's SwiGLU search on an
// H100: 273 of 395 at d_ff = 10922.
double alignment_share(std::int64_t alignment, int capability) {
  if (alignment >= 16) return 1;
  const double vector = alignment >= 8 ? 0.9 : alignment >= 4 ? 0.78 : 0.71;
  return capability >= 90 ? vector * 0.88 : vector;
}

struct Machine {
  double unit_rate;  // FLOP/µs of one multiprocessor in the loop of the largest tile
  double bandwidth;  // bytes/µs
  int units;
  bool persistent;  // the end of one tile overlaps the loop of the next
};

double time_of(const Machine& machine, const Product& p, Tile tile, std::int64_t split) {
  const std::int64_t tiles = ceil_div(p.m, tile.m) * ceil_div(p.n, tile.n) * split;
  const std::int64_t waves = ceil_div(tiles, machine.units);
  const double area = static_cast<double>(tile.m * tile.n);
  const double edge = 1.0 / static_cast<double>(tile.m) + 1.0 / static_cast<double>(tile.n);
  const double share = 1 / (1 + kEdge * std::max(0.0, edge - kLargestEdge));
  const double depth = static_cast<double>(ceil_div(ceil_div(p.k, split), 32) * 32);
  const double loop = 2 * area * depth / (machine.unit_rate * share);
  const double result = p.result_bytes / static_cast<double>(p.m * p.n);
  const double in_wave = static_cast<double>(std::min<std::int64_t>(tiles, machine.units));
  const double end = in_wave * area * result / machine.bandwidth;
  // Two tiles of a half or less fit a multiprocessor, and so hide each other's start and end by half; a persistent
  // kernel hides most.
  const double share_exposed = machine.persistent ? kSwitch : area <= 128 * 128 ? 0.5 : 1;
  const double exposed = share_exposed * (kFill_us + end) * static_cast<double>(waves - 1);
  double time = static_cast<double>(waves) * loop + exposed + kFill_us + end;
  if (split > 1)  // partial sums in f32 through the cache, and the pass that joins them
    time += 2.5 + 8 * static_cast<double>(p.m * p.n) * static_cast<double>(split) / (2 * machine.bandwidth);
  return time;
}

// Loads and products overlap until both are nearly full.
double both(double a, double b) {
  const double most = std::max(a, b), least = std::min(a, b) / most;
  return most * std::sqrt(std::sqrt(1 + least * least * least * least));
}

double fastest(const Machine& machine, const Product& p) {
  double best = 1e300;
  const auto attempt = [&](Tile tile) {
    for (std::int64_t split : kSplits) {
      if (split > 1 &&
          (p.k / split < 512 || ceil_div(p.m, tile.m) * ceil_div(p.n, tile.n) * (split - 1) > machine.units))
        break;
      best = std::min(best, time_of(machine, p, tile, split));
    }
  };
  for (Tile tile : kTiles) attempt(tile);
  if (machine.persistent)
    for (Tile tile : kTilesHopper) attempt(tile);
  return best;
}

}  // namespace

Estimate gpu_product(const DeviceModel& device, const Product& product) {
  const double rate = peak_of(device, product) * device.achievable_or("matmul", 0.8) / kBestShape * product.share *
                      alignment_share(product.alignment, device.capability);
  const double bandwidth = device.memory_bandwidth.value * device.achievable_or("memory", 0.88) * kStreams / 1e6;
  const int units = std::max(1, device.units);
  const Machine machine{rate / units / 1e6, bandwidth, units, device.capability >= 90};
  const double flops =
      2.0 * static_cast<double>(product.m) * static_cast<double>(product.n) * static_cast<double>(product.k);
  const double compute = std::max(kChoice * fastest(machine, product), flops / (rate * kBestShape / 1e6));
  const double memory = kFill_us + (product.operand_bytes + product.result_bytes) / bandwidth;
  // With one wave or less the choice of the tile decides; with many waves only the clock.
  const double tiles = static_cast<double>(ceil_div(product.m, 128) * ceil_div(product.n, 128)) / units;
  const double spread =
      std::hypot(0.05 + 0.12 / (1 + tiles), spread_of(device, compute >= memory ? "matmul" : "memory"));
  return {both(compute, memory), spread, compute >= memory ? Bound::compute : Bound::memory};
}

}  // namespace trainer::cost
