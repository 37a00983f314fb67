// attention_cached: a sequence that comes in pieces, against attention over the whole of it in f64. The caches begin
// as NaN, so that a key which is read before it was written shows.
#include "kernels/attention_cached.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "engine/core/error.h"
#include "tests/kernels/attention_case.h"

using namespace trainer;
using namespace trainer::kernels::test;
using namespace trainer::kernels::test::attention;

namespace {

using At = kernels::CachedAttentionOperands;

Signature cached_signature(const Case& c, std::int64_t tokens, std::int64_t room) {
  const auto rows = [&](std::int64_t count, std::int64_t width) {
    return TensorDesc{c.dtype, Shape{c.batch, count, width}};
  };
  const std::int64_t k = c.kv_heads * c.dim, v = c.kv_heads * c.values();
  return {Op::attention_cached,
          those_of(Op::attention_cached, c.attributes()),
          {rows(tokens, c.heads * c.dim),
           rows(tokens, k),
           rows(tokens, v),
           {DType::i32, Shape{1}},
           rows(room, k),
           rows(room, v),
           rows(tokens, c.heads * c.values())}};
}

/// Rows [first, first + count) of each sample of x [batch, seq, width] to dense rows of `to`.
void put_piece(const Case& c, const Doubles& x, std::int64_t width, std::int64_t first, std::int64_t count,
               Guarded& to) {
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t i = 0; i < count * width; ++i)
      put(c.dtype, to.data(), b * count * width + i, x[static_cast<std::size_t>((b * c.seq + first) * width + i)]);
}

void take_piece(const Case& c, Guarded& from, std::int64_t width, std::int64_t first, std::int64_t count, Doubles& x) {
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t i = 0; i < count * width; ++i)
      x[static_cast<std::size_t>((b * c.seq + first) * width + i)] = get(c.dtype, from.data(), b * count * width + i);
}

/// The whole sequence in pieces of these sizes, in caches with room to spare.
Doubles in_pieces(const Case& c, const Inputs& in, const std::vector<std::int64_t>& sizes, Runner& runner) {
  const std::int64_t room = c.seq + 5, q = c.heads * c.dim, k = c.kv_heads * c.dim, v = c.kv_heads * c.values(),
                     o = c.heads * c.values();
  Doubles all(static_cast<std::size_t>(c.tokens() * o)),
      nan(static_cast<std::size_t>(c.batch * room * std::max(k, v)), std::numeric_limits<double>::quiet_NaN());
  std::vector<Guarded> caches;
  for (std::int64_t width : {k, v}) {
    Guarded& cache = caches.emplace_back(c.batch * room * width * size_of(c.dtype));
    for (std::int64_t i = 0; i < c.batch * room * width; ++i) put(c.dtype, cache.data(), i, nan[0]);
  }
  std::int64_t position = 0;
  for (std::int64_t count : sizes) {
    const Signature s = cached_signature(c, count, room);
    Run run = prepared_run(s);
    put_piece(c, in.q, q, position, count, run.operands[At::q]);
    put_piece(c, in.k, k, position, count, run.operands[At::k]);
    put_piece(c, in.v, v, position, count, run.operands[At::v]);
    const auto first = static_cast<std::int32_t>(position);
    std::memcpy(run.operands[At::position].data(), &first, sizeof first);
    std::swap(run.operands[At::k_cache], caches[0]);
    std::swap(run.operands[At::v_cache], caches[1]);
    launch(s, runner, run);
    std::swap(run.operands[At::k_cache], caches[0]);
    std::swap(run.operands[At::v_cache], caches[1]);
    take_piece(c, run.operands[At::o], o, position, count, all);
    position += count;
  }
  REQUIRE(position == c.seq);
  return all;
}

/// Of one factor more that is rounded: turned queries and keys are kept in the compute dtype on every device.
double terms_of(const Case& c, const Runner& runner) {
  const double eps = c.dtype == DType::bf16 ? 0x1p-8 : c.dtype == DType::f16 ? 0x1p-11 : 0x1p-23;
  return std::max(bounds_of(c, runner).terms, c.theta > 0 ? 4 * eps : 0);
}

void check_pieces(const Case& c, const std::vector<std::int64_t>& sizes) {
  const Inputs in = inputs_of(c);
  const Outputs truth = reference(c, in);
  for (Runner* runner : few_runners()) {
    CAPTURE(c.str());
    CAPTURE(runner->name());
    const Doubles o = in_pieces(c, in, sizes, *runner);
    CHECK(worst(c, o, truth.o, bounds_of(c, *runner).rounding, terms_of(c, *runner)) <= 1);
  }
}

Case causal(std::int64_t batch, std::int64_t seq, std::int64_t heads, std::int64_t kv_heads, std::int64_t dim,
            double theta, DType dtype) {
  return {batch, seq, heads, kv_heads, dim, true, false, theta, dtype};
}

}  // namespace

TEST_CASE("a sequence in pieces is attended as one") {
  for (DType dtype : compute_dtypes()) {
    check_pieces(causal(1, 70, 4, 2, 16, 10000.0, dtype), {5, 1, 1, 40, 1, 22});
    check_pieces(causal(2, 33, 2, 2, 20, 0, dtype), {1, 1, 30, 1});
    check_pieces(causal(1, 9, 7, 1, 34, 500.0, dtype), {1, 1, 1, 1, 1, 1, 1, 1, 1});
    check_pieces(causal(1, 130, 3, 1, 64, 10000.0, dtype), {128, 1, 1});
    check_pieces(causal(1, 67, 1, 1, 128, 10000.0, dtype), {66, 1});
    check_pieces(causal(1, 20, 2, 1, 256, 10000.0, dtype), {19, 1});
  }
}

TEST_CASE("caches of many keys, which threads share") {
  const std::int64_t keys = runs_are_slow() ? 330 : 700;  // more than a block of a GPU has threads
  for (DType dtype : compute_dtypes()) check_pieces(causal(1, keys, 2, 1, 8, 0, dtype), {keys - 3, 1, 1, 1});
}

TEST_CASE("cached: RoPE of neighbours and of a part of a head, softcap, scale, window, values of another size") {
  for (DType dtype : compute_dtypes()) {
    for (Case c : rope_cases(dtype)) {
      if (c.keys != 0) continue;
      c.packed = false;
      check_pieces(c, {c.seq - 3, 1, 1, 1});
    }
    Case c = causal(1, 80, 4, 2, 24, 500.0, dtype);
    c.softcap = 2, c.factor = 0.3;
    check_pieces(c, {50, 1, 28, 1});
    c.window = 7;
    check_pieces(c, {50, 1, 28, 1});
    c.softcap = 0, c.window = 65;
    check_pieces(c, {3, 75, 1, 1});
    c.v_dim = 40, c.window = 0;
    check_pieces(c, {3, 75, 1, 1});
    c.dim = 40, c.v_dim = 12;
    check_pieces(c, {3, 75, 1, 1});
  }
}

TEST_CASE("a token does not see what lies behind it in the caches") {
  const Case c = causal(1, 40, 2, 1, 16, 10000.0, DType::f32);
  const Inputs in = inputs_of(c);
  for (Runner* runner : few_runners()) {
    const Doubles whole = in_pieces(c, in, {20, 10, 1, 9}, *runner);
    Inputs other = in;
    for (std::size_t i = 31 * 16; i < other.k.size(); ++i) other.k[i] += 5, other.v[i] *= 100;
    const Doubles changed = in_pieces(c, other, {20, 10, 1, 9}, *runner);
    CHECK(std::equal(whole.begin(), whole.begin() + 31 * 32, changed.begin()));
    CHECK_FALSE(std::equal(whole.begin() + 31 * 32, whole.end(), changed.begin() + 31 * 32));
  }
}

TEST_CASE("caches of other sizes than the tokens have are a bug") {
  const Case c = causal(1, 4, 2, 1, 16, 0, DType::f32);
  Signature s = cached_signature(c, 4, 8);
  s.operands[At::v_cache].shape = Shape{1, 7, 16};
  CHECK_THROWS_AS(kernels::cached_attention_shape(s), Bug);
  CHECK_THROWS_AS(kernels::cached_attention_shape(cached_signature(c, 4, 3)), Bug);
  const kernels::CachedAttentionShape shape = kernels::cached_attention_shape(cached_signature(c, 4, 8));
  CHECK_NOTHROW(kernels::expect_cached_position(shape, 4));
  CHECK_THROWS_AS(kernels::expect_cached_position(shape, 5), Bug);
  CHECK_THROWS_AS(kernels::expect_cached_position(shape, -1), Bug);
}
