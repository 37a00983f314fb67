// Graphs of the ranks of a tensor axis, with collectives for nodes, against the graph of one rank: losses and gradients
// of every parameter. So the conjugates are held to their promise, and with them the ops that take a piece of the
// whole.
//
// All in f64; what differs is the order of sums of a few dozen terms of order 1: 1e-12.
#include <doctest/doctest.h>

#include <cmath>
#include <random>

#include "engine/ops/op_def.h"
#include "engine/transform/distribute.h"
#include "engine/transform/transform.h"
#include "tests/reference/ranks.h"

namespace trainer::collective_test {

using reference::Interpreter;
using reference::Ranks;
using reference::Tensor;

namespace {

constexpr double kTolerance = 1e-12;
const Attributes kLoss{{"ignore_index", std::int64_t{-100}}, {"label_smoothing", 0.1}};

/// A graph, node by node.
struct Build {
  Graph graph;

  ValueId value(const std::string& name, const Shape& shape, ValueKind kind, DType dtype = DType::f32) {
    Value made;
    made.name = name;
    made.spec.format = dtype;
    made.spec.whole = shape;
    made.kind = kind;
    return graph.add_value(std::move(made));
  }
  ValueId parameter(const std::string& name, const Shape& shape) {
    const ValueId id = value(name, shape, ValueKind::parameter);
    graph.parameters.push_back({id, {}});
    return id;
  }
  /// A node of one output or, of losses, two.
  ValueId node(Op op, Attributes attributes, std::vector<ValueId> inputs, const Shape& shape,
               DType dtype = DType::f32) {
    Node made;
    made.name = std::string(name_of(op)) + std::to_string(graph.nodes.size());
    made.op = op;
    made.attributes = std::move(attributes);
    made.outputs = {value(made.name, shape, ValueKind::activation, dtype)};
    made.inputs = std::move(inputs);
    graph.nodes.push_back(std::move(made));
    return graph.nodes.back().outputs[0];
  }
  void loss(Op op, Attributes attributes, std::vector<ValueId> inputs, std::int64_t lse_rows = 0) {
    graph.loss.sum = node(op, std::move(attributes), std::move(inputs), {1}, DType::f64);
    if (lse_rows > 0) graph.nodes.back().outputs.push_back(value("lse", {lse_rows}, ValueKind::activation));
  }
  void cut(ValueId id, const Placement& placement) { graph.value(id).spec.place(Axis::tensor, placement); }
  void finish() {
    differentiate(graph, DType::f32);
    propagate_placements(graph);
  }
};

Tensor random_tensor(const Shape& shape, std::uint64_t seed) {
  Tensor tensor(shape);
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  for (double& x : tensor.data) x = normal(generator);
  return tensor;
}

/// Rank `rank`'s slice of `count` of dim `dim`; what lies behind the end of the whole is 7.
Tensor slice(const Tensor& whole, int dim, std::int64_t size, int rank) {
  Shape shape = whole.shape;
  shape[dim] = size;
  Tensor piece(shape, 7);
  std::int64_t inner = 1;
  for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  for (std::int64_t i = 0; i < piece.size(); ++i) {
    const std::int64_t at = rank * size + i / inner % size, outer = i / inner / size;
    if (at < whole.shape[dim]) piece[i] = whole[(outer * whole.shape[dim] + at) * inner + i % inner];
  }
  return piece;
}

double off(const Tensor& got, const Tensor& want) {
  double worst = got.size() == want.size() ? 0 : INFINITY;
  for (std::int64_t i = 0; i < got.size() && i < want.size(); ++i)
    worst = std::fmax(worst, std::isnan(got[i]) ? INFINITY : std::fabs(got[i] - want[i]));
  return worst;
}

constexpr std::int64_t kRows = 8, kSamples = 2, kDim = 6, kHidden = 12;  // of the MLP below

/// positions → dropout → linear → gelu → dropout → linear → mse: for one rank, for ranks with all rows, or for ranks
/// with a slice each.
struct Mlp : Build {
  enum class Rows { all, slices };
  ValueId table, w1, b1, w2, b2, target, step;

  Mlp(int ranks, Rows rows) {
    const bool cut_up = ranks > 1, slices = cut_up && rows == Rows::slices;
    graph.mesh = {{Axis::tensor, ranks}};
    const Attributes drop{{"p", 0.3}, {"key", std::int64_t{5}}}, drop_hidden{{"p", 0.3}, {"key", std::int64_t{6}}};
    table = parameter("table", {kRows, kDim});
    w1 = parameter("w1", {kHidden, kDim}), b1 = parameter("b1", {kHidden});
    w2 = parameter("w2", {kDim, kHidden}), b2 = parameter("b2", {kDim});
    target = value("target", {kSamples, kRows / kSamples, kDim}, ValueKind::input);
    step = graph.step = value("step", {1}, ValueKind::scalar, DType::i32);

    ValueId x = node(Op::positions, {}, {table}, {kRows, kDim});
    if (cut_up) graph.nodes.back().once = Axes::of(Axis::tensor);
    x = node(Op::reshape, {}, {x}, {kSamples, kRows / kSamples, kDim});
    graph.value(x).alias_of = graph.nodes.front().outputs[0];
    x = node(Op::dropout, drop, {x, step}, {kSamples, kRows / kSamples, kDim});
    x = node(Op::linear, {{"bias", true}}, {x, w1, b1}, {kSamples, kRows / kSamples, kHidden});
    x = node(Op::gelu, {{"approximate", std::string("tanh")}}, {x}, {kSamples, kRows / kSamples, kHidden});
    x = node(Op::dropout, drop_hidden, {x, step}, {kSamples, kRows / kSamples, kHidden});
    x = node(Op::linear, {{"bias", true}}, {x, w2, b2}, {kSamples, kRows / kSamples, kDim});
    if (cut_up) graph.nodes.back().once = Axes::of(Axis::tensor);
    for (ValueId id : {w1, b1}) cut(id, Placement::shard(0));
    cut(w2, Placement::shard(1));
    graph.logits = x;
    distribute(graph, slices ? Axes::of(Axis::tensor) : Axes{});
    if (slices) cut(target, Placement::shard(Placement::kRows));
    loss(Op::mse, {}, {graph.logits, target});
    finish();
  }
};

constexpr std::int64_t kVocab = 11, kTokens = 9;

/// embedding → linear → head tied to the embedding → cross-entropy: for one rank, or for ranks with a slice of the
/// vocabulary each.
struct Tied : Build {
  ValueId ids, targets, table, w, b, logits;

  explicit Tied(int ranks) {
    graph.mesh = {{Axis::tensor, ranks}};
    ids = value("ids", {kTokens}, ValueKind::input, DType::i32);
    targets = value("targets", {kTokens}, ValueKind::input, DType::i32);
    table = parameter("table", {kVocab, kDim});
    w = parameter("w", {kDim, kDim}), b = parameter("b", {kDim});
    ValueId x = node(Op::embedding, {}, {ids, table}, {kTokens, kDim});
    x = node(Op::linear, {{"bias", true}}, {x, w, b}, {kTokens, kDim});
    logits = node(Op::linear, {{"bias", false}}, {x, table}, {kTokens, kVocab});
    loss(Op::cross_entropy, kLoss, {logits, targets}, kTokens);
    cut(table, Placement::shard(0));
    distribute(graph, {});
    finish();
  }
};

}  // namespace

TEST_CASE("an MLP cut by columns and rows has one rank's loss and gradients, with whole rows between and with slices") {
  const Tensor table = random_tensor({kRows, kDim}, 1), w1 = random_tensor({kHidden, kDim}, 2),
               b1 = random_tensor({kHidden}, 3);
  const Tensor w2 = random_tensor({kDim, kHidden}, 4), b2 = random_tensor({kDim}, 5),
               target = random_tensor({kRows, kDim}, 6);
  const Tensor seed(Shape{1}, 0.5), step(Shape{1}, 3);
  Mlp one(1, Mlp::Rows::all);
  Interpreter whole(one.graph);
  for (const auto& [id, tensor] : {std::pair{one.table, table},
                                   {one.w1, w1},
                                   {one.b1, b1},
                                   {one.w2, w2},
                                   {one.b2, b2},
                                   {one.target, target},
                                   {one.step, step}})
    whole.set(id, tensor);
  whole.set(one.graph.seed, seed);
  whole.run();
  const auto gradient = [&](ValueId id) { return parameter_gradient(one.graph, whole, id); };

  for (int n : {2, 4})
    for (Mlp::Rows rows : {Mlp::Rows::all, Mlp::Rows::slices}) {
      CAPTURE(n);
      const bool slices = rows == Mlp::Rows::slices;
      Mlp many(n, rows);
      Ranks ranks(many.graph, n);
      ranks.set(many.table, table), ranks.set(many.b2, b2), ranks.set(many.step, step),
          ranks.set(many.graph.seed, seed);
      for (int r = 0; r < n; ++r) {
        Interpreter& rank = ranks.rank(r);
        rank.set(many.w1, slice(w1, 0, kHidden / n, r)), rank.set(many.b1, slice(b1, 0, kHidden / n, r)),
            rank.set(many.w2, slice(w2, 1, kHidden / n, r));
        rank.set(many.target, slices ? slice(target, 0, kRows / n, r) : target);
      }
      ranks.run();
      double loss = 0;
      for (int r = 0; r < n; ++r) {
        const Interpreter& rank = ranks.rank(r);
        const auto mine = [&](ValueId id) { return parameter_gradient(many.graph, rank, id); };
        loss += rank.get(many.graph.loss.sum)[0] / (slices ? 1 : n);
        CHECK(off(mine(many.table), gradient(one.table)) < kTolerance);
        CHECK(off(mine(many.w1), slice(gradient(one.w1), 0, kHidden / n, r)) < kTolerance);
        CHECK(off(mine(many.b1), slice(gradient(one.b1), 0, kHidden / n, r)) < kTolerance);
        CHECK(off(mine(many.w2), slice(gradient(one.w2), 1, kHidden / n, r)) < kTolerance);
        CHECK(off(mine(many.b2), gradient(one.b2)) < kTolerance);
      }
      CHECK(std::abs(loss - whole.get(one.graph.loss.sum)[0]) < kTolerance * loss);
    }
}

TEST_CASE("a vocabulary cut over ranks has one rank's loss and gradients, and its padding gets none") {
  Tensor ids = random_tensor({kTokens}, 1), targets(Shape{kTokens});
  for (std::int64_t i = 0; i < kTokens; ++i)
    ids[i] = static_cast<double>(i * 5 % kVocab), targets[i] = static_cast<double>(i == 4 ? -100 : i * 7 % kVocab);
  const Tensor table = random_tensor({kVocab, kDim}, 2), w = random_tensor({kDim, kDim}, 3),
               b = random_tensor({kDim}, 4), seed(Shape{1}, 0.5);
  Tied one(1);
  Interpreter whole(one.graph);
  whole.set(one.ids, ids), whole.set(one.targets, targets), whole.set(one.table, table), whole.set(one.w, w),
      whole.set(one.b, b);
  whole.set(one.graph.seed, seed);
  whole.run();
  const Tensor dtable = parameter_gradient(one.graph, whole, one.table);

  for (int n : {2, 4}) {
    CAPTURE(n);
    const std::int64_t rows = (kVocab + n - 1) / n;
    Tied many(n);
    Ranks ranks(many.graph, n);
    ranks.set(many.ids, ids), ranks.set(many.targets, targets), ranks.set(many.w, w), ranks.set(many.b, b),
        ranks.set(many.graph.seed, seed);
    for (int r = 0; r < n; ++r) ranks.rank(r).set(many.table, slice(table, 0, rows, r));
    ranks.run();
    for (int r = 0; r < n; ++r) {
      const Interpreter& rank = ranks.rank(r);
      const auto mine = [&](ValueId id) { return parameter_gradient(many.graph, rank, id); };
      CHECK(std::abs(rank.get(many.graph.loss.sum)[0] - whole.get(one.graph.loss.sum)[0]) < kTolerance * 100);
      CHECK(off(mine(many.w), parameter_gradient(one.graph, whole, one.w)) < kTolerance);
      CHECK(off(mine(many.b), parameter_gradient(one.graph, whole, one.b)) < kTolerance);
      Tensor want = slice(dtable, 0, rows, r);
      for (std::int64_t i = 0; i < want.size(); ++i) want[i] = r * rows + i / kDim < kVocab ? want[i] : 0;
      CHECK(off(mine(many.table), want) < kTolerance);
    }
  }
}

TEST_CASE("a collective does what its kind says along its own axis, and nothing along the others") {
  const auto placed = [&](Op op, int dim, Axis axis, Placement in) {
    Build build;
    build.graph.mesh = {{Axis::replicate, 2}, {Axis::tensor, 2}};
    const ValueId x = build.value("x", {8, 4, 6}, ValueKind::activation);
    build.graph.value(x).spec.place(axis, in);
    build.node(op, {{"dim", std::int64_t{dim}}}, {x}, {8, 4, 6});
    build.graph.nodes.back().axes = Axes::of(Axis::tensor);
    const auto out = propagate(build.graph, build.graph.nodes.back(), axis);
    return out ? (*out)[0].str() : "refused";
  };
  const Placement whole, batch = Placement::shard(0), middle = Placement::shard(1),
                         rows = Placement::shard(Placement::kRows), partial = Placement::partial();
  for (Op op : {Op::replicate, Op::all_reduce, Op::all_gather, Op::reduce_scatter})
    for (Placement any : {batch, middle, partial}) CHECK(placed(op, 1, Axis::replicate, any) == any.str());
  CHECK(placed(Op::replicate, 0, Axis::tensor, whole) == "Replicate");
  CHECK(placed(Op::all_reduce, 0, Axis::tensor, partial) == "Replicate");
  CHECK(placed(Op::all_gather, 1, Axis::tensor, middle) == "Replicate");
  CHECK(placed(Op::all_gather, Placement::kRows, Axis::tensor, rows) == "Replicate");
  CHECK(placed(Op::reduce_scatter, 1, Axis::tensor, partial) == "Shard(1)");
  CHECK(placed(Op::reduce_scatter, Placement::kRows, Axis::tensor, partial) == "Shard(rows)");
  for (const auto& [op, in] : {std::pair(Op::replicate, partial),
                               {Op::all_reduce, whole},
                               {Op::all_reduce, middle},
                               {Op::all_gather, whole},
                               {Op::all_gather, batch},
                               {Op::all_gather, partial},
                               {Op::reduce_scatter, whole},
                               {Op::reduce_scatter, middle}})
    CHECK(placed(op, 1, Axis::tensor, in) == "refused");
}

}  // namespace trainer::collective_test
