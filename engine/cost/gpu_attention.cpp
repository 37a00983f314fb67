// A score costs its products (4·d FLOP forward, 10·d backward, where the probabilities are made again) and one exponential, of which a
// multiprocessor makes 16 a cycle: at a head of 64 as long as the products take on an H100 (FlashAttention-3, section 3.1, 3.9 T/s).
// FlashAttention-2 does one after the other; FlashAttention-3 and cuDNN's kernels for Hopper hide part. Both shares, and the time that
// a tile takes to begin and end, are read off the papers' figures at 16,384 and 512 tokens; between them the model stands on its own
// (tests/cost/gpu_times_test.cpp).
// Sources: Dao, FlashAttention-2 (arXiv:2307.08691), figures 4 to 6; Shah et al., FlashAttention-3 (arXiv:2407.08608), figures 5, 6.
#include "engine/cost/gpu_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace trainer::cost {
namespace {

constexpr double kExponentialsPerCycle = 16;  // of one multiprocessor, since sm_80
constexpr double kRows = 128;                 // of queries in a tile

// Exponentials (and scaling, masking, sums) that products do not hide, in units of exponentials. Backward there are five products, of
// which two wait for them, and the row sums of dO·O.
double unhidden(int capability, bool backward) {
  if (capability >= 90) return backward ? 1.62 : 0.88;
  return backward ? 2.5 : 1.0;
}

// Of the peak, what the products reach between the exponentials.
double products_share(const DeviceModel& device, bool backward) {
  const auto at = device.achievable.find(backward ? "attention_backward" : "attention_forward");
  if (at != device.achievable.end()) return at->second.value;
  if (device.capability >= 90) return backward ? 0.71 : 0.94;
  return backward ? 0.75 : 0.89;
}

// Kernels are made for these; others are padded.
double padded(std::int64_t head_dim) {
  constexpr std::array<std::int64_t, 6> made{32, 64, 96, 128, 192, 256};
  for (std::int64_t size : made)
    if (head_dim <= size) return static_cast<double>(size);
  return static_cast<double>(head_dim);
}

}  // namespace

Estimate gpu_attention(const DeviceModel& device, const Attention& a) {
  const auto peak = device.peak.find(a.dtype);
  const double flops = (peak != device.peak.end() ? peak : device.peak.begin())->second.value;
  const double units = std::max(1, device.units);
  const double clock = device.clock_hz > 0 ? device.clock_hz : 1.6e9;
  const double d = padded(a.head_dim);
  const double score = (a.backward ? 10 : 4) * d / (flops / units * products_share(device, a.backward)) +
                       unhidden(device.capability, a.backward) / (kExponentialsPerCycle * clock);  // s, on one multiprocessor
  const double seq = static_cast<double>(a.seq);
  const double tiles = static_cast<double>(a.batch * a.heads) * std::ceil(seq / kRows);
  // A causal row of tiles ends on the diagonal, whose tiles are made whole and masked, and rows of unequal length end apart.
  const double keys = a.causal ? std::min(seq, seq / 2 + kRows) : seq;
  const double edges = device.capability >= 90 ? 1.8 : 1.4;  // µs: first tiles from memory, last rows back to it
  const double tile = std::min(seq, kRows) * keys * score * 1e6 + edges;
  const double longest = std::min(seq, kRows) * seq * score * 1e6 + edges;
  const double waves = a.causal ? std::max(tiles / units, 1.0) : std::ceil(tiles / units);
  const double compute = a.causal && tiles <= units ? longest : waves * tile + (a.causal ? (longest - tile) / 4 : 0);
  const auto share = device.achievable.find("memory");
  const double bandwidth = device.memory_bandwidth.value * (share == device.achievable.end() ? 0.88 : share->second.value) / 1e6;
  // Passes of their own, backward: the rows' sums of dO·O; dq in f32 cleared, and made bf16.
  const double passes = a.backward ? 4.5 + 14 * static_cast<double>(a.batch * a.heads * a.seq * a.head_dim) / bandwidth : 0;
  const double memory = a.bytes / bandwidth + 2;
  return {std::max(compute, memory) + passes, 0.12, compute >= memory ? Bound::compute : Bound::memory};
}

}  // namespace trainer::cost
