// The step's scalars and the optimizers: against the f64 reference.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "kernels/optimizer.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("the seed of the backward pass divides by the count, at least 1") {
  for (double count : {0.0, 1.0, 37.0})
    hold(Op::loss_seed, {}, {{DType::f64, values({count})}, {DType::f32, values({1, 1024, 0, 0})}},
         {{DType::f32, Shape{1}, kEpsF32}});
}

TEST_CASE("squares are summed in f64") {
  for (DType r : reduce_dtypes())
    for (std::int64_t n : {1, 17, 33000, 200001})
      for (double scale : {1.0, 1e-25, 1e25})
        hold(Op::sum_squares, {{"accumulate", scale == 1.0}}, {{r, normal_tensor({n}, 24, scale)}},
             {{DType::f64, Shape{1}, static_cast<double>(n) * 0x1p-53, 0, -1, true, true}});
}

TEST_CASE("squares are summed over the part of the unit that is asked for, wherever the slice begins") {
  for (DType r : reduce_dtypes())
    for (std::int64_t n : {7, 33000, 100001})
      for (const auto& [first, last] : {std::pair<std::int64_t, std::int64_t>{0, 1 << 30},
                                        {1003, 1003 + n},
                                        {1020, 1021 + n / 2},
                                        {1000 + n, 2000 + n},
                                        {0, 900},
                                        {900, 1001}})
        hold(Op::sum_squares, {{"accumulate", true}, {"first", first}, {"last", last}, {"scale", 0.5}},
             {{r, normal_tensor({n}, 26)}},
             {{DType::f64, Shape{1}, static_cast<double>(n) * 0x1p-53, 0, -1, true, true}}, {.origin = 1000});
}

TEST_CASE("the squares of two parts add up to the whole's") {
  const std::int64_t n = 70001;
  const Buffer x = normals(DType::f32, n, 27);
  const auto sum = [&](Attributes attributes) {
    Buffer squares(8);
    best_runner().run({Op::sum_squares, attributes, {{DType::f32, {n}}, {DType::f64, {1}}}},
                      {x.data(), squares.data()});
    return *squares.as<double>();
  };
  const double whole = sum({}), head = sum({{"last", std::int64_t{40000}}}),
               tail = sum({{"first", std::int64_t{40000}}});
  CHECK(head + tail == doctest::Approx(whole).epsilon(static_cast<double>(n) * 0x1p-53));
  CHECK(sum({{"scale", 0.25}}) == 0.25 * whole);
}

TEST_CASE("update_scalars clips, and stops the update where anything is not finite") {
  for (double clip : {0.0, 1.0, 1e9})
    for (double squares : {0.0, 1e-3, 1e12, 1e90, kInfinity, std::nan("")})
      for (double loss : {3.0, 1e60, kInfinity, std::nan("")}) {
        // fmax and min of NaN differ between formula and kernel only in what no update reads.
        hold(Op::update_scalars, {{"clip_norm", clip}},
             {{DType::f64, values({squares})},
              {DType::f64, values({loss})},
              {DType::f64, values({6})},
              {DType::f32, values({9, 128, 9, 9})},
              {DType::i32, values({41})}},
             {{DType::f32, Shape{4}, 2 * kEpsF32, 0, 3, false}, {DType::i32, Shape{1}, 0, 0, 4, false}});
      }
}

const Attributes kDynamic = {{"clip_norm", 1.0},     {"dynamic", true},       {"growth_interval", std::int64_t{3}},
                             {"growth_factor", 2.0}, {"backoff_factor", 0.5}, {"largest_scale", 1024.0},
                             {"smallest_scale", 1.0}};

TEST_CASE("a dynamic loss scale follows its formula from any state, between its bounds") {
  for (double squares : {1e4, kInfinity, std::nan("")})
    for (double loss : {3.0, std::nan("")})
      for (double scale : {1.0, 2.0, 128.0, 1024.0})
        for (double good_steps : {0.0, 1.0, 2.0})
          hold(Op::update_scalars, kDynamic,
               {{DType::f64, values({squares})},
                {DType::f64, values({loss})},
                {DType::f64, values({6})},
                {DType::f32, values({9, scale, 9, 9})},
                {DType::i32, values({41})},
                {DType::i32, values({good_steps})}},
               {{DType::f32, Shape{4}, 2 * kEpsF32, 0, 3, false},
                {DType::i32, Shape{1}, 0, 0, 4, false},
                {DType::i32, Shape{1}, 0, 0, 5, false}});
}

TEST_CASE("nothing changes after a step that failed for good, until the host writes another factor") {
  for (double squares : {1e4, kInfinity})
    for (double held : {-0.0, 0.0}) {
      CAPTURE(squares);
      CAPTURE(held);
      hold(Op::update_scalars, kDynamic,
           {{DType::f64, values({squares})},
            {DType::f64, values({3})},
            {DType::f64, values({6})},
            {DType::f32, values({held, 128, 9, 9})},
            {DType::i32, values({41})},
            {DType::i32, values({2})}},
           {{DType::f32, Shape{4}, 2 * kEpsF32, 0, 3, false},
            {DType::i32, Shape{1}, 0, 0, 4, false},
            {DType::i32, Shape{1}, 0, 0, 5, false}});
    }
  for (const bool dynamic : {false, true})
    for (const double scale : {1.0, 2.0}) {
      CAPTURE(dynamic);
      CAPTURE(scale);
      Signature signature{
          Op::update_scalars,
          dynamic ? kDynamic : Attributes{{"clip_norm", 1.0}},
          {{DType::f64, {1}}, {DType::f64, {1}}, {DType::f64, {1}}, {DType::f32, {4}}, {DType::i32, {1}}}};
      if (dynamic) signature.operands.push_back({DType::i32, {1}});
      const Buffer bad = buffer_of(DType::f64, values({kInfinity})), good = buffer_of(DType::f64, values({16})),
                   one = buffer_of(DType::f64, values({1})), scalars = buffer_of(DType::f32, values({1, scale, 0, 0})),
                   applied = buffer_of(DType::i32, values({5})), good_steps = buffer_of(DType::i32, values({1}));
      const auto step = [&](const Buffer& squares) {
        std::vector<void*> operands = {squares.data(), one.data(), one.data(), scalars.data(), applied.data()};
        if (dynamic) operands.push_back(good_steps.data());
        best_runner().run(signature, operands);
        return *scalars.as<Scalars>();
      };
      const bool for_good = !dynamic || scale == 1;  // a smaller scale is tried first
      CHECK(std::signbit(step(bad).factor) == for_good);
      CHECK(std::isinf(step(good).grad_norm) == for_good);
      CHECK(*applied.as<std::int32_t>() == (for_good ? 5 : 6));
      scalars.as<Scalars>()->factor = 1;
      CHECK(step(good).factor > 0);
      CHECK(*applied.as<std::int32_t>() == (for_good ? 6 : 7));
    }
}

// PyTorch's GradScaler.update, as its documentation states it, and no bounds.
struct GradScaler {
  double scale;
  int growth_tracker = 0;
  void update(bool found_inf) {
    if (found_inf) {
      scale *= 0.5;
      growth_tracker = 0;
    } else if (++growth_tracker == 3) {
      scale *= 2;
      growth_tracker = 0;
    }
  }
};

TEST_CASE(
    "a dynamic loss scale goes the way of PyTorch's GradScaler over a hundred steps, and only good steps are applied") {
  Attributes attributes = kDynamic;
  attributes.set("largest_scale", 0x1p24);
  const Signature signature{Op::update_scalars,
                            attributes,
                            {{DType::f64, {1}},
                             {DType::f64, {1}},
                             {DType::f64, {1}},
                             {DType::f32, {4}},
                             {DType::i32, {1}},
                             {DType::i32, {1}}}};
  GradScaler truth{256};
  Buffer scalars = buffer_of(DType::f32, values({1, 256, 0, 0})), applied = buffer_of(DType::i32, values({0})),
         good_steps = buffer_of(DType::i32, values({0}));
  int updates = 0;
  for (int step = 0; step < 100; ++step) {
    const bool overflow = step * 7 % 10 == 3 || (step > 40 && step < 44);
    const double used = truth.scale;
    const Buffer squares = buffer_of(DType::f64, values({overflow ? kInfinity : used * used * 9})),
                 loss = buffer_of(DType::f64, values({2})), count = buffer_of(DType::f64, values({1}));
    best_runner().run(signature,
                      {squares.data(), loss.data(), count.data(), scalars.data(), applied.data(), good_steps.data()});
    truth.update(overflow);
    updates += overflow ? 0 : 1;
    CAPTURE(step);
    const Scalars& got = *scalars.as<Scalars>();
    CHECK(static_cast<double>(got.loss_scale) == truth.scale);
    CHECK(*good_steps.as<std::int32_t>() == truth.growth_tracker);
    CHECK(*applied.as<std::int32_t>() == updates);
    CHECK((got.factor == 0) == overflow);
    if (!overflow) CHECK(got.grad_norm == 3.0f);
  }
}

TEST_CASE("optimizers follow their formulas, with and without a working copy, decaying a first part of the unit") {
  for (DType r : reduce_dtypes())
    for (std::int64_t n : {1, 7, 100, 40003})
      for (DType copy : compute_dtypes())
        for (double factor : {0.25, 0.0}) {
          const bool working = copy != DType::f32;
          const double updates = n == 7     ? 1
                                 : n == 100 ? 100000
                                            : 3;  // where corrections of the first step, and none, are made
          const Shape flat{n};
          const Input master{DType::f32, normal_tensor(flat, 30)}, gradient{r, normal_tensor(flat, 31)},
              m{DType::f32, normal_tensor(flat, 32, 0.1)};
          Input v{DType::f32, normal_tensor(flat, 33, 0.1)};
          for (double& x : v.values.data) x = x * x;
          const std::vector<Input> control = {
              {DType::f32, values({1e-3})}, {DType::f32, values({factor, 1, 0, 0})}, {DType::i32, values({updates})}};
          const Attributes common = {{"working", working}, {"weight_decay", 0.1}, {"decay_elements", 50 + n / 2},
                                     {"beta1", 0.9},       {"beta2", 0.99},       {"eps", 1e-8},
                                     {"momentum", 0.9},    {"nesterov", false},   {"has_momentum", true}};
          const auto check = [&](Op op, const Attributes& attributes, std::vector<Input> states) {
            std::vector<Input> in = {master, gradient};
            in.insert(in.end(), states.begin(), states.end());
            in.insert(in.end(), control.begin(), control.end());
            std::vector<Output> out = {{DType::f32, flat, 4 * kEpsF32, 2 * kEpsF32, 0, false}};
            for (std::size_t k = 0; k < states.size(); ++k)
              out.push_back({DType::f32, flat, 8 * kEpsF32, 8 * kEpsF32, static_cast<int>(2 + k), false});
            if (working) {
              // Before the update the working copy is the master, rounded; the reference does not round.
              const double below = copy == DType::f16 ? 0x1p-24 : 0;  // steps of f16 below 2^-14
              in.push_back({copy, master.values});
              out.push_back({copy, flat, bound(copy, 4), 2 * kEpsF32 + below, static_cast<int>(in.size()) - 1, false});
            }
            hold(op, those_of(op, attributes), in, out, {.origin = 50});
          };
          check(Op::adam, common, {m, v});
          check(Op::adamw, common, {m, v});
          check(Op::lion, common, {m});
          check(Op::sgd, common, {m});
          Attributes other = common;
          other.set("nesterov", true);
          check(Op::sgd, other, {m});
          other.set("has_momentum", false);
          check(Op::sgd, other, {});
        }
}

TEST_CASE("the update of a slice has the bits of the whole unit's update there") {
  const std::int64_t n = 5003, a = 1009, b = 4001;  // cut within vectors, and around where decay ends
  const TensorDesc one{DType::f32, {1}}, four{DType::f32, {4}}, applied{DType::i32, {1}};
  const Buffer lr = buffer_of(DType::f32, values({1e-2})), scalars = buffer_of(DType::f32, values({0.5, 1, 0, 0})),
               t = buffer_of(DType::i32, values({3}));
  for (Op op : {Op::sgd, Op::adamw, Op::lion})
    for (DType r : reduce_dtypes())
      for (bool working : {false, true})
        for (Runner* runner : few_runners()) {
          const int states = op == Op::adamw ? 2 : 1;
          const Attributes attributes = {
              {"working", working}, {"weight_decay", 0.1}, {"decay_elements", std::int64_t{2500}},
              {"beta1", 0.9},       {"beta2", 0.99},       {"eps", 1e-8},
              {"momentum", 0.9},    {"nesterov", true},    {"has_momentum", true}};
          // What a rank holds of elements [first, last): master, gradient, states, working copy.
          const auto update = [&](std::int64_t first, std::int64_t last) {
            const TensorDesc flat{DType::f32, {last - first}};
            Signature signature{op, those_of(op, attributes), {flat, {r, {last - first}}}};
            std::vector<Buffer> held;
            for (int k = 0; k < 2 + states; ++k) {
              const DType dtype = k == 1 ? r : DType::f32;
              const Buffer whole = normals(dtype, n, 60 + static_cast<std::uint64_t>(k));
              held.emplace_back((last - first) * size_of(dtype));
              std::memcpy(held.back().data(), whole.as<char>() + first * size_of(dtype), held.back().bytes());
              if (k == 3)
                for (std::int64_t i = 0; i < last - first; ++i)
                  held.back().as<float>()[i] = std::abs(held.back().as<float>()[i]);
              if (k >= 2) signature.operands.push_back(flat);
            }
            std::vector<void*> operands;
            for (const Buffer& buffer : held) operands.push_back(buffer.data());
            for (const Buffer* buffer : {&lr, &scalars, &t}) operands.push_back(buffer->data());
            signature.operands.insert(signature.operands.end(), {one, four, applied});
            if (working) {
              signature.operands.push_back({DType::bf16, {last - first}});
              held.emplace_back((last - first) * 2);
              operands.push_back(held.back().data());
            }
            runner->run(signature, operands, first);
            return held;
          };
          const std::vector<Buffer> whole = update(0, n), slice = update(a, b);
          for (std::size_t k = 0; k < whole.size(); ++k) {
            const auto width = static_cast<std::int64_t>(whole[k].bytes()) / n;
            INFO(name_of(op), " on ", runner->name(), ": operand ", k);
            CHECK(std::memcmp(whole[k].as<char>() + a * width, slice[k].data(), slice[k].bytes()) == 0);
          }
        }
}

TEST_CASE("a gradient that is not finite reaches the norm and leaves every bit of the update alone") {
  for (double poison : {kInfinity, std::nan("")}) {
    Tensor gradient = normal_tensor({100}, 40);
    gradient[57] = poison;
    const Buffer g = buffer_of(DType::f32, gradient), master = normals(DType::f32, 100, 41),
                 m = normals(DType::f32, 100, 42), v = normals(DType::f32, 100, 43);
    const Buffer master_before = normals(DType::f32, 100, 41), m_before = normals(DType::f32, 100, 42),
                 v_before = normals(DType::f32, 100, 43), working = normals(DType::bf16, 100, 44);
    Buffer squares(8);
    const Buffer loss = buffer_of(DType::f64, values({1})), count = buffer_of(DType::f64, values({1})),
                 scalars = buffer_of(DType::f32, values({1, 1, 0, 0}));
    const Buffer applied = buffer_of(DType::i32, values({5})), lr = buffer_of(DType::f32, values({0.1}));
    Runner& runner = best_runner();
    runner.run({Op::sum_squares, {}, {{DType::f32, {100}}, {DType::f64, {1}}}}, {g.data(), squares.data()});
    const TensorDesc f64{DType::f64, {1}}, f32{DType::f32, {1}}, flat{DType::f32, {100}}, i32{DType::i32, {1}},
        four{DType::f32, {4}};
    runner.run({Op::update_scalars, {{"clip_norm", 1.0}}, {f64, f64, f64, four, i32}},
               {squares.data(), loss.data(), count.data(), scalars.data(), applied.data()});
    CHECK(scalars.as<Scalars>()->factor == 0);
    CHECK(*applied.as<std::int32_t>() == 5);
    runner.run(
        {Op::adamw,
         {{"beta1", 0.9},
          {"beta2", 0.99},
          {"eps", 1e-8},
          {"weight_decay", 0.1},
          {"decay_elements", std::int64_t{100}},
          {"working", true}},
         {flat, flat, flat, flat, f32, four, i32, {DType::bf16, {100}}}},
        {master.data(), g.data(), m.data(), v.data(), lr.data(), scalars.data(), applied.data(), working.data()});
    CHECK(master.same_bits(master_before));
    for (std::int64_t i = 0; i < 100; ++i)  // the working copy is what the weights are
      CHECK(working.as<Bf16>()[i].bits == to_bf16(master.as<float>()[i]).bits);
    CHECK(m.same_bits(m_before));
    CHECK(v.same_bits(v_before));
  }
}
