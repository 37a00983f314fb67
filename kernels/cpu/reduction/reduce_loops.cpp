// Loops file (vec.h).
#include "kernels/cpu/reduction/reduce_loops.h"

#include "kernels/cpu/runtime/vec.h"

namespace trainer::kernels::cpu::ISA_NAMESPACE {
namespace {

constexpr std::int64_t kBlock = 1024;  // columns summed at a time: their sums stay in L1
constexpr std::int64_t kRun = 128;  // rows summed before their sum joins the total: keeps the error of long sums down

template <typename X, typename Y>
void sum_rows_of(const X* x, Y* y, std::int64_t rows, std::int64_t stride, bool accumulate, std::int64_t begin,
                 std::int64_t end) {
  alignas(64) float total[kBlock];
  alignas(64) float run[kBlock];
  for (std::int64_t at = begin; at < end; at += kBlock) {
    const std::int64_t width = end - at < kBlock ? end - at : kBlock;
    for (std::int64_t i = 0; i < kBlock; ++i) total[i] = 0;
    for (std::int64_t first_row = 0; first_row < rows; first_row += kRun) {
      const std::int64_t last_row = first_row + kRun < rows ? first_row + kRun : rows;
      for (std::int64_t i = 0; i < kBlock; ++i) run[i] = 0;
      for (std::int64_t row = first_row; row < last_row; ++row) {
        const X* source = x + row * stride + at;
        for_each_vector(0, width,
                        [&](std::int64_t i, auto load_x, auto) { store(run + i, load(run + i) + load_x(source + i)); });
      }
      for (std::int64_t i = 0; i < kBlock; i += kLanes) store(total + i, load(total + i) + load(run + i));
    }
    for_each_vector(0, width, [&](std::int64_t i, auto load_y, auto store_y) {
      F32 sum = load(total + i);
      if (accumulate) sum += load_y(y + at + i);
      store_y(y + at + i, sum);
    });
  }
}

template <typename X, typename Y>
void sum_planes_of(const X* x, Y* y, std::int64_t rows, std::int64_t columns, std::int64_t inner, bool accumulate,
                   std::int64_t begin, std::int64_t end) {
  for (std::int64_t column = begin; column < end; ++column) {
    float total = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const X* plane = x + (row * columns + column) * inner;
      total += sum(sum_of(inner, [&](std::int64_t i, auto load_x) { return load_x(plane + i); }));
    }
    store_first(y + column, splat(accumulate ? to_f32(y[column]) + total : total), 1);
  }
}

template <typename X, typename Y>
void sum_indexed_of(const X* x, const std::int32_t* index, std::int64_t count, Y* y, std::int64_t stride,
                    bool accumulate, std::int64_t begin, std::int64_t end) {
  std::int64_t at = begin;
  for (; at + 4 * kLanes <= end; at += 4 * kLanes) {
    F32 sum[4] = {};
    if (accumulate)
      for (int v = 0; v < 4; ++v) sum[v] = load(y + at + v * kLanes);
    for (std::int64_t k = 0; k < count; ++k) {
      const X* source = x + index[k] * stride + at;
      for (int v = 0; v < 4; ++v) sum[v] += load(source + v * kLanes);
    }
    for (int v = 0; v < 4; ++v) store(y + at + v * kLanes, sum[v]);
  }
  for_each_vector(at, end, [&](std::int64_t i, auto load_any, auto store_y) {
    F32 sum{};
    if (accumulate) sum = load_any(y + i);
    for (std::int64_t k = 0; k < count; ++k) sum += load_any(x + index[k] * stride + i);
    store_y(y + i, sum);
  });
}

template <typename Y>
void sum_partials_of(const float* partials, Y* y, std::int64_t parts, std::int64_t stride, bool accumulate,
                     std::int64_t begin, std::int64_t end) {
  for_each_vector(begin, end, [&](std::int64_t i, auto load_any, auto store_y) {
    F32 sum = load_any(partials + i);
    for (std::int64_t part = 1; part < parts; ++part) sum += load_any(partials + part * stride + i);
    if (accumulate) sum += load_any(y + i);
    store_y(y + i, sum);
  });
}

// A block of columns at a time, so that the sum of the products stays in L1 while the rows of a pass by.
template <typename T>
void row_squares_of(const T* w, const T* a, const T* b, float factor, std::int64_t columns, std::int64_t rank,
                    float* squares, std::int64_t begin, std::int64_t end) {
  alignas(64) float row[kBlock];
  for (std::int64_t i = begin; i < end; ++i) {
    float total = 0;
    for (std::int64_t at = 0; at < columns; at += kBlock) {
      const std::int64_t width = columns - at < kBlock ? columns - at : kBlock;
      for_each_vector(0, width,
                      [&](std::int64_t j, auto load_w, auto) { store(row + j, load_w(w + i * columns + at + j)); });
      for (std::int64_t k = 0; k < rank; ++k) {
        const F32 times = splat(factor * to_f32(b[i * rank + k]));
        for_each_vector(0, width, [&](std::int64_t j, auto load_a, auto) {
          store(row + j, fma(times, load_a(a + k * columns + at + j), load(row + j)));
        });
      }
      total += sum(sum_of(width, [&](std::int64_t j, auto load_row) {
        const F32 value = load_row(row + j);
        return value * value;
      }));
    }
    squares[i] = total;
  }
}

}  // namespace

void sum_rows(bool bf16_x, bool bf16_y, const void* x, void* y, std::int64_t rows, std::int64_t stride, bool accumulate,
              std::int64_t begin, std::int64_t end) {
  const auto from = [&](const auto* source) {
    if (bf16_y) return sum_rows_of(source, static_cast<Bf16*>(y), rows, stride, accumulate, begin, end);
    return sum_rows_of(source, static_cast<float*>(y), rows, stride, accumulate, begin, end);
  };
  return bf16_x ? from(static_cast<const Bf16*>(x)) : from(static_cast<const float*>(x));
}

void sum_planes(bool bf16_x, bool bf16_y, const void* x, void* y, std::int64_t rows, std::int64_t columns,
                std::int64_t inner, bool accumulate, std::int64_t begin, std::int64_t end) {
  const auto from = [&](const auto* source) {
    if (bf16_y) return sum_planes_of(source, static_cast<Bf16*>(y), rows, columns, inner, accumulate, begin, end);
    return sum_planes_of(source, static_cast<float*>(y), rows, columns, inner, accumulate, begin, end);
  };
  return bf16_x ? from(static_cast<const Bf16*>(x)) : from(static_cast<const float*>(x));
}

void sum_indexed_rows(bool bf16_x, bool bf16_y, const void* x, const std::int32_t* index, std::int64_t count, void* y,
                      std::int64_t stride, bool accumulate, std::int64_t begin, std::int64_t end) {
  const auto from = [&](const auto* source) {
    if (bf16_y) return sum_indexed_of(source, index, count, static_cast<Bf16*>(y), stride, accumulate, begin, end);
    return sum_indexed_of(source, index, count, static_cast<float*>(y), stride, accumulate, begin, end);
  };
  return bf16_x ? from(static_cast<const Bf16*>(x)) : from(static_cast<const float*>(x));
}

void sum_partials(bool bf16_y, const float* partials, void* y, std::int64_t parts, std::int64_t stride, bool accumulate,
                  std::int64_t begin, std::int64_t end) {
  if (bf16_y) return sum_partials_of(partials, static_cast<Bf16*>(y), parts, stride, accumulate, begin, end);
  return sum_partials_of(partials, static_cast<float*>(y), parts, stride, accumulate, begin, end);
}

void row_squares(bool bf16, const void* w, const void* a, const void* b, float factor, std::int64_t columns,
                 std::int64_t rank, float* squares, std::int64_t begin, std::int64_t end) {
  if (bf16)
    return row_squares_of(static_cast<const Bf16*>(w), static_cast<const Bf16*>(a), static_cast<const Bf16*>(b), factor,
                          columns, rank, squares, begin, end);
  return row_squares_of(static_cast<const float*>(w), static_cast<const float*>(a), static_cast<const float*>(b),
                        factor, columns, rank, squares, begin, end);
}

}  // namespace trainer::kernels::cpu::ISA_NAMESPACE
