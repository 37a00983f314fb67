// The reference against PyTorch: outputs of every op. Goldens are stored in f32 (losses in f64), so a difference may be
// half a unit of f32 in the last place, 2^-24 of the value.
#include "tests/reference/reference.h"

#include <doctest/doctest.h>

#include <cmath>
#include <set>

#include "engine/core/op_record.h"
#include "tests/goldens/golden.h"

using namespace trainer;
using reference::Tensor;

namespace {

double worst(const Tensor& got, const Tensor& want) {
  double largest = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) {
    largest = std::fmax(largest, std::fabs(got[i] - want[i]) / (std::fabs(want[i]) + 1e-6));
  }
  return largest;
}

}  // namespace

TEST_CASE("the reference gives PyTorch's outputs for every op") {
  const std::vector<goldens::Case> cases = goldens::load_cases();
  REQUIRE(cases.size() > 100);
  for (const goldens::Case& c : cases) {
    CAPTURE(c.name);
    std::vector<Shape> shapes;
    for (const Tensor& out : c.out) shapes.push_back(out.shape);
    const std::vector<Tensor> got = reference::run(c.op, c.attributes, c.in, shapes, c.origin);
    for (std::size_t i = 0; i < c.out.size(); ++i) {
      CAPTURE(i);
      CHECK(worst(got[i], c.out[i]) < 0x1p-23);
    }
  }
}

TEST_CASE("every op of graph files and every optimizer has a golden") {
  std::set<Op> covered{Op::reshape, Op::flatten};  // the same memory under another shape
  for (const goldens::Case& c : goldens::load_cases()) covered.insert(c.op);
  for (int i = 0; i <= static_cast<int>(Op::mse); ++i) {
    if (has(static_cast<Op>(i), Trait::composite)) continue;  // its parts have
    CAPTURE(name_of(static_cast<Op>(i)));
    CHECK(covered.contains(static_cast<Op>(i)));
  }
  for (Op op : {Op::sgd, Op::adam, Op::adamw, Op::lion, Op::correct_count, Op::cross_entropy_count, Op::split,
                Op::concat, Op::route, Op::expert_linear, Op::weigh})
    CHECK(covered.contains(op));
}
