// linear and its gradients against the f64 reference, on every device: shapes that libraries take to and shapes that
// they do not.
//
// Tolerance: an f32 sum of k products of normals is off by some 2^-24 · √k of a value of size √k (a random walk of
// roundings over partial sums); eight times that, and the rounding of the output.
#include <doctest/doctest.h>

#include <cmath>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

struct Sizes {
  std::int64_t rows, in, out;
};
// The last are whole multiples of 8 elements, a few of them with long sums.
const Sizes kSizes[] = {{1, 1, 1},     {1, 7, 65},   {7, 1, 7},   {7, 65, 33},   {29, 257, 31},
                        {130, 70, 37}, {5, 1025, 3}, {64, 32, 8}, {24, 136, 48}, {300, 16, 264}};

double sum_of(std::int64_t terms) { return 8 * kEpsF32 * std::sqrt(static_cast<double>(terms) + 1); }

Output output(DType dtype, const Shape& shape, std::int64_t terms) {
  return {dtype, shape, bound(dtype), sum_of(terms), -1, true, true};
}

}  // namespace

TEST_CASE("linear is x times W transposed, and the bias") {
  for (DType c : compute_dtypes())
    for (const Sizes& z : kSizes) {
      const Input x{c, normal_tensor({z.rows, z.in}, 1)}, w{c, normal_tensor({z.out, z.in}, 2)},
          bias{c, normal_tensor({z.out}, 3)};
      const std::vector<Output> y = {output(c, {z.rows, z.out}, z.in)};
      hold(Op::linear, {{"bias", true}}, {x, w, bias}, y);
      hold(Op::linear, {{"bias", false}}, {x, w}, y);
    }
}

TEST_CASE("the gradient of linear's input is dy times W") {
  for (DType c : compute_dtypes())
    for (const Sizes& z : kSizes)
      hold(Op::linear_grad_input, {}, {{c, normal_tensor({z.rows, z.out}, 1)}, {c, normal_tensor({z.out, z.in}, 2)}},
           {output(c, {z.rows, z.in}, z.out)});
}

TEST_CASE("the gradients of linear's weight and bias overwrite or accumulate, in any dtype of gradients") {
  for (DType c : compute_dtypes())
    for (DType r : {DType::f32, DType::bf16})
      for (const Sizes& z : kSizes)
        for (bool accumulate : {false, true}) {
          const std::vector<Input> in = {{c, normal_tensor({z.rows, z.in}, 1)}, {c, normal_tensor({z.rows, z.out}, 2)}};
          const Output dweight = output(r, {z.out, z.in}, z.rows), dbias = output(r, {z.out}, z.rows);
          hold(Op::linear_grad_weight, {{"bias", true}, {"accumulate", accumulate}}, in, {dweight, dbias});
          hold(Op::linear_grad_weight, {{"bias", false}, {"accumulate", accumulate}}, in, {dweight});
        }
}

TEST_CASE("a partial linear adds its bias where its origin is 0, and nowhere else") {
  for (DType c : compute_dtypes())
    for (std::int64_t out : {40, 37})
      for (std::int64_t origin : {0, 1}) {
        const Input x{c, normal_tensor({30, 70}, 1)}, w{c, normal_tensor({out, 70}, 2)},
            bias{c, normal_tensor({out}, 3)};
        const std::vector<Output> y = {output(c, {30, out}, 70)};
        hold(Op::linear, {{"bias", true}, {"partial", true}}, {x, w, bias}, y, {.origin = origin});
        hold(Op::linear, {{"bias", false}, {"partial", true}}, {x, w}, y, {.origin = origin});
        hold(Op::linear, {{"bias", true}, {"partial", false}}, {x, w, bias}, y, {.origin = origin});
      }
}

TEST_CASE("leading dims of linear are rows, and NaN and infinity pass through its products") {
  for (DType c : compute_dtypes()) {
    Tensor x = normal_tensor({2, 3, 4}, 1);
    x[0] = std::nan("");
    x[4] = INFINITY;
    const Tensor w = normal_tensor({5, 4}, 2);
    const Buffer given = buffer_of(c, x), weight = buffer_of(c, w);
    for (Runner* runner : few_runners()) {
      Buffer y(6 * 5 * size_of(c));
      runner->run({Op::linear, {{"bias", false}}, {{c, {2, 3, 4}}, {c, {5, 4}}, {c, {2, 3, 5}}}},
                  {given.data(), weight.data(), y.data()});
      for (std::int64_t j = 0; j < 5; ++j) {
        CHECK(std::isnan(read(y, c, j)));
        CHECK(std::isinf(read(y, c, 5 + j)));
        CHECK(std::isfinite(read(y, c, 10 + j)));
      }
    }
  }
}
