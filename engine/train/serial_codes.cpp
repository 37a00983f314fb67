// Codes, their sums, and what they leave.
#include "engine/train/serial_codes.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "engine/core/compression.h"
#include "engine/core/narrow.h"

namespace trainer {
namespace {

using Doubles = std::vector<double>;

// The k elements that are largest by their size; the rest is 0.
Doubles largest_of(const Doubles& values, std::size_t k) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto larger = [&](std::size_t a, std::size_t b) {
    const double x = std::fabs(values[a]), y = std::fabs(values[b]);
    return x != y ? x > y : a < b;
  };
  std::nth_element(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k - 1), order.end(), larger);
  Doubles result(values.size());
  for (std::size_t i = 0; i < k; ++i) result[order[i]] = values[order[i]];
  return result;
}

// Adds to the values what was not sent before, and keeps what `send` leaves of that.
template <typename Send>
Doubles sent_with_feedback(const Doubles& values, Doubles& residual, const Send& send) {
  Doubles all = values;
  add_to(all, residual);
  Doubles sent = send(all);
  for (std::size_t i = 0; i < all.size(); ++i) residual[i] = all[i] - sent[i];
  return sent;
}

}  // namespace

void add_to(std::vector<double>& sum, const std::vector<double>& values) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

std::vector<double> rounded_to(DType dtype, const std::vector<double>& values) {
  const std::vector<float> from(values.begin(), values.end());
  if (dtype == DType::f32) return {from.begin(), from.end()};
  std::vector<std::uint16_t> narrow(from.size());
  std::vector<float> back(from.size());
  from_f32(from.data(), static_cast<std::int64_t>(from.size()), dtype, narrow.data());
  to_f32(dtype, narrow.data(), static_cast<std::int64_t>(narrow.size()), back.data());
  return {back.begin(), back.end()};
}

std::vector<double> as_int8(const std::vector<double>& values, std::size_t slices) {
  std::vector<double> result(values.size());
  const std::size_t slice = values.size() / slices;
  for (std::size_t first = 0; first < values.size(); first += slice)
    for (std::size_t at = first; at < first + slice; at += kInt8Block) {
      const std::size_t end = std::min(at + static_cast<std::size_t>(kInt8Block), first + slice);
      float largest = 0;
      for (std::size_t i = at; i < end; ++i) largest = std::max(largest, std::fabs(static_cast<float>(values[i])));
      const float scale = largest / 127;
      if (!std::isnormal(scale)) continue;
      for (std::size_t i = at; i < end; ++i)
        result[i] = static_cast<double>(std::nearbyint(static_cast<float>(values[i]) / scale)) * scale;
    }
  return result;
}

std::vector<double> CompressedSums::sum(const std::vector<std::vector<double>>& of_ranks, bool sliced) {
  const std::size_t ranks = of_ranks.size(), elements = of_ranks.front().size();
  Doubles sum(elements);
  const auto with_feedback = [&](const auto& send) {
    for (std::size_t rank = 0; rank < ranks; ++rank)
      add_to(sum, sent_with_feedback(of_ranks[rank], residuals_[rank], send));
  };
  switch (compression_.kind) {
    case Compression::Kind::none:
      break;
    case Compression::Kind::bf16:
      with_feedback([](const Doubles& all) { return rounded_to(DType::bf16, all); });
      return rounded_to(DType::bf16, sum);
    case Compression::Kind::int8:
      with_feedback([&](const Doubles& all) { return as_int8(all, ranks); });
      break;
    case Compression::Kind::top_k: {
      const auto k = std::max<std::int64_t>(1, std::llround(compression_.fraction * static_cast<double>(elements)));
      with_feedback([&](const Doubles& all) { return largest_of(all, static_cast<std::size_t>(k)); });
      return sum;
    }
  }
  if (sliced) return sum;
  // Rank i sends the sum of slice i to all, and keeps what that leaves.
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const auto slice = static_cast<std::ptrdiff_t>(elements / ranks), first = static_cast<std::ptrdiff_t>(rank) * slice;
    Doubles& all = residuals_[rank];
    Doubles rest(all.begin() + first, all.begin() + first + slice);
    const Doubles sent = sent_with_feedback(Doubles(sum.begin() + first, sum.begin() + first + slice), rest,
                                            [](const Doubles& values) { return as_int8(values, 1); });
    std::ranges::copy(sent, sum.begin() + first);
    std::ranges::copy(rest, all.begin() + first);
  }
  return sum;
}

}  // namespace trainer
