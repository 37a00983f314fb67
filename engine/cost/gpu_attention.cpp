// A score costs its products (4·d FLOP forward, 10·d backward, where the probabilities are made again) and one
// exponential, of which a multiprocessor makes 16 a cycle: at a head of 64 as long as the products take on an H100
// (FlashAttention-3, section 3.1: 3.9 T/s). A hardware file says what share of the peak a kernel reaches at heads of
// 128, long and without a mask; from it follows what its products take, and so all other heads, lengths and masks
// (tests/cost/gpu_times_test.cpp). The own gradient (kernels/cuda/attention/backward.cu) has tiles and instructions
// like FlashAttention-2's, but a pass for keys and one for queries, so that it needs no atomics: seven products for
// five, and every exponential twice. cuDNN's kernels run at the shares that a file states of them; its deterministic
// gradient writes and reads the gradients of scores beside that (engine/core/fused_attention.h). Sources: Dao,
// FlashAttention-2 (arXiv:2307.08691), figures 4 to 6; Shah et al., FlashAttention-3 (arXiv:2407.08608), figures 5, 6.
#include "engine/cost/gpu_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

namespace trainer::cost {
namespace {

constexpr double kExponentialsPerCycle = 16;  // of one multiprocessor, since sm_80
constexpr double kRows = 128;                 // of queries in a tile
constexpr double kStated = 128;               // head for which a hardware file states its shares
constexpr double kStatedTiles = 2048;         // of 16,384 tokens of width 2048

// Exponentials (and scaling, masking, sums) that products do not hide, in units of exponentials: FlashAttention-2 at
// heads of 64 and 128 on A100 and H100, and FlashAttention-3, come within a fifth of these.
constexpr double kUnhiddenForward = 1.0, kUnhiddenBackward = 1.5;

/// Whether cuDNN's kernel is the one that runs; its gradient in pieces.
bool is_fused(const DeviceModel& device, const Attention& a) {
  return a.fused && !a.own && device.attention == AttentionKernels::own && (!a.backward || a.pieces.count > 0);
}

/// What the hardware file states of the kernel: its share of the peak, with a spread.
std::optional<Figure> stated(const DeviceModel& device, const Attention& a) {
  const std::string pass = a.backward ? "attention_backward" : "attention_forward";
  auto at = device.achievable.end();
  if (is_fused(device, a)) at = device.achievable.find("cudnn_" + pass);
  if (at == device.achievable.end()) at = device.achievable.find(pass);
  return at == device.achievable.end() ? std::optional<Figure>() : at->second;
}

// What the own gradient makes again in its second pass, in units of FlashAttention-2's gradient.
constexpr double kOwnProducts = 7.0 / 5, kOwnExponentials = 2;

bool is_own(const DeviceModel& device, const Attention& a) {
  return a.backward && !is_fused(device, a) && (a.own || device.attention == AttentionKernels::own);
}

// s of one multiprocessor for a score of a head of `d`.
double score_time(const DeviceModel& device, const Attention& a, double flops, double d, bool own) {
  const bool backward = a.backward;
  const std::optional<Figure> share = stated(device, a);
  const double unit = flops / std::max(1, device.units), clock = device.clock_hz > 0 ? device.clock_hz : 1.6e9;
  const double exponentials = (backward ? kUnhiddenBackward : kUnhiddenForward) / (kExponentialsPerCycle * clock);
  const double products = backward ? 10 : 4;
  // The benchmark that states the share has waves too, of which the last is not full.
  const double units = std::max(1, device.units), full = kStatedTiles / units / std::ceil(kStatedTiles / units);
  const double whole = full * products * kStated / (unit * (share ? share->value : backward ? 0.55 : 0.65));
  // Never slower than the file's share says for the products by themselves.
  const double rest = std::max(whole - exponentials, 0.5 * whole);
  return (own ? kOwnProducts : 1) * rest * d / kStated +
         (own ? kOwnExponentials : 1) * std::min(exponentials, 0.5 * whole);
}

// Kernels are made for these; others are padded.
double padded(std::int64_t head_dim) {
  constexpr std::array<std::int64_t, 6> made{32, 64, 96, 128, 192, 256};
  for (std::int64_t size : made)
    if (head_dim <= size) return static_cast<double>(size);
  return static_cast<double>(head_dim);
}

double bytes_per_us(const DeviceModel& device) {
  const auto share = device.achievable.find("memory");
  return device.memory_bandwidth.value * (share == device.achievable.end() ? 0.88 : share->second.value) / 1e6;
}

Estimate in_one_piece(const DeviceModel& device, const Attention& a) {
  const auto peak = device.peak.find(a.dtype);
  const double flops = (peak != device.peak.end() ? peak : device.peak.begin())->second.value;
  const double units = std::max(1, device.units);
  const bool own = is_own(device, a);
  const double score = score_time(device, a, flops, padded(a.head_dim), own);
  const double queries = static_cast<double>(a.queries), all = static_cast<double>(a.keys);
  const double tiles = static_cast<double>(a.batch * a.heads) * std::ceil(queries / kRows);
  // A causal row of tiles ends on the diagonal, whose tiles are made whole and masked, and rows of unequal length end
  // apart. Of a part of the queries: the mean over the parts.
  const double seen = a.window > 0 ? std::min(static_cast<double>(a.window), all) : all;
  const double keys = a.causal ? std::min(all, seen - seen * seen / (2 * all) + kRows) : all;
  const double edges = device.capability >= 90 ? 1.8 : 1.4;  // µs: first tiles from memory, last rows back to it
  const double tile = std::min(queries, kRows) * keys * score * 1e6 + edges;
  const double longest = std::min(queries, kRows) * std::min(all, seen + kRows) * score * 1e6 + edges;
  const double waves = a.causal ? std::max(tiles / units, 1.0) : std::ceil(tiles / units);
  const double compute = a.causal && tiles <= units ? longest : waves * tile + (a.causal ? (longest - tile) / 4 : 0);
  const double bandwidth = bytes_per_us(device);
  // Passes of their own, backward: the rows' sums of dO·O; of FlashAttention-2 also dq in f32 cleared, and made bf16.
  const double elements = static_cast<double>(a.batch * a.heads * a.queries * a.head_dim);
  const double passes = a.backward ? (own ? 3.0 : 4.5) + (own ? 4 : 14) * elements / bandwidth : 0;
  const double memory = a.bytes / bandwidth + 2;
  const std::optional<Figure> share = stated(device, a);
  // Of what nobody has measured in this form.
  const double unknown = own || (a.backward && is_fused(device, a)) ? 0.2 : 0.08;
  const double spread = std::hypot(unknown, share ? share->spread : 0.2);
  return {std::max(compute, memory) + passes, spread, compute >= memory ? Bound::compute : Bound::memory};
}

}  // namespace

Estimate gpu_attention(const DeviceModel& device, const Attention& a) {
  if (!a.backward || !is_fused(device, a)) return in_one_piece(device, a);
  Attention piece = a;
  const auto count = static_cast<double>(a.pieces.count);
  piece.heads = a.batch * a.heads / a.pieces.count / a.pieces.samples;
  piece.batch = a.pieces.samples;
  piece.bytes /= count;
  Estimate estimate = in_one_piece(device, piece);
  // Written and read: of the gradients of scores under a causal mask half.
  const double moved =
      static_cast<double>(a.pieces.scores_bytes) * (a.causal ? 0.5 : 1) + static_cast<double>(a.pieces.heads_bytes);
  estimate.us += 2 * moved / bytes_per_us(device);
  estimate.us = count * estimate.us + (count - 1) * device.launch_us.value;
  return estimate;
}

}  // namespace trainer::cost
