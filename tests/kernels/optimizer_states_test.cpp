// Optimizer states in bf16 and int8: the codes against the paper's definition, updates against the f64 reference of the
// exact states, and a regression that has to be learned as with f32. The bounds are those of kernels/state_codes.h.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/core/compression.h"
#include "kernels/optimizer.h"
#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

const Tensor kLr = values({1e-3});

/// What byte `byte` means, by the words of Dettmers et al., section 2.1: a sign, zeros that make a power of ten, a one,
/// and linear levels.
double meaning(int byte, bool has_sign) {
  if (byte == 0) return 0;
  if (byte == (has_sign ? 0x80 : 1)) return 1;
  int bit = has_sign ? 6 : 7, zeros = 0;
  while ((byte >> bit & 1) == 0) --bit, ++zeros;
  const double levels = std::pow(2, bit), fraction = byte & ((1 << bit) - 1);
  const double magnitude = std::pow(10, -zeros) * (0.1 + 0.9 * (fraction + 0.5) / levels);
  return has_sign && byte >= 0x80 ? -magnitude : magnitude;
}

/// Largest distance of x / scale from the nearest code: half a level in the power of ten that it lies in.
double half_level(double x, bool has_sign) {
  const double magnitude = std::fabs(x);
  int zeros = 0;
  while (zeros < 7 && magnitude <= std::pow(10, -zeros - 1)) ++zeros;
  if (zeros == 7) return has_sign ? 2.75e-7 : 3.25e-7;
  return 0.45 * std::pow(10, -zeros) / std::pow(2, (has_sign ? 6 : 7) - zeros);
}

/// The byte whose meaning is nearest; of unsigned numbers above 0, none that means 0.
int nearest(double x, bool has_sign) {
  int best = 0;
  double least = !has_sign && x > 0 ? INFINITY : std::fabs(x);
  for (int byte = 1; byte < 256; ++byte)
    if (std::fabs(meaning(byte, has_sign) - x) < least) best = byte, least = std::fabs(meaning(byte, has_sign) - x);
  return best;
}

/// A state of n elements as a kernel takes it.
struct State {
  StateFormat format;
  bool has_sign;
  std::vector<Buffer> operands;  ///< values, or codes and scales

  State(StateFormat f, bool sign, std::int64_t n) : format(f), has_sign(sign) {
    operands.emplace_back(n * (f == StateFormat::f32 ? 4 : f == StateFormat::bf16 ? 2 : 1));
    std::memset(operands[0].data(), 0, operands[0].bytes());
    if (f != StateFormat::int8) return;
    operands.emplace_back(4 * int8_blocks(n));
    std::memset(operands[1].data(), 0, operands[1].bytes());
  }
  std::int64_t size() const {
    return static_cast<std::int64_t>(operands[0].bytes()) / (format == StateFormat::f32    ? 4
                                                             : format == StateFormat::bf16 ? 2
                                                                                           : 1);
  }
  void describe(Signature& signature) const {
    signature.operands.push_back({format == StateFormat::f32    ? DType::f32
                                  : format == StateFormat::bf16 ? DType::bf16
                                                                : DType::u8,
                                  {size()}});
    if (format == StateFormat::int8) signature.operands.push_back({DType::f32, {int8_blocks(size())}});
  }
  void add_to(std::vector<void*>& pointers) const {
    for (const Buffer& buffer : operands) pointers.push_back(buffer.data());
  }
  int code(std::int64_t i) const { return operands[0].as<std::uint8_t>()[i]; }
  double scale(std::int64_t block) const { return static_cast<double>(operands[1].as<float>()[block]); }
  double operator[](std::int64_t i) const {
    if (format == StateFormat::int8) return meaning(code(i), has_sign) * scale(i / kInt8Block);
    return read(operands[0], format == StateFormat::f32 ? DType::f32 : DType::bf16, i);
  }
  Tensor tensor() const {
    Tensor t(Shape{size()});
    for (std::int64_t i = 0; i < size(); ++i) t[i] = (*this)[i];
    return t;
  }
  /// Every code in every place, and scales of all sizes; in bf16 numbers of all sizes.
  void fill(std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<double> exponent(-8, 0);
    for (std::int64_t i = 0; i < size(); ++i) {
      if (format == StateFormat::int8) {
        operands[0].as<std::uint8_t>()[i] = static_cast<std::uint8_t>(generator());
        if (i % kInt8Block == 0)
          operands[1].as<float>()[i / kInt8Block] = static_cast<float>(std::pow(10, exponent(generator) / 2));
      } else {
        const double x = std::pow(10, exponent(generator)) * (has_sign && generator() % 2 == 0 ? -1 : 1);
        write(operands[0], format == StateFormat::f32 ? DType::f32 : DType::bf16, i, x);
      }
    }
  }
  bool same_bits(const State& other) const {
    return std::equal(operands.begin(), operands.end(), other.operands.begin(),
                      [](const Buffer& a, const Buffer& b) { return a.same_bits(b); });
  }
};

/// An optimizer's operands.
struct Problem {
  Op op;
  Attributes attributes = {{"weight_decay", 0.1}, {"decay_elements", std::int64_t{0}},
                           {"beta1", 0.9},        {"beta2", 0.99},
                           {"eps", 1e-8},         {"momentum", 0.9},
                           {"nesterov", true},    {"has_momentum", true}};
  DType gradient_dtype = DType::f32, working_dtype = DType::f32;  ///< working f32: none
  Buffer master{0}, gradient{0}, working{0};
  std::vector<State> states;
  double factor = 1, lr = 1e-3;
  std::int32_t applied = 3;

  Problem(Op o, StateFormat format, std::int64_t n, std::uint64_t seed) : op(o), master(4 * n), gradient(4 * n) {
    attributes = those_of(op, attributes);
    for (int i = 0; i < (op == Op::adam || op == Op::adamw ? 2 : 1); ++i) {
      states.emplace_back(format, i == 0, n);
      states.back().fill(seed + static_cast<std::uint64_t>(i));
    }
    set_gradient(seed + 9);
    const Buffer w = normals(DType::f32, n, seed + 8);
    std::memcpy(master.data(), w.data(), w.bytes());
  }
  std::int64_t size() const { return static_cast<std::int64_t>(master.bytes()) / 4; }
  /// Of all sizes, as the gradients of one unit are.
  void set_gradient(std::uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::uniform_real_distribution<double> exponent(-6, 0);
    gradient = Buffer(size() * size_of(gradient_dtype));
    for (std::int64_t i = 0; i < size(); ++i)
      write(gradient, gradient_dtype, i, std::pow(10, exponent(generator)) * (generator() % 2 == 0 ? -1 : 1));
  }
  void run(Runner& runner, std::int64_t origin = 0) {
    const Buffer rate = buffer_of(DType::f32, values({lr})), scalars = buffer_of(DType::f32, values({factor, 1, 0, 0})),
                 t = buffer_of(DType::i32, values({static_cast<double>(applied)}));
    Signature signature{op, attributes, {{DType::f32, {size()}}, {gradient_dtype, {size()}}}};
    std::vector<void*> pointers = {master.data(), gradient.data()};
    for (const State& state : states) state.describe(signature), state.add_to(pointers);
    signature.operands.insert(signature.operands.end(), {{DType::f32, {1}}, {DType::f32, {4}}, {DType::i32, {1}}});
    for (const Buffer* buffer : {&rate, &scalars, &t}) pointers.push_back(buffer->data());
    signature.attributes.set("working", working_dtype != DType::f32);
    if (working_dtype != DType::f32) {
      working = buffer_of(working_dtype, tensor_of(master, DType::f32));
      signature.operands.push_back({working_dtype, {size()}});
      pointers.push_back(working.data());
    }
    runner.run(signature, pointers, origin);
  }
  /// What the reference makes of the exact states, before a run: the master, then the states.
  std::vector<Tensor> truth(std::int64_t origin) const {
    Attributes plain = attributes;
    plain.set("working", false);
    std::vector<Tensor> in = {tensor_of(master, DType::f32), tensor_of(gradient, gradient_dtype)};
    for (const State& state : states) in.push_back(state.tensor());
    for (const Tensor& t : {values({static_cast<double>(static_cast<float>(lr))}), values({factor, 1, 0, 0}),
                            values({static_cast<double>(applied)})})
      in.push_back(t);
    return reference::run(op, plain, in, std::vector<Shape>(1 + states.size(), Shape{size()}), origin);
  }
  Tensor tensor_of(const Buffer& buffer, DType dtype) const {
    Tensor t(Shape{size()});
    for (std::int64_t i = 0; i < size(); ++i) t[i] = read(buffer, dtype, i);
    return t;
  }
};

const Op kOps[] = {Op::sgd, Op::adamw, Op::lion};
const StateFormat kPacked[] = {StateFormat::bf16, StateFormat::int8};

/// The largest |x| of a block, and how far a state of it may be from x.
struct Bounds {
  std::vector<double> largest;
  StateFormat format;
  bool has_sign;
  Bounds(const Tensor& x, StateFormat f, bool sign)
      : largest(static_cast<std::size_t>(int8_blocks(x.size()))), format(f), has_sign(sign) {
    for (std::int64_t i = 0; i < x.size(); ++i) {
      double& of_block = largest[static_cast<std::size_t>(i / kInt8Block)];
      of_block = std::fmax(of_block, std::fabs(x[i]));
    }
  }
  double of(const Tensor& x, std::int64_t i) const {
    if (format == StateFormat::bf16)
      return std::fabs(x[i]) * 0x1p-7;  // a whole step of bf16: it is rounded to either side
    const double scale = largest[static_cast<std::size_t>(i / kInt8Block)];
    return scale == 0 ? 0 : scale * half_level(x[i] / scale, has_sign);
  }
};

}  // namespace

TEST_CASE("a code is what the paper says: 256 different numbers, decoded and coded again") {
  const float scales[] = {0x1p-11f, -0x1p-1f, 0x1.234567p9f, -0x1p-100f, 0x1.8p-100f, -0x1p126f, 0x1p126f};
  const std::int64_t n = static_cast<std::int64_t>(std::size(scales)) * kInt8Block;
  for (Runner* runner : few_runners()) {
    const auto all_codes = [&] {
      State state(StateFormat::int8, true, n);
      for (std::int64_t i = 0; i < n; ++i)
        state.operands[0].as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i * 37 % 256);
      std::copy(std::begin(scales), std::end(scales), state.operands[1].as<float>());
      return state;
    };
    const State momentum = all_codes(), before = all_codes();
    // With momentum 1 the state stays as it is, and u is what it means.
    const Buffer gradient = normals(DType::f32, n, 1), scalars = buffer_of(DType::f32, values({1, 1, 0, 0})),
                 applied = buffer_of(DType::i32, values({1}));
    Buffer u(4 * n);
    Signature signature{Op::muon_momentum, {{"momentum", 1.0}, {"nesterov", false}}, {{DType::f32, {n}}}};
    momentum.describe(signature);
    signature.operands.insert(signature.operands.end(), {{DType::f32, {4}}, {DType::i32, {1}}, {DType::f32, {n}}});
    runner->run(signature, {gradient.data(), momentum.operands[0].data(), momentum.operands[1].data(), scalars.data(),
                            applied.data(), u.data()});
    INFO(runner->name());
    CHECK(momentum.same_bits(before));
    for (std::int64_t i = 0; i < n; ++i)
      CHECK(std::fabs(static_cast<double>(u.as<float>()[i]) - before[i]) <= std::fabs(before[i]) * 0x1p-20);
  }
  for (bool has_sign : {true, false}) {
    std::vector<double> all;
    for (int byte = 0; byte < 256; ++byte) all.push_back(meaning(byte, has_sign));
    std::sort(all.begin(), all.end());
    CHECK(std::adjacent_find(all.begin(), all.end()) == all.end());
    CHECK(all.back() == 1);
    CHECK(all.front() == doctest::Approx(has_sign ? -(1 - 0.45 / 64) : 0));
  }
}

TEST_CASE("the nearest code is taken, with and without a sign") {
  const std::int64_t n = 40 * kInt8Block + 100;
  for (Runner* runner : few_runners()) {
    Problem problem(Op::adamw, StateFormat::int8, n, 50);
    problem.attributes.set("beta1", 0.0);  // the states become g and g²
    problem.attributes.set("beta2", 0.0);
    problem.gradient.as<float>()[5] = 0;
    problem.run(*runner);
    int wrong = 0, between = 0;
    for (std::size_t k = 0; k < 2; ++k) {
      const State& state = problem.states[k];
      for (std::int64_t i = 0; i < n; ++i) {
        const float g = problem.gradient.as<float>()[i];
        const double x = static_cast<double>(k == 0 ? g : g * g) / state.scale(i / kInt8Block);
        const int want = nearest(x, state.has_sign);
        if (state.code(i) == want) continue;
        // Where a number is halfway between two codes, roundings of x decide.
        const double distance = std::fabs(meaning(state.code(i), state.has_sign) - x),
                     least = std::fabs(meaning(want, state.has_sign) - x);
        distance <= least*(1 + 0x1p-12) + 0x1p-22 * std::fabs(x) ? ++between : ++wrong;
      }
    }
    INFO(runner->name());
    CHECK(wrong == 0);
    CHECK(between <= 8);
    CHECK(problem.states[1].code(5) == 0);
  }
}

TEST_CASE(
    "updates follow the formulas of what the states mean, and states lie within half a level, or a step of bf16, of "
    "the exact ones") {
  for (Op op : kOps)
    for (StateFormat format : kPacked)
      for (DType r : reduce_dtypes())
        for (std::int64_t n : {1, 255, 256, 1000, 10003})
          for (DType copy : compute_dtypes())
            for (const auto& runner : runners()) {
              if (n != 1000 && (copy == DType::f16 || runner.get() != &best_runner()) && n != 10003) continue;
              Problem problem(op, format, n, 60);
              problem.gradient_dtype = r;
              problem.working_dtype = copy;
              problem.set_gradient(61);
              problem.factor = 0.5;
              problem.attributes.set("decay_elements", 500 + n / 2);
              const std::vector<Tensor> truth = problem.truth(500);
              problem.run(*runner, 500);
              INFO(name_of(op), " on ", runner->name(), " n ", n, " format ", static_cast<int>(format));
              // The update is made of the new states before they are rounded. Where sums cancel, as in f32, a few
              // roundings of the terms stay.
              std::int64_t wrong = -1;
              double steepest = 1;
              if (op == Op::adamw) steepest = 4;  // m / √v
              for (std::int64_t i = 0; i < n && wrong < 0; ++i) {
                const double got = read(problem.master, DType::f32, i),
                             allowed = 4 * kEpsF32 * std::fabs(truth[0][i]) + 1e-3 * 64 * kEpsF32 * steepest * 30;
                if (!(std::fabs(got - truth[0][i]) <= allowed)) wrong = i;
                if (copy != DType::f32 && !(std::fabs(read(problem.working, copy, i) - got) <=
                                            std::fabs(got) * bound(copy) + subnormals(copy)))
                  wrong = i;
              }
              CHECK(wrong == -1);
              for (std::size_t k = 0; k < problem.states.size(); ++k) {
                const Tensor& exact = truth[1 + k];
                const Bounds bounds(exact, format, k == 0);
                for (std::int64_t i = 0; i < n && wrong < 0; ++i) {
                  const double largest = bounds.largest[static_cast<std::size_t>(i / kInt8Block)];
                  const double rounding =
                      0x1p-20 * std::fabs(exact[i]) + 0x1p-21 * largest * (format == StateFormat::int8 ? 1 : 0.01);
                  if (!(std::fabs(problem.states[k][i] - exact[i]) <= bounds.of(exact, i) * (1 + 0x1p-16) + rounding))
                    wrong = i;
                }
                INFO("state ", k, " element ", wrong, ": ", wrong < 0 ? 0 : problem.states[k][wrong], " for ",
                     wrong < 0 ? 0 : exact[wrong]);
                CHECK(wrong == -1);
                for (std::int64_t block = 0; format == StateFormat::int8 && block < int8_blocks(n); ++block)
                  CHECK(std::fabs(problem.states[k].scale(block)) ==
                        doctest::Approx(bounds.largest[static_cast<std::size_t>(block)]).epsilon(0x1p-20));
                int lost = 0;  // of the elements farthest from 0, of either sign
                for (std::int64_t i = 0; format == StateFormat::int8 && i < n; ++i) {
                  const double scale = problem.states[k].scale(i / kInt8Block);
                  lost += std::fabs(exact[i] - scale) <= 0x1p-20 * std::fabs(scale) && problem.states[k][i] != scale;
                }
                CHECK(lost == 0);
              }
            }
}

TEST_CASE("every instruction set, order and number of threads gives the same states in its family") {
  for (Op op : kOps)
    for (StateFormat format : kPacked) {
      std::map<int, Problem> first;
      for (const auto& runner : runners()) {
        Problem problem(op, format, 20011, 70);
        problem.run(*runner);
        const auto [at, is_first] =
            first.try_emplace(runner->family() / (runner->rounds_factors() ? 1 : 100), std::move(problem));
        if (is_first) continue;
        INFO(name_of(op), " on ", runner->name());
        CHECK(problem.master.same_bits(at->second.master));
        for (std::size_t k = 0; k < problem.states.size(); ++k)
          CHECK(problem.states[k].same_bits(at->second.states[k]));
      }
    }
}

TEST_CASE("a slice of whole blocks has the bits of the whole unit's update there") {
  const std::int64_t n = 20 * kInt8Block + 17, a = 3 * kInt8Block, b = 11 * kInt8Block;
  for (Op op : kOps)
    for (StateFormat format : kPacked)
      for (Runner* runner : few_runners()) {
        const auto make = [&] {
          Problem problem(op, format, n, 80);
          problem.attributes.set("decay_elements", 7 * kInt8Block + 100);  // within a block
          return problem;
        };
        Problem whole = make(), slice = make();
        for (std::vector<Buffer*> buffers{&slice.master, &slice.gradient}; Buffer * buffer : buffers) {
          Buffer part(4 * (b - a));
          std::memcpy(part.data(), buffer->as<float>() + a, part.bytes());
          *buffer = std::move(part);
        }
        for (State& state : slice.states) {
          State part(format, state.has_sign, b - a);
          const std::int64_t width = format == StateFormat::int8 ? 1 : 2;
          std::memcpy(part.operands[0].data(), state.operands[0].as<char>() + a * width, part.operands[0].bytes());
          if (format == StateFormat::int8)
            std::memcpy(part.operands[1].data(), state.operands[1].as<float>() + a / kInt8Block,
                        part.operands[1].bytes());
          state = std::move(part);
        }
        whole.run(*runner);
        slice.run(*runner, a);
        INFO(name_of(op), " on ", runner->name());
        CHECK(std::memcmp(whole.master.as<float>() + a, slice.master.data(), slice.master.bytes()) == 0);
        for (std::size_t k = 0; k < slice.states.size(); ++k)
          for (std::int64_t i = 0; i < b - a; ++i) CHECK(slice.states[k][i] == whole.states[k][a + i]);
      }
}

TEST_CASE("zeros stay zeros, and where no step is applied every bit stays") {
  for (Op op : kOps)
    for (StateFormat format : kPacked)
      for (Runner* runner : few_runners()) {
        INFO(name_of(op), " on ", runner->name());
        Problem zeros(op, format, 700, 90);
        for (State& state : zeros.states) state = State(format, state.has_sign, 700);
        for (std::int64_t i = 256; i < 512; ++i) zeros.gradient.as<float>()[i] = 0;
        zeros.run(*runner);
        for (const State& state : zeros.states) {
          for (std::int64_t i = 256; i < 512; ++i) CHECK(state[i] == 0);
          CHECK(state[0] != 0);
          CHECK(state[699] != 0);
        }
        Problem stopped(op, format, 700, 91), before(op, format, 700, 91);
        stopped.factor = 0;
        stopped.gradient.as<float>()[3] = NAN;
        stopped.run(*runner);
        CHECK(stopped.master.same_bits(before.master));
        for (std::size_t k = 0; k < stopped.states.size(); ++k) CHECK(stopped.states[k].same_bits(before.states[k]));
      }
}

TEST_CASE("rounding to bf16 is right on average, over elements and over steps") {
  const std::int64_t n = 16 * kInt8Block;
  const auto rounded = [&](float value, int applied, bool same) {
    Problem problem(Op::lion, StateFormat::bf16, n, 100);
    problem.attributes.set("beta2", 0.0);  // the state becomes g
    problem.applied = applied;
    for (std::int64_t i = 0; i < n; ++i)
      problem.gradient.as<float>()[i] = same ? value : value * (1 + static_cast<float>(i) * 0x1p-20f);
    problem.run(best_runner());
    double off = 0;  // in steps of bf16
    for (std::int64_t i = 0; i < n; ++i)
      off += (problem.states[0][i] - static_cast<double>(problem.gradient.as<float>()[i])) / 0x1p-7;
    return off / static_cast<double>(n);
  };
  // A rounding has a variance of at most 1/4 step².
  CHECK(std::fabs(rounded(1.25f, 1, false)) <= 5 * 0.5 / std::sqrt(static_cast<double>(n)));
  CHECK(std::fabs(rounded(-1.25f, 2, false)) <= 5 * 0.5 / std::sqrt(static_cast<double>(n)));
  double off = 0;
  const float value = 1 + 0.3f * 0x1p-7f;
  const int steps = 2000;
  for (int step = 1; step <= steps; ++step) off += rounded(value, step, true) / steps;
  CHECK(std::fabs(off) <= 5 * std::sqrt(0.3 * 0.7 / steps));
  CHECK(rounded(1.5f, 7, true) == 0);  // bf16 has it
}

namespace {

/// The loss after 2,000 steps of AdamW, with a learning rate that falls to 0, on targets whose noise no model learns.
/// It begins far away: gradients fall by orders of magnitude, and second moments have to follow.
double learned(StateFormat format, bool rounds_to_nearest) {
  const std::int64_t n = 2 * kInt8Block + 40;
  const int steps = 2000;
  const double noise = 0.003;
  Problem problem(Op::adamw, format, n, 110);
  problem.attributes.set("beta2", 0.999);
  problem.attributes.set("weight_decay", 0.0);
  std::mt19937_64 generator(7);
  std::normal_distribution<double> normal;
  std::vector<double> target(static_cast<std::size_t>(n)), curvature(target.size());
  for (std::size_t i = 0; i < target.size(); ++i) {
    target[i] = normal(generator);
    curvature[i] = std::pow(10, -2.0 * static_cast<double>(i % 17) / 16);
    problem.master.as<float>()[i] = static_cast<float>(target[i] + 1 + 0.2 * normal(generator));
  }
  for (State& state : problem.states) state = State(format, state.has_sign, n);
  const auto away = [&](std::size_t i) { return static_cast<double>(problem.master.as<float>()[i]) - target[i]; };
  for (int step = 1; step <= steps; ++step) {
    for (std::size_t i = 0; i < target.size(); ++i)
      problem.gradient.as<float>()[i] = static_cast<float>(curvature[i] * (away(i) + noise * normal(generator)));
    problem.lr = 4e-3 * (1 - static_cast<double>(step) / steps);
    problem.applied = step;
    problem.run(best_runner());
    for (State& state : problem.states)
      for (std::int64_t i = 0; rounds_to_nearest && i < n; ++i)
        state.operands[0].as<float>()[i] = to_f32(to_bf16(state.operands[0].as<float>()[i]));
  }
  double loss = 0;
  for (std::size_t i = 0; i < target.size(); ++i)
    loss += 0.5 * curvature[i] * (away(i) * away(i) + noise * noise) / static_cast<double>(n);
  return loss;
}

}  // namespace

TEST_CASE(
    "a regression is learned with states in bf16 and int8 as with f32, and not with bf16 that is rounded to nearest") {
  const double f32 = learned(StateFormat::f32, false);
  CHECK(learned(StateFormat::bf16, false) == doctest::Approx(f32).epsilon(0.005));
  CHECK(learned(StateFormat::int8, false) == doctest::Approx(f32).epsilon(0.005));
  CHECK(learned(StateFormat::f32, true) > 1.08 * f32);
}
