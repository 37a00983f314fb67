// The list of ops is complete and agrees with itself; costs agree with formulas of others.
#include <doctest/doctest.h>

#include <algorithm>

#include "engine/core/error.h"
#include "engine/core/matrix_list.h"
#include "engine/ops/op_def.h"
#include "tests/transform/files.h"

namespace trainer {
namespace {

using test::model;

double flops_of(const Graph& graph) {
  double flops = 0;
  for (const Node& node : graph.nodes) flops += cost_of(signature_of(graph, node)).flops;
  return flops;
}

bool stands_in_no_graph(Op op) { return op >= Op::sgd; }

TEST_CASE("every op is declared under its own name") {
  REQUIRE(definitions().size() == static_cast<std::size_t>(kNumOps));
  for (int i = 0; i < kNumOps; ++i) {
    const OpDef& def = definitions()[static_cast<std::size_t>(i)];
    CAPTURE(std::string(name_of(static_cast<Op>(i))));
    CHECK(def.op == static_cast<Op>(i));
    CHECK(def.min_inputs <= def.max_inputs);
  }
}

TEST_CASE("ops of graph files have shapes, a gradient and a sharding rule; gradients have a sharding rule") {
  for (const OpDef& def : definitions()) {
    const std::string name(name_of(def.op));
    CAPTURE(name);
    const bool in_graph_files = has(def.op, Trait::graph_file);
    CHECK(in_graph_files == (def.op <= Op::mse));
    CHECK(static_cast<bool>(def.infer) == in_graph_files);
    const bool composite = has(def.op, Trait::composite);
    // Other nodes stand for it in training.
    const bool trains = in_graph_files && def.op != Op::batch_norm && !composite;
    CHECK(static_cast<bool>(def.gradient) ==
          (trains || (is_collective(def.op) && def.op != Op::shift) || def.op == Op::batch_norm_apply ||
           def.op == Op::cross_entropy_gathered || def.op == Op::sequence_nll || def.op == Op::dpo_loss ||
           def.op == Op::over_root || def.op == Op::route || def.op == Op::expert_linear || def.op == Op::dispatch ||
           def.op == Op::combine || def.op == Op::quantized_linear || def.op == Op::cast || def.op == Op::glu));
    if (def.op < Op::zero) CHECK(static_cast<bool>(def.shard) != composite);
    if (stands_in_no_graph(def.op)) CHECK(!def.shard);
  }
}

TEST_CASE("losses say how they are counted") {
  for (const OpDef& def : definitions()) {
    CHECK(def.loss.has_value() == (def.op == Op::cross_entropy || def.op == Op::cross_entropy_gathered ||
                                   def.op == Op::mse || def.op == Op::dpo_loss));
  }
}

// PaLM's appendix B counts 6N + 12 LHQT per token, N without embeddings that are only looked up; a causal mask halves
// the second term. Here N is of the matrices alone, the tied head among them.
TEST_CASE("a step of GPT-2 124M takes 6N + 6LCT FLOPs a token") {
  const double layers = 12, dim = 768, vocab = 50257;
  for (const double seq : {64.0, 1024.0}) {
    Graph graph = model("gpt2", {}, test::text_options(4, static_cast<std::int64_t>(seq)));
    const double matrices = layers * 12 * dim * dim + vocab * dim, tokens = 4 * seq;
    CHECK(flops_of(graph) == doctest::Approx(tokens * (2 * matrices + 2 * layers * dim * seq)).epsilon(1e-12));
    differentiate(graph, DType::f32);
    CHECK(flops_of(graph) == doctest::Approx(tokens * (6 * matrices + 6 * layers * dim * seq)).epsilon(1e-12));
  }
}

TEST_CASE("full recomputation adds the forward FLOPs of the blocks but for the last projection of each") {
  Graph none = model("gpt2", {}, test::text_options(1, 64));
  differentiate(none, DType::f32);
  Graph full = none;
  recompute(full, {RecomputePolicy::Mode::full, 1});
  const double layers = 12, dim = 768, seq = 64;
  CHECK(flops_of(full) - flops_of(none) ==
        doctest::Approx(seq * layers * (2 * 8 * dim * dim + 2 * dim * seq)).epsilon(1e-12));
}

TEST_CASE("bytes are those of the operands, each read or written once") {
  const TensorDesc x{DType::bf16, {4, 8, 16}}, weight{DType::bf16, {32, 16}}, y{DType::bf16, {4, 8, 32}},
      dweight{DType::f32, {32, 16}};
  const Cost linear = cost_of({Op::linear, {{"bias", false}}, {x, weight, y}});
  CHECK(linear.flops == 2.0 * 4 * 8 * 16 * 32);
  CHECK(linear.bytes_read == 4 * 8 * 16 * 2 + 32 * 16 * 2);
  CHECK(linear.bytes_written == 4 * 8 * 32 * 2);
  const Cost gradient = cost_of({Op::linear_grad_weight, {{"bias", false}, {"accumulate", true}}, {x, y, dweight}});
  CHECK(gradient.flops == linear.flops);
  CHECK(gradient.bytes_read == (4 * 8 * 16 + 4 * 8 * 32) * 2 + 32 * 16 * 4);
  CHECK(gradient.bytes_written == 32 * 16 * 4);
  const Cost activated = cost_of({Op::linear, {{"bias", false}, {"gelu", true}, {"pre", true}}, {x, weight, y, y}});
  CHECK(activated.flops == linear.flops);
  CHECK(activated.bytes_read == linear.bytes_read);
  CHECK(activated.bytes_written == 2 * linear.bytes_written);
  const TensorDesc ids{DType::i32, {4, 8}}, table{DType::bf16, {1000, 16}}, rows{DType::bf16, {4, 8, 16}};
  const Cost embedding = cost_of({Op::embedding, {}, {ids, table, rows}});
  CHECK(embedding.bytes_read == 4 * 8 * 4 + 4 * 8 * 16 * 2);
}

// By counting: query x of a sequence sees the keys up to x, the last `window` of them.
TEST_CASE("where queries are cut over ranks, the busiest has as many times the mean's pairs as counting finds") {
  const std::int64_t keys = 4096, dim = 64;
  const auto told = [&](std::int64_t ranks, std::int64_t window, bool causal) {
    const TensorDesc q{DType::bf16, {2, keys / ranks, dim}}, k{DType::bf16, {2, keys, dim}},
        lse{DType::f32, {2, 1, keys / ranks}};
    const Attributes attributes{{"heads", std::int64_t{1}},
                                {"kv_heads", std::int64_t{1}},
                                {"causal", causal},
                                {"packed", false},
                                {"window", window}};
    const double forward = busiest({Op::attention, attributes, {q, k, k, q, lse}});
    CHECK(busiest({Op::attention_grad, attributes, {q, q, k, k, q, lse, q, k, k}}) == forward);
    return forward;
  };
  for (const std::int64_t ranks : {1, 2, 4, 16})
    for (const std::int64_t window : {0, 100, 1024, 2048, 3000}) {
      CAPTURE(ranks);
      CAPTURE(window);
      double most = 0, sum = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        double pairs = 0;
        for (std::int64_t x = rank * keys / ranks; x < (rank + 1) * keys / ranks; ++x)
          pairs += static_cast<double>(window > 0 ? std::min(window, x + 1) : x + 1);
        most = std::max(most, pairs);
        sum += pairs;
      }
      CHECK(told(ranks, window, true) == doctest::Approx(most / (sum / static_cast<double>(ranks))).epsilon(0.002));
      CHECK(told(ranks, window, false) == 1);
    }
}

TEST_CASE("AdamW moves 28 bytes a parameter under f32, 30 with a bf16 working copy") {
  const TensorDesc flat{DType::f32, {1000}}, one{DType::f32, {1}}, scalars{DType::f32, {4}}, applied{DType::i32, {1}},
      working{DType::bf16, {1000}};
  const Cost f32 = cost_of({Op::adamw, {{"working", false}}, {flat, flat, flat, flat, one, scalars, applied}});
  CHECK(f32.bytes_read + f32.bytes_written == doctest::Approx(28 * 1000).epsilon(0.001));
  const Cost bf16 = cost_of({Op::adamw, {{"working", true}}, {flat, flat, flat, flat, one, scalars, applied, working}});
  CHECK(bf16.bytes_read + bf16.bytes_written == doctest::Approx(30 * 1000).epsilon(0.001));
}

TEST_CASE("AdamW moves 20 bytes a parameter with states in bf16, and 16 with int8 and its scales") {
  const TensorDesc flat{DType::f32, {1024}}, bf16{DType::bf16, {1024}}, codes{DType::u8, {1024}},
      scales{DType::f32, {4}}, one{DType::f32, {1}}, applied{DType::i32, {1}};
  const Cost half = cost_of({Op::adamw, {{"working", false}}, {flat, flat, bf16, bf16, one, scales, applied}});
  CHECK(half.bytes_read + half.bytes_written == 20 * 1024 + 4 + 16 + 4);
  const Cost eighth =
      cost_of({Op::adamw, {{"working", true}}, {flat, flat, codes, scales, codes, scales, one, scales, applied, bf16}});
  CHECK(eighth.bytes_read + eighth.bytes_written == (12 + 4 + 2) * 1024 + 4 * 16 + 4 + 16 + 4);
  CHECK(eighth.flops == 0);
}

TEST_CASE(
    "Muon takes its products' FLOPs, of the owner that has the most, and moves the momentum and what it makes of it") {
  const std::int64_t n = 1000;
  const TensorDesc flat{DType::f32, {n}}, two{DType::f32, {2, n}}, one{DType::f32, {1}}, scalars{DType::f32, {4}},
      applied{DType::i32, {1}}, codes{DType::u8, {n}}, scales{DType::f32, {4}};
  const auto flops = [&](const TensorDesc& x, const std::string& matrices) {
    return cost_of({Op::muon_orthogonalize, {{"steps", std::int64_t{5}}, {"matrices", matrices}}, {x, scalars}}).flops;
  };
  const TensorDesc alone{DType::f32, {1, n}};
  const double a = 5 * (4.0 * 10 * 10 * 40 + 2.0 * 10 * 10 * 10), b = 5 * (4.0 * 20 * 20 * 30 + 2.0 * 20 * 20 * 20);
  CHECK(flops(alone, "0:10:40:-:0") == a);
  CHECK(flops(alone, "0:40:10:-:0,400:20:30:-:0") == a + b);
  CHECK(flops(alone, "0:40:10:-:0,400:20:30:-:1") == b);
  CHECK(flops(two, "0:5:40:0:3,400:20:15:1:3") == a + b);
  CHECK(flops(alone, "") == 0);
  const Cost momentum = cost_of({Op::muon_momentum, {}, {flat, codes, scales, scalars, applied, flat}});
  const Cost update = cost_of({Op::muon, {{"working", false}}, {flat, flat, one, scalars, applied}});
  CHECK(update.bytes_read + update.bytes_written == 12 * n + 4 + 16 + 4);
  CHECK(momentum.bytes_read + momentum.bytes_written == (4 + 1 + 1 + 4) * n + 2 * 16 + 16 + 4);
}

TEST_CASE(
    "each op of an optimizer takes the gradient or the update of ops before it, and leaves one update or the weights") {
  using Of = UpdateDef::Operand;
  for (const OpDef& def : definitions()) {
    if (!def.update) continue;
    CAPTURE(name_of(def.op));
    const auto count = [&](std::initializer_list<Of> of) {
      return std::ranges::count_if(of, [&](Of one) { return def.update->has(one); });
    };
    CHECK(count({Of::gradient, Of::taken, Of::changed}) == 1);
    CHECK(count({Of::made, Of::changed, Of::master}) == 1);
    CHECK(count({Of::working, Of::rate}) == 2 * count({Of::master}));
    CHECK(def.update->has(Of::gradient) == def.update->follows.empty());
    for (Op op : def.update->follows)
      CHECK((definition(op).update->has(Of::made) || definition(op).update->has(Of::changed)));
    if (def.update->whole) CHECK(count({Of::changed, Of::gradient, Of::states, Of::master}) == count({Of::changed}));
  }
}

TEST_CASE("the list of owned matrices is read as it was written, and what is none is a bug") {
  const std::vector<OwnedMatrix> matrices = {{0, 10, 20, OwnedMatrix::Cut::none, 0},
                                             {256, 3, 5, OwnedMatrix::Cut::rows, 12},
                                             {271, 7, 1, OwnedMatrix::Cut::columns, 1}};
  CHECK(matrix_list_text(matrices) == "0:10:20:-:0,256:3:5:0:12,271:7:1:1:1");
  CHECK(matrix_list(matrix_list_text(matrices)) == matrices);
  CHECK(matrix_list("").empty());
  CHECK(matrices[1].whole_rows(4) == 12);
  CHECK(matrices[1].whole_cols(4) == 5);
  CHECK(matrices[2].whole_cols(4) == 4);
  for (const char* text :
       {"0:10:20", "0:10:20:-", "0:10:20:2:0", "0:10:20:-:0,,", "a:1:1:-:0", "0:1 :1:-:0", "0:10:20:-:0,199:1:1:-:0",
        "0:0:20:-:0", "-1:1:1:-:0", "0:10:20:--:0", "0:10:20:-:-1", "0:10:20:-:0:0", "0:10:99999999999999999999:-:0"})
    CHECK_THROWS_AS(matrix_list(text), Bug);
}

}  // namespace
}  // namespace trainer
