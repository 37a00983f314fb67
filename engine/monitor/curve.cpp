// How a curve is drawn with block characters.
#include "engine/monitor/curve.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace trainer {

void Curve::add(double value) {
  if (!std::isfinite(value)) return;
  if (!sums_.empty() && in_last_ < per_column_) {
    sums_.back() += value;
    ++in_last_;
    return;
  }
  if (sums_.size() == columns_) {
    for (std::size_t i = 0; i < columns_ / 2; ++i) sums_[i] = sums_[2 * i] + sums_[2 * i + 1];
    sums_.resize(columns_ / 2);
    per_column_ *= 2;
  }
  sums_.push_back(value);
  in_last_ = 1;
}

std::string Curve::text() const {
  static constexpr std::array<std::string_view, 8> kBlocks{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::vector<double> means;
  for (std::size_t i = 0; i < sums_.size(); ++i)
    means.push_back(sums_[i] / static_cast<double>(i + 1 < sums_.size() ? per_column_ : in_last_));
  if (means.empty()) return "";
  const auto [least, most] = std::minmax_element(means.begin(), means.end());
  const double range = *most - *least;
  std::string text;
  for (const double mean : means)
    text += kBlocks[range > 0 ? static_cast<std::size_t>(std::lround((mean - *least) / range * 7)) : 0];
  return text;
}

}  // namespace trainer
