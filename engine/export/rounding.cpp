// Errors of rounding, summed in f64.
#include "engine/export/rounding.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/core/narrow.h"
#include "engine/export/gguf_format.h"

namespace trainer::exporting {
namespace {

std::vector<float> as_floats(std::span<const std::byte> written, Precision precision, std::size_t count) {
  std::vector<float> values(count);
  if (precision == Precision::q8_0) {
    dequantize_q8_0(written, values);
  } else {
    const DType dtype = precision == Precision::f16    ? DType::f16
                        : precision == Precision::bf16 ? DType::bf16
                                                       : DType::f32;
    to_f32(dtype, written.data(), static_cast<std::int64_t>(count), values.data());
  }
  return values;
}

}  // namespace

void Rounding::add(const std::string& tensor, std::span<const float> exact, Precision precision,
                   std::span<const std::byte> written) {
  if (!source_.change_of(tensor)) return;
  double& sum = squares_[tensor];
  if (precision == Precision::f32) return;
  const std::vector<float> values = as_floats(written, precision, exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = static_cast<double>(values[i]) - exact[i];
    sum += error * error;
  }
}

void Rounding::tell(Report& report) const {
  for (const auto& [tensor, squares] : squares_) {
    const double change = *source_.change_of(tensor);
    report.merged.push_back({tensor, change, std::sqrt(squares)});
  }
  std::ranges::stable_sort(report.merged,
                           [](const MergedMatrix& a, const MergedMatrix& b) { return a.lost() > b.lost(); });
}

}  // namespace trainer::exporting
