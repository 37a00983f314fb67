// attention and attention_grad against the naive sums in f64 of kernels/attention.h, whose own gradient is checked by finite
// differences. Inputs are rounded to the kernel's dtype before the reference sees them, so that what is left is the
// kernel's arithmetic and the rounding of its outputs.
#include "kernels/attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "kernels/bf16.h"
#include "kernels/cpu/attention_way.h"
#include "kernels/cpu/table.h"

using namespace trainer;
using namespace trainer::kernels;
using cpu::Isa;

namespace {

struct Case {
  std::int64_t batch = 2, seq = 65, heads = 4, kv_heads = 2, dim = 16;
  bool causal = true, packed = true;
  double theta = 0;
  DType dtype = DType::f32;

  std::int64_t tokens() const { return batch * seq; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
  std::string str() const {
    return std::string(name_of(dtype)) + " batch " + std::to_string(batch) + " seq " + std::to_string(seq) + " heads " +
           std::to_string(heads) + "/" + std::to_string(kv_heads) + " dim " + std::to_string(dim) + (causal ? " causal" : "") +
           (packed ? " packed" : "") + " theta " + std::to_string(theta);
  }
};

using Doubles = std::vector<double>;

// ---- the reference. q, o: [batch, seq, heads, dim]; k, v: [batch, seq, kv_heads, dim]; lse: [batch, heads, seq].

struct Inputs {
  Doubles q, k, v, d_o;
};
struct Outputs {
  Doubles o, lse;
};
struct Gradients {
  Doubles dq, dk, dv;
};

/// Element offset of a head's vector at a token.
std::size_t at(const Case& c, std::int64_t b, std::int64_t t, std::int64_t head, std::int64_t heads) {
  return static_cast<std::size_t>(((b * c.seq + t) * heads + head) * c.dim);
}

/// Every head's vectors turned by their positions; `sign` -1 turns back.
Doubles rotated(const Case& c, Doubles x, std::int64_t heads, double sign) {
  if (c.theta == 0) return x;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t t = 0; t < c.seq; ++t)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t j = 0; j < c.dim / 2; ++j) {
          double& first = x[at(c, b, t, h, heads) + static_cast<std::size_t>(j)];
          double& second = x[at(c, b, t, h, heads) + static_cast<std::size_t>(j + c.dim / 2)];
          const double angle = static_cast<double>(t) * std::pow(c.theta, -2.0 * static_cast<double>(j) / static_cast<double>(c.dim));
          const double x1 = first, x2 = second, cosine = std::cos(angle), sine = sign * std::sin(angle);
          first = x1 * cosine - x2 * sine;
          second = x2 * cosine + x1 * sine;
        }
  return x;
}

double dot(const Case& c, const Doubles& x, std::size_t i, const Doubles& y, std::size_t j) {
  double sum = 0;
  for (std::size_t d = 0; d < static_cast<std::size_t>(c.dim); ++d) sum += x[i + d] * y[j + d];
  return sum;
}

void add(const Case& c, double factor, const Doubles& x, std::size_t i, Doubles& y, std::size_t j) {
  for (std::size_t d = 0; d < static_cast<std::size_t>(c.dim); ++d) y[j + d] += factor * x[i + d];
}

Outputs reference(const Case& c, const Inputs& in) {
  const Doubles q = rotated(c, in.q, c.heads, 1), k = rotated(c, in.k, c.kv_heads, 1);
  Outputs out{Doubles(q.size()), Doubles(static_cast<std::size_t>(c.tokens() * c.heads))};
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.seq; ++i) {
        const std::int64_t kv = h / (c.heads / c.kv_heads), end = c.causal ? i + 1 : c.seq;
        Doubles s(static_cast<std::size_t>(end));
        for (std::int64_t j = 0; j < end; ++j)
          s[static_cast<std::size_t>(j)] = c.scale() * dot(c, q, at(c, b, i, h, c.heads), k, at(c, b, j, kv, c.kv_heads));
        const double top = *std::max_element(s.begin(), s.end());
        double sum = 0;
        for (double x : s) sum += std::exp(x - top);
        const double lse = top + std::log(sum);
        out.lse[static_cast<std::size_t>((b * c.heads + h) * c.seq + i)] = lse;
        for (std::int64_t j = 0; j < end; ++j)
          add(c, std::exp(s[static_cast<std::size_t>(j)] - lse), in.v, at(c, b, j, kv, c.kv_heads), out.o, at(c, b, i, h, c.heads));
      }
  return out;
}

Gradients reference_grad(const Case& c, const Inputs& in, const Outputs& out) {
  const Doubles q = rotated(c, in.q, c.heads, 1), k = rotated(c, in.k, c.kv_heads, 1);
  Gradients g{Doubles(q.size()), Doubles(k.size()), Doubles(k.size())};
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t h = 0; h < c.heads; ++h)
      for (std::int64_t i = 0; i < c.seq; ++i) {
        const std::int64_t kv = h / (c.heads / c.kv_heads);
        const std::size_t qi = at(c, b, i, h, c.heads);
        const double delta = dot(c, in.d_o, qi, out.o, qi), lse = out.lse[static_cast<std::size_t>((b * c.heads + h) * c.seq + i)];
        for (std::int64_t j = 0; j < (c.causal ? i + 1 : c.seq); ++j) {
          const std::size_t kj = at(c, b, j, kv, c.kv_heads);
          const double p = std::exp(c.scale() * dot(c, q, qi, k, kj) - lse), ds = p * (dot(c, in.d_o, qi, in.v, kj) - delta);
          add(c, ds * c.scale(), k, kj, g.dq, qi);
          add(c, ds * c.scale(), q, qi, g.dk, kj);
          add(c, p, in.d_o, qi, g.dv, kj);
        }
      }
  g.dq = rotated(c, g.dq, c.heads, -1);
  g.dk = rotated(c, g.dk, c.kv_heads, -1);
  return g;
}

// ---- memory of the kernel's dtype

double rounded(DType dtype, double x) {
  const float narrow = static_cast<float>(x);
  return dtype == DType::bf16 ? to_f32(to_bf16(narrow)) : narrow;
}

Doubles normals(DType dtype, std::int64_t count, unsigned seed, double deviation = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0, deviation);
  Doubles x(static_cast<std::size_t>(count));
  for (double& value : x) value = rounded(dtype, normal(generator));
  return x;
}

Inputs inputs_of(const Case& c, unsigned seed = 1, double deviation = 1) {
  const std::int64_t q = c.tokens() * c.heads * c.dim, k = c.tokens() * c.kv_heads * c.dim;
  return {normals(c.dtype, q, seed, deviation), normals(c.dtype, k, seed + 1, deviation), normals(c.dtype, k, seed + 2),
          normals(c.dtype, q, seed + 3)};
}

/// 64-byte aligned memory between two guards.
class Guarded {
 public:
  explicit Guarded(std::int64_t bytes) : bytes_(bytes), memory_(static_cast<std::size_t>(bytes + 3 * kGuard), kPattern) {
    begin_ = memory_.data() + kGuard;
    begin_ += (64 - reinterpret_cast<std::uintptr_t>(begin_) % 64) % 64;
  }
  char* data() { return begin_; }
  std::int64_t bytes() const { return bytes_; }
  bool whole() const {
    return std::all_of(memory_.data(), static_cast<const char*>(begin_), is_pattern) &&
           std::all_of(static_cast<const char*>(begin_) + bytes_, memory_.data() + memory_.size(), is_pattern);
  }
  bool operator==(const Guarded& other) const {
    return bytes_ == other.bytes_ && std::memcmp(begin_, other.begin_, static_cast<std::size_t>(bytes_)) == 0;
  }

 private:
  static constexpr std::int64_t kGuard = 256;
  static constexpr char kPattern = 0x5A;
  static bool is_pattern(char c) { return c == kPattern; }
  std::int64_t bytes_;
  std::vector<char> memory_;
  char* begin_ = nullptr;
};

void put(DType dtype, char* to, std::int64_t index, double value) {
  if (dtype == DType::bf16)
    reinterpret_cast<Bf16*>(to)[index] = to_bf16(static_cast<float>(value));
  else
    reinterpret_cast<float*>(to)[index] = static_cast<float>(value);
}
double get(DType dtype, const char* from, std::int64_t index) {
  return dtype == DType::bf16 ? to_f32(reinterpret_cast<const Bf16*>(from)[index]) : reinterpret_cast<const float*>(from)[index];
}

/// The descriptors of qkv, or of q, k, v, as the case wants them.
std::vector<TensorDesc> trio_descs(const Case& c) {
  if (c.packed) return {{c.dtype, Shape{c.batch, c.seq, (c.heads + 2 * c.kv_heads) * c.dim}}};
  const TensorDesc kv{c.dtype, Shape{c.batch, c.seq, c.kv_heads * c.dim}};
  return {{c.dtype, Shape{c.batch, c.seq, c.heads * c.dim}}, kv, kv};
}

/// visit(operand, index, part, element) for every element of q (part 0), k (1) and v (2).
template <typename Visit>
void each_of_trio(const Case& c, Visit visit) {
  const std::int64_t widths[] = {c.heads * c.dim, c.kv_heads * c.dim, c.kv_heads * c.dim};
  std::int64_t before = 0;
  for (int part = 0; part < 3; ++part) {
    for (std::int64_t t = 0; t < c.tokens(); ++t)
      for (std::int64_t i = 0; i < widths[part]; ++i) {
        const std::int64_t row = widths[0] + widths[1] + widths[2];
        visit(c.packed ? 0 : part, c.packed ? t * row + before + i : t * widths[part] + i, part,
              static_cast<std::size_t>(t * widths[part] + i));
      }
    before += widths[part];
  }
}

// ---- one run

/// What a case runs on: a context, or tiles emulated in memory (bf16 only).
struct Device {
  cpu::Context context;
  bool emulated_tiles = false;

  std::string str() const {
    return (emulated_tiles ? "tiles among " : "") + std::string(cpu::name_of(context.isa)) + ", threads " + std::to_string(context.threads);
  }
  cpu::AttentionWay way() const { return cpu::emulated_attention_way(context.isa); }

  std::int64_t workspace_bytes(const Signature& s) const {
    if (!emulated_tiles) return cpu::CpuTarget(context).workspace_bytes(s);
    return s.op == Op::attention ? attention_workspace(s, context.threads, way()) : attention_grad_workspace(s, context.threads, way());
  }
  std::unique_ptr<Kernel> prepare(const Signature& s) const {
    if (!emulated_tiles) return cpu::prepare(s, context);
    return s.op == Op::attention ? prepare_attention(s, context.threads, way()) : prepare_attention_grad(s, context.threads, way());
  }
};

std::vector<Device> devices(DType dtype) {
  std::vector<Device> all;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx})
    if (isa <= cpu::detect_isa())
      for (int threads : {1, 2, 3}) all.push_back({{isa, threads}});
  if (dtype != DType::bf16) return all;
  for (Isa isa : {Isa::portable, Isa::avx512_bf16})
    if (isa <= cpu::detect_isa())
      for (int threads : {1, 2}) all.push_back({{isa, threads}, true});
  return all;
}

struct Run {
  std::vector<Guarded> operands;
  Guarded workspace{0};
};

Signature signature_of(const Case& c, Op op) {
  const TensorDesc o{c.dtype, Shape{c.batch, c.seq, c.heads * c.dim}}, lse{DType::f32, Shape{c.batch, c.heads, c.seq}};
  Signature s{op,
              {{"heads", c.heads}, {"kv_heads", c.kv_heads}, {"causal", c.causal}, {"packed", c.packed}, {"rope_theta", c.theta}},
              trio_descs(c)};
  if (op == Op::attention_grad) s.operands.insert(s.operands.begin(), o);
  s.operands.insert(s.operands.end(), {o, lse});
  if (op == Op::attention_grad)
    for (const TensorDesc& desc : trio_descs(c)) s.operands.push_back(desc);
  return s;
}

Run prepared_run(const Signature& s, const Device& device) {
  Run run;
  for (const TensorDesc& desc : s.operands) run.operands.emplace_back(desc.bytes());
  run.workspace = Guarded(device.workspace_bytes(s));
  return run;
}

void launch(const Signature& s, const Device& device, Run& run) {
  std::vector<void*> addresses;
  for (Guarded& operand : run.operands) addresses.push_back(operand.data());
  device.prepare(s)->run({addresses, run.workspace.data()});
  CHECK(run.workspace.whole());
  CHECK(std::all_of(run.operands.begin(), run.operands.end(), [](const Guarded& operand) { return operand.whole(); }));
}

void put_trio(const Case& c, const Inputs& in, Run& run, std::size_t first) {
  const Doubles* parts[] = {&in.q, &in.k, &in.v};
  each_of_trio(c, [&](int operand, std::int64_t index, int part, std::size_t element) {
    put(c.dtype, run.operands[first + static_cast<std::size_t>(operand)].data(), index, (*parts[part])[element]);
  });
}

void put_all(DType dtype, const Doubles& x, Guarded& to) {
  for (std::size_t i = 0; i < x.size(); ++i) put(dtype, to.data(), static_cast<std::int64_t>(i), x[i]);
}
Doubles get_all(DType dtype, Guarded& from) {
  Doubles x(static_cast<std::size_t>(from.bytes() / size_of(dtype)));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = get(dtype, from.data(), static_cast<std::int64_t>(i));
  return x;
}

Run run_forward(const Case& c, const Inputs& in, const Device& device) {
  const Signature s = signature_of(c, Op::attention);
  Run run = prepared_run(s, device);
  put_trio(c, in, run, 0);
  launch(s, device, run);
  return run;
}

Outputs outputs_of(const Case& c, Run& run) {
  const std::size_t o = run.operands.size() - 2;
  return {get_all(c.dtype, run.operands[o]), get_all(DType::f32, run.operands[o + 1])};
}

Run run_backward(const Case& c, const Inputs& in, const Outputs& out, const Device& device) {
  const Signature s = signature_of(c, Op::attention_grad);
  Run run = prepared_run(s, device);
  const std::size_t o = c.packed ? 2 : 4;
  put_all(c.dtype, in.d_o, run.operands[0]);
  put_trio(c, in, run, 1);
  put_all(c.dtype, out.o, run.operands[o]);
  put_all(DType::f32, out.lse, run.operands[o + 1]);
  launch(s, device, run);
  return run;
}

Gradients gradients_of(const Case& c, Run& run) {
  const std::size_t q = static_cast<std::size_t>(c.tokens() * c.heads * c.dim),
                    k = static_cast<std::size_t>(c.tokens() * c.kv_heads * c.dim);
  Gradients g{Doubles(q), Doubles(k), Doubles(k)};
  Doubles* parts[] = {&g.dq, &g.dk, &g.dv};
  each_of_trio(c, [&](int operand, std::int64_t index, int part, std::size_t element) {
    Guarded& from = run.operands[static_cast<std::size_t>((c.packed ? 4 : 6) + operand)];
    (*parts[part])[element] = get(c.dtype, from.data(), index);
  });
  return g;
}

// ---- comparison

/// Largest distance between x and y, in units of the bound: `rounding` · |y| for the output's own rounding, and n · (largest
/// |y|) for what comes before it. Of f32 sums n is eps · (8 + √(seq · dim)): errors of a sum grow as the root of its
/// length, and each score's error, some eps · √dim · |score| with |score| ≤ 8, scales a probability. Tiles also round each
/// term's p or ds to bf16, and q and k after RoPE, which scales a probability by some 2^-9 · |score|: n grows by `terms`. The largest is 1
/// at least, the inputs' own size, since do·v - delta may cancel to nothing.
double worst(const Case& c, const Doubles& x, const Doubles& y, double rounding, double terms) {
  const double n = terms + 0x1p-23 * (8 + std::sqrt(static_cast<double>(c.seq * c.dim)));
  double largest = 1, ratio = 0;
  for (double value : y) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double distance = std::abs(x[i] - y[i]), bound = rounding * std::abs(y[i]) + n * largest;
    ratio = std::isfinite(distance) ? std::max(ratio, distance / bound) : INFINITY;
  }
  return ratio;
}

Outputs rounded(const Case& c, Outputs out) {
  for (double& x : out.o) x = rounded(c.dtype, x);
  for (double& x : out.lse) x = rounded(DType::f32, x);
  return out;
}

void check_case(const Case& c) {
  const Inputs in = inputs_of(c);
  const Outputs truth = reference(c, in), given = rounded(c, truth);
  const Gradients gradient = reference_grad(c, in, given);
  for (const Device& device : devices(c.dtype)) {
    CAPTURE(c.str());
    CAPTURE(device.str());
    Run forward = run_forward(c, in, device);
    const Outputs out = outputs_of(c, forward);
    const double rounding = c.dtype == DType::bf16 ? 0x1p-8 : 0x1p-23, terms = !device.emulated_tiles ? 0 : c.theta > 0 ? 0x1p-6 : 0x1p-7;
    CHECK(worst(c, out.o, truth.o, rounding, terms) <= 1);
    CHECK(worst(c, out.lse, truth.lse, 0x1p-23, !device.emulated_tiles ? 0 : c.theta > 0 ? 0x1p-8 : 0x1p-18) <= 1);
    Run backward = run_backward(c, in, given, device);
    const Gradients g = gradients_of(c, backward);
    CHECK(worst(c, g.dq, gradient.dq, rounding, terms) <= 1);
    CHECK(worst(c, g.dk, gradient.dk, rounding, terms) <= 1);
    CHECK(worst(c, g.dv, gradient.dv, rounding, terms) <= 1);
  }
}

}  // namespace

TEST_CASE("the reference's gradient is the slope of the reference") {
  for (const Case& c : {Case{2, 5, 4, 2, 6, true, true, 100.0, DType::f32}, Case{1, 4, 3, 1, 3, false, false, 0.0, DType::f32}}) {
    Inputs in = inputs_of(c);
    const Gradients g = reference_grad(c, in, reference(c, in));
    const auto loss = [&] {
      const Outputs out = reference(c, in);
      double sum = 0;
      for (std::size_t i = 0; i < out.o.size(); ++i) sum += out.o[i] * in.d_o[i];
      return sum;
    };
    const auto check = [&](Doubles& x, const Doubles& slope) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double h = 1e-5, before = x[i];
        x[i] = before + h;
        const double up = loss();
        x[i] = before - h;
        const double down = loss();
        x[i] = before;
        CHECK(std::abs((up - down) / (2 * h) - slope[i]) < 1e-8);  // h² of the third derivative, and 2^-52 / h of rounding
      }
    };
    check(in.q, g.dq);
    check(in.k, g.dk);
    check(in.v, g.dv);
  }
}

TEST_CASE("attention and its gradient equal the naive sums, whatever the sizes") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (std::int64_t seq : {1, 2, 17, 64, 65, 130})
      for (bool causal : {true, false}) check_case({2, seq, 2, 1, 16, causal, true, 0, dtype});
    for (std::int64_t dim : {1, 7, 8, 32, 33, 48, 64, 80, 100, 128}) check_case({1, 70, 2, 2, dim, true, true, 0, dtype});
    check_case({1, 200, 3, 1, 256, false, true, 0, dtype});
    check_case({3, 96, 1, 1, 24, true, true, 0, dtype});
  }
}

TEST_CASE("grouped heads, separate operands and RoPE go together") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool packed : {true, false})
      for (double theta : {0.0, 10000.0})
        for (bool causal : {true, false})
          for (const auto& [heads, kv_heads] : {std::pair{4, 4}, std::pair{4, 2}, std::pair{6, 1}})
            check_case({2, 67, heads, kv_heads, 20, causal, packed, theta, dtype});
}

TEST_CASE("a long odd sequence") {
  check_case({1, 1000, 2, 1, 8, true, true, 0, DType::f32});
  check_case({1, 1000, 1, 1, 10, true, false, 500.0, DType::bf16});
}

TEST_CASE("a run repeats its bits, with any number of threads") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Case c{3, 150, 6, 3, 40, true, true, 10000.0, dtype};
    const Inputs in = inputs_of(c);
    const Outputs given = rounded(c, reference(c, in));
    for (const Device& device : devices(c.dtype)) {
      const Device single{{device.context.isa, 1}, device.emulated_tiles};
      Run one = run_forward(c, in, single), again = run_forward(c, in, device);
      for (std::size_t i = 0; i < one.operands.size(); ++i) CHECK(one.operands[i] == again.operands[i]);
      Run grad = run_backward(c, in, given, single), grad_again = run_backward(c, in, given, device);
      for (std::size_t i = 0; i < grad.operands.size(); ++i) CHECK(grad.operands[i] == grad_again.operands[i]);
    }
  }
}

TEST_CASE("causal: a later token does not touch the bits of an earlier one") {
  const Case c{1, 140, 2, 2, 16, true, false, 0, DType::f32};
  Inputs in = inputs_of(c);
  for (const Device& device : devices(c.dtype)) {
    Run run = run_forward(c, in, device);
    const Outputs before = outputs_of(c, run);
    for (std::int64_t changed : {3, 70, 139}) {
      Inputs other = in;
      for (std::size_t d = 0; d < 32; ++d)
        other.k[static_cast<std::size_t>(changed) * 32 + d] += 5, other.v[static_cast<std::size_t>(changed) * 32 + d] *= 1e6;
      Run rerun = run_forward(c, other, device);
      const Outputs after = outputs_of(c, rerun);
      CHECK(std::equal(before.o.begin(), before.o.begin() + changed * 32, after.o.begin()));
      CHECK_FALSE(std::equal(before.o.begin() + changed * 32, before.o.begin() + (changed + 1) * 32, after.o.begin() + changed * 32));
    }
  }
}

TEST_CASE("scores in the thousands neither overflow nor vanish") {
  const Case c{1, 100, 2, 1, 32, true, true, 0, DType::f32};
  const Inputs in = inputs_of(c, 5, 30);  // scores up to some 30² · √32 = 5000
  const Outputs truth = reference(c, in);
  for (const Device& device : devices(c.dtype)) {
    Run run = run_forward(c, in, device);
    const Outputs out = outputs_of(c, run);
    for (std::size_t i = 0; i < out.lse.size(); ++i) CHECK(std::abs(out.lse[i] - truth.lse[i]) <= 16 * 0x1p-23 * 5000);
    for (std::size_t i = 0; i < out.o.size(); ++i) CHECK(std::abs(out.o[i] - truth.o[i]) <= 4 * 16 * 0x1p-23 * 5000);  // |v| ≤ 4 or so
    Run backward = run_backward(c, in, rounded(c, truth), device);
    const Gradients g = gradients_of(c, backward);
    for (const Doubles* part : {&g.dq, &g.dk, &g.dv})
      CHECK(std::all_of(part->begin(), part->end(), [](double x) { return std::isfinite(x); }));
  }
}

TEST_CASE("a score that is not a number reaches the output") {
  const Case c{1, 70, 1, 1, 16, true, false, 0, DType::f32};
  Inputs in = inputs_of(c);
  in.k[3] = NAN;
  for (const Device& device : devices(c.dtype)) {
    Run run = run_forward(c, in, device);
    const Outputs out = outputs_of(c, run);
    CHECK(std::all_of(out.o.begin(), out.o.end(), [](double x) { return std::isnan(x); }));
  }
}

TEST_CASE("operands that do not fit are refused") {
  const Case c;
  const cpu::Context context{Isa::portable, 1};
  Signature s = signature_of(c, Op::attention);
  s.attributes.set("kv_heads", std::int64_t{3});
  CHECK_THROWS_AS(cpu::prepare(s, context), Bug);
  s = signature_of(Case{.dim = 7, .theta = 10000.0}, Op::attention);
  CHECK_THROWS_WITH_AS(cpu::prepare(s, context), doctest::Contains("even head_dim"), Bug);
  s = signature_of(c, Op::attention_grad);
  s.operands[0].shape = Shape{1, 2, 3};
  CHECK_THROWS_WITH_AS(cpu::prepare(s, context), doctest::Contains("operand 0"), Bug);
  s = signature_of(c, Op::attention);
  s.operands[0].dtype = DType::f16;
  CHECK_THROWS_AS(cpu::prepare(s, context), Bug);
}
