// Of the CPU's kernels alone: what does not depend on the number of threads.
#include <doctest/doctest.h>

#include "tests/kernels/kernel_runner.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;

TEST_CASE("squares have the same sum for any number of threads") {
  const Buffer x = normals(DType::f32, 300000, 25);
  std::vector<double> totals;
  for (int threads : {1, 2, 3}) {
    Buffer squares(8);
    run({Op::sum_squares, {}, {{DType::f32, {300000}}, {DType::f64, {1}}}}, {cpu::detect_isa(), threads},
        {x.data(), squares.data()});
    totals.push_back(*squares.as<double>());
  }
  CHECK(totals[0] == totals[1]);
  CHECK(totals[0] == totals[2]);
}
