// What local SGD does to flat tensors: against the f64 reference, and what the formulas promise.
#include <doctest/doctest.h>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const std::int64_t kSizes[] = {1, 7, 64, 40003};

TensorDesc flat(std::int64_t n) { return {DType::f32, {n}}; }

}  // namespace

TEST_CASE("the outer gradient is the way from the anchor, also in place of the master") {
  for (std::int64_t n : kSizes)
    for (int in_place : {-1, 1})
      hold(Op::outer_gradient, {}, {{DType::f32, normal_tensor({n}, 79)}, {DType::f32, normal_tensor({n}, 80)}},
           {{DType::f32, {n}, kEpsF32, kEpsF32, in_place}});
}

TEST_CASE("the outer step is one of momentum along the mean gradient, plain and Nesterov, also in its place") {
  for (std::int64_t n : kSizes)
    for (bool nesterov : {false, true})
      for (int in_place : {-1, 2}) {
        const Shape shape{n};
        const Attributes attributes = {{"factor", 0.25}, {"lr", 0.7}, {"momentum", 0.9}, {"nesterov", nesterov}};
        hold(Op::outer_step, attributes,
             {{DType::f32, normal_tensor(shape, 81)},
              {DType::f32, normal_tensor(shape, 82, 0.1)},
              {DType::f32, normal_tensor(shape, 83, 4)}},
             {{DType::f32, shape, 4 * kEpsF32, 4 * kEpsF32, 0, false},
              {DType::f32, shape, 4 * kEpsF32, 4 * kEpsF32, 1, false},
              {DType::f32, shape, 4 * kEpsF32, 4 * kEpsF32, in_place}});
      }
}

TEST_CASE("an outer step of rate 1 without momentum goes all the way") {
  const std::int64_t n = 1001;
  const Buffer anchor = normals(DType::f32, n, 84), gradient = normals(DType::f32, n, 85),
               momentum = buffer_of(DType::f32, Tensor(Shape{n}));
  const std::vector<float> before(anchor.as<float>(), anchor.as<float>() + n);
  Buffer master(4 * n);
  best_runner().run(
      {Op::outer_step, {{"factor", 0.5}, {"lr", 1.0}, {"momentum", 0.0}}, {flat(n), flat(n), flat(n), flat(n)}},
      {anchor.data(), momentum.data(), gradient.data(), master.data()});
  CHECK(master.same_bits(anchor));
  for (std::int64_t i = 0; i < n; ++i)  // the half is exact, the difference rounded once
    CHECK(master.as<float>()[i] == before[static_cast<std::size_t>(i)] - 0.5f * gradient.as<float>()[i]);
}

TEST_CASE("a delayed average replaces what this rank had then, and keeps what it did since") {
  for (std::int64_t n : kSizes) {
    const Shape shape{n};
    hold(Op::apply_delayed, {{"factor", 0.125}},
         {{DType::f32, normal_tensor(shape, 86)},
          {DType::f32, normal_tensor(shape, 87)},
          {DType::f32, normal_tensor(shape, 88, 8)}},
         {{DType::f32, shape, 2 * kEpsF32, 4 * kEpsF32, 0, false}});
  }
}
