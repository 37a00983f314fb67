// Pools and their gradients: against the f64 reference.
#include <doctest/doctest.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

TEST_CASE("pools and their gradients, with overlapping windows and padding") {
  for (DType c : compute_dtypes())
    for (const auto& [shape, kernel, stride, padding] :
         std::vector<std::tuple<Shape, int, int, int>>{{{1, 1, 1, 1}, 1, 1, 0},
                                                       {{2, 3, 7, 5}, 2, 2, 0},
                                                       {{2, 3, 8, 9}, 3, 2, 1},
                                                       {{1, 2, 6, 6}, 3, 1, 1},
                                                       {{4, 8, 32, 32}, 2, 2, 0},
                                                       {{3, 5, 28, 28}, 2, 2, 0},
                                                       {{2, 3, 37, 41}, 3, 2, 1},
                                                       {{1, 2, 11, 67}, 5, 1, 2},
                                                       {{1, 2, 9, 50}, 4, 2, 0},
                                                       {{1, 2, 19, 50}, 3, 3, 1},
                                                       {{1, 1, 9, 9}, 2, 3, 0}}) {
      const Attributes attributes = {
          {"kernel", std::int64_t{kernel}}, {"stride", std::int64_t{stride}}, {"padding", std::int64_t{padding}}};
      const Shape y{shape[0], shape[1], (shape[2] + 2 * padding - kernel) / stride + 1,
                    (shape[3] + 2 * padding - kernel) / stride + 1};
      const Tensor x = normal_tensor(shape, 13);
      hold(Op::max_pool2d, attributes, {{c, x}}, {{c, y}, {DType::i32, y}});
      hold(Op::avg_pool2d, attributes, {{c, x}}, {{c, y, bound(c, 8), 8 * kEpsF32}});
      const Tensor index = reference::run(Op::max_pool2d, attributes, {x}, {y, y})[1];
      const Input dy{c, normal_tensor(y, 14)};
      hold(Op::max_pool2d_grad, attributes, {dy, {DType::i32, index}}, {{c, shape, bound(c, 8), 8 * kEpsF32}});
      hold(Op::avg_pool2d_grad, attributes, {dy}, {{c, shape, bound(c, 8), 8 * kEpsF32}});
    }
}

TEST_CASE("the largest of a window is the first of equals, and NaN is larger than all") {
  const double kValues[] = {0, -0.0, 1, 1, 2, -INFINITY, INFINITY, std::nan("")};
  for (DType c : compute_dtypes())
    for (const auto& [kernel, stride, padding] :
         std::vector<std::tuple<int, int, int>>{{2, 2, 0}, {3, 2, 1}, {3, 1, 1}, {3, 3, 0}})
      for (const int few : {1, 5, 8}) {  // of the values: with 1, all are equal
        const Attributes attributes = {
            {"kernel", std::int64_t{kernel}}, {"stride", std::int64_t{stride}}, {"padding", std::int64_t{padding}}};
        const std::int64_t h = 12, w = 45;
        const Shape y{2, 2, (h + 2 * padding - kernel) / stride + 1, (w + 2 * padding - kernel) / stride + 1};
        Tensor x = normal_tensor({2, 2, h, w}, 15);
        for (double& value : x.data) value = kValues[static_cast<int>(std::abs(value) * 100) % few];
        hold(Op::max_pool2d, attributes, {{c, x}}, {{c, y}, {DType::i32, y}});
      }
}
