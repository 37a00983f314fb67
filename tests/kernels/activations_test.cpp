// Activations and their gradients: against the f64 reference.
#include <doctest/doctest.h>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const Shape kShapes[] = {{1}, {7}, {3, 5, 11}, {2, 64}, {1, 1}, {129, 257}};  // the last is large enough for a team

const double kCaps[] = {30, 50, 0.75};

Attributes form(const char* name) { return {{"approximate", std::string(name)}}; }

}  // namespace

TEST_CASE("activations and their gradients follow their formulas, in place and not") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kShapes) {
      const Tensor x = normal_tensor(shape, 1, 3), dy = normal_tensor(shape, 2);
      // Kernels compute to 2^-12 what they then round to bf16.
      const double absolute =
          c == DType::bf16 ? 0x1p-11
                           : (c == DType::f16 ? 0x1p-24 : 0) + 8 * kEpsF32;  // f16: below 2^-14 steps are of 2^-24
      const auto out = [&](int in_place_of, double ulps) {
        return Output{c, shape, bound(c, ulps), absolute, in_place_of};
      };
      for (int in_place : {-1, 0}) {
        for (const char* name : {"tanh", "none"}) {
          hold(Op::gelu, form(name), {{c, x}}, {out(in_place, 8)});
          hold(Op::gelu_grad, form(name), {{c, dy}, {c, x}}, {out(in_place, 16)});
        }
        for (Op op : {Op::relu, Op::silu, Op::tanh, Op::sigmoid}) hold(op, {}, {{c, x}}, {out(in_place, 8)});
        for (Op op : {Op::relu_grad, Op::silu_grad, Op::tanh_grad, Op::sigmoid_grad})
          hold(op, {}, {{c, dy}, {c, x}}, {out(in_place, 16)});
      }
      for (const double cap : kCaps) {
        const Attributes caps{{"cap", cap}};
        const Tensor y = reference::run(Op::softcap, caps, {x}, {shape})[0];
        for (int in_place : {-1, 0}) {
          hold(Op::softcap, caps, {{c, x}}, {out(in_place, 8)});
          hold(Op::softcap_grad, caps, {{c, dy}, {c, y}}, {out(in_place, 16)});
        }
        hold(Op::softcap_grad, caps, {{c, dy}, {c, y}}, {out(1, 16)});
      }
      hold(Op::silu_grad, {}, {{c, dy}, {c, x}}, {out(1, 16)});  // in place of the second operand
      hold(Op::gelu_grad, form("tanh"), {{c, dy}, {c, x}}, {out(1, 16)});
    }
}

TEST_CASE("a gate's activation and its product follow their formulas in one pass, in place and not") {
  for (DType c : compute_dtypes())
    for (const Shape& shape : kShapes) {
      const Tensor gate = normal_tensor(shape, 1, 3), up = normal_tensor(shape, 2), dy = normal_tensor(shape, 3);
      const double absolute = c == DType::bf16 ? 0x1p-9 : (c == DType::f16 ? 0x1p-22 : 0) + 32 * kEpsF32;
      const auto out = [&](int in_place_of) { return Output{c, shape, bound(c, 16), absolute, in_place_of}; };
      for (const Attributes& form :
           {Attributes{{"activation", std::string("silu")}},
            Attributes{{"activation", std::string("gelu")}, {"approximate", std::string("tanh")}},
            Attributes{{"activation", std::string("gelu")}, {"approximate", std::string("none")}}}) {
        for (int in_place : {-1, 0, 1}) hold(Op::glu, form, {{c, gate}, {c, up}}, {out(in_place)});
        for (const auto& [dgate, dup] : {std::pair(-1, -1), {0, 2}, {1, 0}, {1, 2}})
          hold(Op::glu_grad, form, {{c, dy}, {c, gate}, {c, up}}, {out(dgate), out(dup)});
      }
    }
}

TEST_CASE("activations of large arguments neither overflow nor lose NaN") {
  const double nan = std::nan("");
  const Tensor x = [&] {
    Tensor t(Shape{8});
    t.data = {100, -100, 1e30, -1e30, 0, 30, -30, nan};
    return t;
  }();
  const Tensor one(Shape{8}, 1);
  const std::vector<Output> out = {{DType::f32, Shape{8}, 1e-5, 1e-12}};
  for (const char* name : {"tanh", "none"}) {
    hold(Op::gelu, form(name), {{DType::f32, x}}, out);
    Tensor slope = reference::run(Op::gelu_grad, form(name), {one, x}, {Shape{8}})[0];
    // The formula itself gives 0 · infinity far out, where the slope is 1 or 0.
    Tensor near = x;
    near.data = {100, -100, 50, -50, 0, 30, -30, nan};
    hold(Op::gelu_grad, form(name), {{DType::f32, one}, {DType::f32, near}}, out);
    // bf16 has quick forms of its own.
    near.data = {100, -100, 7, -7, -5.5, 30, -30, nan};
    const std::vector<Output> narrow = {{DType::bf16, Shape{8}, 2 * bound(DType::bf16), 1e-6}};
    hold(Op::gelu, form(name), {{DType::bf16, x}}, narrow);
    hold(Op::gelu, form(name), {{DType::bf16, near}}, narrow);
    hold(Op::gelu_grad, form(name), {{DType::bf16, one}, {DType::bf16, near}}, narrow);
  }
  for (Op op : {Op::relu, Op::silu, Op::tanh, Op::sigmoid}) {
    Tensor values = x;
    if (op == Op::relu) values[7] = 1;  // fmax of the reference drops the NaN
    hold(op, {}, {{DType::f32, values}}, out);
  }
  for (const double cap : kCaps) hold(Op::softcap, {{"cap", cap}}, {{DType::f32, x}}, out);
}

TEST_CASE("denormal gradients cost nothing and do no harm") {
  const Input tiny{DType::f32, normal_tensor({1000}, 50, 1e-40)};
  Tensor zero(Shape{1000});
  const Buffer x = buffer_of(DType::f32, tiny.values);
  Buffer y(4000);
  best_runner().run({Op::tanh, {}, {{DType::f32, {1000}}, {DType::f32, {1000}}}}, {x.data(), y.data()});
  for (int i = 0; i < 1000; ++i) CHECK(std::abs(y.as<float>()[i]) < 1e-37f);
}
