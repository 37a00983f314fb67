// attention_block and its gradient: each block against its formula in f64, and the formulas of all blocks of a ring,
// put together, against attention over the whole sequence.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "tests/kernels/against_reference.h"

using namespace trainer;
using namespace trainer::kernels::test;
using reference::Tensor;

namespace {

struct Ring {
  std::int64_t ranks = 2, batch = 2, chunk = 3, heads = 2, kv_heads = 1, dim = 8, v_dim = 8;
  bool causal = true;
  std::int64_t window = 0;
  double softcap = 0, theta = 0;
  bool interleaved = false, padded = false, by_document = false;

  std::int64_t part() const { return 2 * chunk; }
  std::int64_t seq() const { return ranks * part(); }

  Attributes attributes() const {
    Attributes all{{"heads", heads}, {"kv_heads", kv_heads}, {"causal", causal}};
    if (window > 0) all.set("window", window);
    if (softcap > 0) all.set("softcap", softcap);
    if (theta > 0) all.set("rope_theta", theta), all.set("rope_interleaved", interleaved);
    if (padded) all.set("padded", true);
    if (by_document) all.set("by_document", true);
    return all;
  }
  Attributes of_whole() const {
    Attributes all = attributes();
    all.set("packed", false);
    return all;
  }
  Attributes of_step(std::int64_t step) const {
    Attributes all = attributes();
    all.set("ranks", ranks);
    all.set("step", step);
    if (step > 0) all.set("continues", true);
    return all;
  }
  bool masked() const { return padded || by_document; }
  /// Lengths from 1 to all; or documents that end anywhere, with padding behind them in every second sample.
  Tensor mask() const {
    if (padded) {
      Tensor lengths(Shape{batch});
      for (std::int64_t b = 0; b < batch; ++b) lengths[b] = static_cast<double>(b == 0 ? 1 : seq() - b);
      return lengths;
    }
    Tensor documents(Shape{batch, seq()});
    for (std::int64_t i = 0; i < documents.size(); ++i) {
      const std::int64_t b = i / seq(), at = i % seq();
      documents[i] = b % 2 == 1 && at >= seq() - 5 ? -1 : static_cast<double>(at < 2 ? 0 : at < seq() / 2 + 1 ? 1 : 4);
    }
    return documents;
  }
  Tensor queries(std::int64_t rows, std::uint64_t seed) const {
    return normal_tensor({batch, rows, heads * dim}, seed);
  }
  Tensor keys(std::int64_t rows, std::uint64_t seed) const {
    return normal_tensor({batch, rows, kv_heads * dim}, seed);
  }
  Tensor values(std::int64_t rows, std::uint64_t seed) const {
    return normal_tensor({batch, rows, kv_heads * v_dim}, seed);
  }
  Shape results() const { return {batch, part(), heads * v_dim}; }
  Shape sums() const { return {batch, heads, part()}; }
};

/// GPUs compute in f16 too. They take no lengths and no documents in a ring, and round what each pair of chunks gives.
bool on_gpu() { return std::ranges::find(compute_dtypes(), DType::f16) != compute_dtypes().end(); }

// In f32 the terms of sums of up to 2 · 70 keys; what is bf16 is rounded once.
Output within(DType dtype, DType compute, const Shape& shape, int in_place_of = -1) {
  // Of 16 bits on GPUs: factors of products, and results of pairs of chunks.
  const double rounded = on_gpu() && compute != DType::f32 ? 6 * bound(compute) : 0;
  return {dtype, shape, bound(dtype), 200 * kEpsF32 + rounded, in_place_of};
}

void check_forward(const Ring& ring, std::int64_t rank, std::int64_t step, DType dtype) {
  std::vector<Input> in{
      {dtype, ring.queries(ring.part(), 1)}, {dtype, ring.keys(ring.part(), 2)}, {dtype, ring.values(ring.part(), 3)}};
  if (ring.masked()) in.push_back({DType::i32, ring.mask()});
  const DType sum = step + 1 == ring.ranks ? dtype : DType::f32;
  int o_before = -1, lse_before = -1;
  if (step > 0) {
    Tensor o = normal_tensor(ring.results(), 4), lse = normal_tensor(ring.sums(), 5);
    // A query that has seen no key so far: the last one of the last head.
    lse[lse.size() - 1] = -INFINITY;
    for (std::int64_t i = 1; i <= ring.v_dim; ++i) o[o.size() - i] = 0;
    o_before = static_cast<int>(in.size()), lse_before = o_before + 1;
    in.push_back({DType::f32, o});
    in.push_back({DType::f32, lse});
  }
  for (bool in_place : {false, true}) {
    const bool may_be_in_place = step > 0 && sum == DType::f32;
    if (in_place ? !may_be_in_place : may_be_in_place && runs_are_slow()) continue;
    hold(Op::attention_block, ring.of_step(step), in,
         {within(sum, dtype, ring.results(), in_place ? o_before : -1),
          within(DType::f32, dtype, ring.sums(), in_place ? lse_before : -1)},
         {.origin = rank});
  }
}

void check_backward(const Ring& ring, std::int64_t rank, std::int64_t step, DType dtype) {
  std::vector<Input> in{{dtype, normal_tensor(ring.results(), 6)},
                        {dtype, ring.queries(ring.part(), 1)},
                        {dtype, ring.keys(ring.part(), 2)},
                        {dtype, ring.values(ring.part(), 3)}};
  if (ring.masked()) in.push_back({DType::i32, ring.mask()});
  Tensor lse = normal_tensor(ring.sums(), 5);
  for (double& x : lse.data) x += 4;
  in.push_back({dtype, normal_tensor(ring.results(), 4)});
  in.push_back({DType::f32, lse});
  int dq_before = -1;
  if (step > 0) dq_before = static_cast<int>(in.size()), in.push_back({DType::f32, ring.queries(ring.part(), 7)});
  const DType sum = step + 1 == ring.ranks ? dtype : DType::f32;
  for (bool in_place : {false, true}) {
    const bool may_be_in_place = step > 0 && sum == DType::f32;
    if (in_place ? !may_be_in_place : may_be_in_place && runs_are_slow()) continue;
    hold(Op::attention_block_grad, ring.of_step(step), in,
         {within(sum, dtype, in[1].values.shape, in_place ? dq_before : -1),
          within(DType::f32, dtype, in[2].values.shape), within(DType::f32, dtype, in[3].values.shape)},
         {.origin = rank});
  }
}

std::vector<Ring> rings() {
  return {
      {},
      {.ranks = 3, .chunk = 5, .heads = 6, .kv_heads = 2, .dim = 12, .v_dim = 12, .theta = 100},
      {.ranks = 4, .batch = 1, .chunk = 2, .heads = 2, .kv_heads = 2, .theta = 50, .interleaved = true},
      {.ranks = 2, .batch = 1, .chunk = 66, .heads = 1, .kv_heads = 1, .dim = 4, .v_dim = 12},
      {.ranks = 3, .chunk = 6, .window = 4},
      {.ranks = 3, .chunk = 6, .window = 17, .softcap = 2, .theta = 100},
      {.ranks = 2, .batch = 3, .chunk = 6, .padded = true},
      {.ranks = 3, .batch = 2, .chunk = 6, .heads = 4, .kv_heads = 2, .theta = 100, .by_document = true},
      {.ranks = 2, .chunk = 4, .causal = false},
      {.ranks = 3, .chunk = 4, .causal = false, .theta = 100},
      {.ranks = 2, .batch = 3, .chunk = 5, .causal = false, .padded = true},
      {.ranks = 2, .batch = 2, .chunk = 5, .causal = false, .by_document = true},
  };
}

/// The position in the sequence of row `row` of a rank's part.
std::int64_t position(const Ring& ring, std::int64_t rank, std::int64_t row) {
  return row < ring.chunk ? rank * ring.chunk + row : (2 * ring.ranks - 2 - rank) * ring.chunk + row;
}

/// Calls visit(element of the part, element of the whole) for a tensor [batch, rows, width] of a rank.
template <typename Visit>
void each_element(const Ring& ring, std::int64_t rank, std::int64_t width, const Visit& visit) {
  for (std::int64_t i = 0; i < ring.batch * ring.part() * width; ++i) {
    const std::int64_t b = i / width / ring.part(), row = i / width % ring.part();
    visit(i, (b * ring.seq() + position(ring, rank, row)) * width + i % width);
  }
}

Tensor part_of(const Ring& ring, const Tensor& whole, std::int64_t rank) {
  const std::int64_t width = whole.shape[2];
  Tensor part(Shape{ring.batch, ring.part(), width});
  each_element(ring, rank, width, [&](std::int64_t i, std::int64_t at) { part[i] = whole[at]; });
  return part;
}

double worst(const Tensor& got, const Tensor& want) {
  double most = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) most = std::fmax(most, std::fabs(got[i] - want[i]));
  return most;
}

}  // namespace

TEST_CASE("blocks of a ring, each by its formula") {
  for (const Ring& ring : rings()) {
    if ((ring.masked() && on_gpu()) || (ring.chunk > 60 && runs_are_slow())) continue;
    for (std::int64_t step = 0; step < ring.ranks; ++step) {
      const std::int64_t rank = step % 2 == 0 ? ring.ranks - 1 : 0;
      CAPTURE(step);
      for (DType dtype : compute_dtypes()) {
        check_forward(ring, rank, step, dtype);
        check_backward(ring, rank, step, dtype);
      }
    }
  }
}

TEST_CASE("the blocks of a ring are attention over the whole sequence") {
  int number = 0;
  for (const Ring& ring : rings()) {
    CAPTURE(number++);
    const Tensor q = ring.queries(ring.seq(), 1), k = ring.keys(ring.seq(), 2), v = ring.values(ring.seq(), 3),
                 d_o = normal_tensor({ring.batch, ring.seq(), ring.heads * ring.v_dim}, 4);
    std::vector<Tensor> in{q, k, v};
    if (ring.masked()) in.push_back(ring.mask());
    const std::vector<Tensor> truth =
        reference::run(Op::attention, ring.of_whole(), in, {d_o.shape, {ring.batch, ring.heads, ring.seq()}});
    std::vector<Tensor> in_grad{d_o};
    in_grad.insert(in_grad.end(), in.begin(), in.end());
    in_grad.insert(in_grad.end(), truth.begin(), truth.end());
    const std::vector<Tensor> gradients =
        reference::run(Op::attention_grad, ring.of_whole(), in_grad, {q.shape, k.shape, v.shape});

    Tensor o(d_o.shape), dq(q.shape), dk(k.shape), dv(v.shape);
    for (std::int64_t rank = 0; rank < ring.ranks; ++rank) {
      const Tensor own_q = part_of(ring, q, rank), own_do = part_of(ring, d_o, rank);
      const auto source = [&](std::int64_t step) { return (rank - step + ring.ranks) % ring.ranks; };
      const auto operands = [&](std::int64_t step) {
        std::vector<Tensor> all{own_q, part_of(ring, k, source(step)), part_of(ring, v, source(step))};
        if (ring.masked()) all.push_back(ring.mask());
        return all;
      };
      std::vector<Tensor> so_far;
      for (std::int64_t step = 0; step < ring.ranks; ++step) {
        std::vector<Tensor> block = operands(step);
        block.insert(block.end(), so_far.begin(), so_far.end());
        so_far = reference::run(Op::attention_block, ring.of_step(step), block, {ring.results(), ring.sums()}, rank);
      }
      each_element(ring, rank, o.shape[2], [&](std::int64_t i, std::int64_t at) { o[at] = so_far[0][i]; });
      std::vector<Tensor> dq_so_far;
      for (std::int64_t step = 0; step < ring.ranks; ++step) {
        std::vector<Tensor> block = operands(step);
        block.insert(block.begin(), own_do);
        block.insert(block.end(), so_far.begin(), so_far.end());
        block.insert(block.end(), dq_so_far.begin(), dq_so_far.end());
        const std::vector<Tensor> made = reference::run(Op::attention_block_grad, ring.of_step(step), block,
                                                        {own_q.shape, block[2].shape, block[3].shape}, rank);
        dq_so_far = {made[0]};
        const auto add = [&](const Tensor& from, Tensor& to) {
          each_element(ring, source(step), to.shape[2], [&](std::int64_t i, std::int64_t at) { to[at] += from[i]; });
        };
        add(made[1], dk);
        add(made[2], dv);
      }
      each_element(ring, rank, dq.shape[2], [&](std::int64_t i, std::int64_t at) { dq[at] = dq_so_far[0][i]; });
    }
    CHECK(worst(o, truth[0]) < 1e-12);
    CHECK(worst(dq, gradients[0]) < 1e-12);
    CHECK(worst(dk, gradients[1]) < 1e-12);
    CHECK(worst(dv, gradients[2]) < 1e-12);
  }
}
