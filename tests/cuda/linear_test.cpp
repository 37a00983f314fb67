// What products on GPUs do that those of the CPU do not: GELU as an epilogue, by the library or by a pass of its own,
// and choices by time.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>

#include "engine/core/environment.h"
#include "tests/cuda/orders.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;

namespace {

struct Sizes {
  std::int64_t rows, in, out;
};
// The library's epilogues take rows of whole multiples of 8 elements; the others are passes.
const Sizes kSizes[] = {{24, 40, 64}, {7, 64, 33}, {33, 37, 48}, {3, 128, 257}, {1, 8, 8}};

// A pass of its own reads the sum rounded to c, which moves what comes of it by so much again; slopes of GELU stay
// below 1.13. A library may take tanh.approx, which is off by 2^-11 at most (PTX ISA), so x / 2 · tanh by 2^-10 where
// GELU is small (|x| below 4); in bf16 that is nothing beside the rounding.
Output output(DType c, const Shape& shape, std::int64_t terms) {
  const double approximate = c == DType::f16 ? 0x1p-10 : 0;
  return {c,  shape, 2.2 * bound(c), 8 * kEpsF32 * std::sqrt(static_cast<double>(terms)) + 1.2 * bound(c) + approximate,
          -1, true,  false};
}

}  // namespace

TEST_CASE("linear with GELU is the activation of the sum, and leaves the sum where training needs it") {
  for (DType c : compute_dtypes())
    for (const Sizes& z : kSizes)
      for (bool bias : {true, false})
        for (bool pre : {true, false}) {
          std::vector<Input> in = {{c, normal_tensor({z.rows, z.in}, 1)}, {c, normal_tensor({z.out, z.in}, 2, 0.2)}};
          if (bias) in.push_back({c, normal_tensor({z.out}, 3)});
          std::vector<Output> out = {output(c, {z.rows, z.out}, z.in)};
          if (pre) out.push_back(output(c, {z.rows, z.out}, z.in));
          hold(Op::linear, {{"bias", bias}, {"gelu", true}, {"pre", pre}}, in, out);
        }
}

TEST_CASE("the input's gradient with GELU is the product times the slope of the activation") {
  for (DType c : compute_dtypes())
    for (const Sizes& z : kSizes)
      hold(Op::linear_grad_input, {{"gelu", true}},
           {{c, normal_tensor({z.rows, z.out}, 1)},
            {c, normal_tensor({z.out, z.in}, 2)},
            {c, normal_tensor({z.rows, z.in}, 3)}},
           {output(c, {z.rows, z.in}, z.out)});
}

TEST_CASE("algorithms and passes chosen by time compute the same") {
  REQUIRE(setenv(environment::kCudaTune.name, "1", 1) == 0);
  REQUIRE(setenv(environment::kCache.name, "off", 1) == 0);
  begin_choices();
  const DType c = DType::bf16;
  for (int layer = 0; layer < 2; ++layer) {  // the second finds the choice of an algorithm made
    hold(Op::linear_grad_weight, {{"bias", true}, {"accumulate", true}},
         {{c, normal_tensor({40, 24}, 1)}, {c, normal_tensor({40, 32}, 2)}},
         {{DType::f32, {32, 24}, bound(DType::f32), 1e-5, -1, true, true},
          {DType::f32, {32}, bound(DType::f32), 1e-5, -1, true, true}});
    hold(Op::linear, {{"bias", true}, {"gelu", true}, {"pre", true}},
         {{c, normal_tensor({24, 40}, 1)}, {c, normal_tensor({64, 40}, 2, 0.2)}, {c, normal_tensor({64}, 3)}},
         {output(c, {24, 64}, 40), output(c, {24, 64}, 40)});
  }
  CHECK(end_choices().find("choices for matrix products were timed") != std::string::npos);
  REQUIRE(unsetenv(environment::kCudaTune.name) == 0);
  REQUIRE(unsetenv(environment::kCache.name) == 0);
}
