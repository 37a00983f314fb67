// attention and attention_grad against their sums in f64, on every device.
#include "kernels/attention.h"

#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/kernels/attention_case.h"
#include "tests/temporary.h"

using namespace trainer;
using namespace trainer::kernels::test;
using namespace trainer::kernels::test::attention;

TEST_CASE("attention and its gradient equal the naive sums, whatever the sizes") {
  for (DType dtype : compute_dtypes()) {
    for (std::int64_t seq : {1, 2, 17, 63, 64, 65, 127, 129})
      for (bool causal : {true, false}) check_case({1, seq, 2, 1, 16, causal, true, 0, dtype}, few_runners());
    for (std::int64_t dim : {1, 7, 8, 32, 33, 48, 64, 80, 100, 128})
      check_case({1, 70, 1, 1, dim, true, true, 0, dtype}, few_runners());
    check_case({1, 130, 1, 1, 256, false, true, 0, dtype}, few_runners());
    check_case({3, 96, 1, 1, 24, true, true, 0, dtype}, runners());
    check_case({1, 256, 1, 1, 64, true, true, 0, dtype}, few_runners());
    check_case({1, 128, 2, 1, 128, false, false, 0, dtype}, few_runners());
  }
}

TEST_CASE("grouped heads, separate operands and RoPE go together") {
  for (DType dtype : compute_dtypes())
    for (bool packed : {true, false})
      for (double theta : {0.0, 10000.0})
        for (const auto& [heads, kv_heads] : {std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 1}})
          check_case(
              {heads == 4 ? 1 : 2, 67, heads, kv_heads, packed ? 20 : 16, packed == (theta > 0), packed, theta, dtype},
              few_runners());
  for (DType dtype : compute_dtypes()) check_case({1, 33, 8, 1, 32, true, true, 10000.0, dtype}, few_runners());
}

TEST_CASE("RoPE of a long head: whole tiles, and the largest head there is") {
  for (DType dtype : compute_dtypes())
    for (std::int64_t dim : {64, 128, 256})
      check_case({1, 66, 1, 1, dim, true, dim != 128, 500.0, dtype}, few_runners());
}

TEST_CASE("RoPE of neighbours, of a part of a head, and with scaled frequencies") {
  for (DType dtype : compute_dtypes())
    for (const Case& c : rope_cases(dtype)) check_case(c, few_runners());
}

TEST_CASE("scores with a scale of their own, a softcap, and keys within a window") {
  for (DType dtype : compute_dtypes())
    for (const Case& c : score_cases(dtype)) check_case(c, few_runners());
}

TEST_CASE("keys and values of another sequence than the queries") {
  for (DType dtype : compute_dtypes())
    for (const Case& c : cross_cases(dtype)) check_case(c, few_runners());
}

TEST_CASE("samples that are padded: keys from a sample's length on are not seen, and get no gradient") {
  for (DType dtype : compute_dtypes())
    for (const Case& c : length_cases(dtype)) check_case(c, few_runners());
}

TEST_CASE("documents of a row: a position sees its own, positions start again in each, padding is 0") {
  for (DType dtype : compute_dtypes())
    for (const Case& c : document_cases(dtype)) check_case(c, few_runners());
}

TEST_CASE("documents: what lies in other documents and in padding touches no bit of one") {
  for (DType dtype : compute_dtypes()) {
    Case c{2, 150, 2, 1, 16, true, false, 100.0, dtype};
    c.documents = documents_of(150, {{40, 70, 30}, {1, 149}});
    const Inputs in = inputs_of(c);
    Inputs other = in;
    const auto elsewhere = [&](std::int64_t row) { return row < 150 && (row < 40 || row >= 110); };
    for (Doubles* part : {&other.q, &other.k, &other.v, &other.d_o})
      for (std::size_t i = 0; i < part->size(); ++i)
        if (elsewhere(static_cast<std::int64_t>(i / (part->size() / 300))))
          (*part)[i] = rounded(dtype, (*part)[i] * 1e3 + 7);
    Run before = run_forward(c, in, best_runner()), after = run_forward(c, other, best_runner());
    const Outputs a = outputs_of(c, before), b = outputs_of(c, after);
    CHECK(std::equal(a.o.begin() + 40 * 32, a.o.begin() + 110 * 32, b.o.begin() + 40 * 32));
    CHECK_FALSE(std::equal(a.o.begin(), a.o.begin() + 40 * 32, b.o.begin()));
    CHECK(std::all_of(a.o.begin() + 140 * 32, a.o.begin() + 150 * 32, [](double x) { return x == 0; }));
    Run grad_before = run_backward(c, in, rounded(c, a), best_runner()),
        grad_after = run_backward(c, other, rounded(c, b), best_runner());
    const Gradients x = gradients_of(c, grad_before), y = gradients_of(c, grad_after);
    CHECK(std::equal(x.dq.begin() + 40 * 32, x.dq.begin() + 110 * 32, y.dq.begin() + 40 * 32));
    CHECK(std::equal(x.dk.begin() + 40 * 16, x.dk.begin() + 110 * 16, y.dk.begin() + 40 * 16));
    CHECK(std::equal(x.dv.begin() + 40 * 16, x.dv.begin() + 110 * 16, y.dv.begin() + 40 * 16));
  }
}

TEST_CASE("numbers of documents that descend, or are less than -1, are an error that names the place") {
  for (const auto& [number, position] : {std::pair{0, 30}, {-2, 66}, {1, 66}}) {
    Case c{2, 67, 1, 1, 16, false, true};
    c.documents = documents_of(67, {{67}, {20, 40}});
    c.documents[static_cast<std::size_t>(67 + position)] = number;
    const Inputs in = inputs_of(c);
    for (Runner* runner : few_runners()) {
      CAPTURE(runner->name());
      const std::string said = tests::message_of<DataError>([&] { run_forward(c, in, *runner); });
      CHECK(said == "document " + std::to_string(number) + " at position " + std::to_string(position) +
                        " of sample 1 of the batch: numbers of documents are 0 or more and never descend, but for -1 "
                        "at the end");
    }
  }
}

TEST_CASE("a length of no key, or of more than there are, is an error that names the sample") {
  for (const std::int32_t wrong : {0, -3, 68}) {
    Case c{2, 67, 1, 1, 16, false, true};
    c.lengths = {12, wrong};
    const Inputs in = inputs_of(c);
    for (Runner* runner : few_runners()) {
      CAPTURE(runner->name());
      const std::string said = tests::message_of<DataError>([&] { run_forward(c, in, *runner); });
      CHECK(said == "length " + std::to_string(wrong) + " of sample 1 of the batch is outside of 1 to 67");
    }
  }
}

TEST_CASE("heads of values of another size than those of keys") {
  for (DType dtype : compute_dtypes())
    for (const Case& c : value_cases(dtype)) check_case(c, few_runners());
}

TEST_CASE("queries of a part of the sequence: the first, in the middle, the last, on any boundary") {
  for (DType dtype : compute_dtypes())
    for (const auto& [seq, keys, origin] : kParts) {
      check_case({1, seq, 2, 1, 16, true, false, 10000.0, dtype, keys, origin}, few_runners());
      check_case({2, seq, 1, 1, 12, origin % 2 == 0, false, 0, dtype, keys, origin}, few_runners());
    }
  for (DType dtype : compute_dtypes()) check_case({1, 40, 1, 1, 256, true, false, 0, dtype, 150, 30}, few_runners());
  for (DType dtype : compute_dtypes())
    check_case({1, 20, 4, 2, 100, false, false, 500.0, dtype, 70, 50}, few_runners());
}

TEST_CASE("a long odd sequence") {
  check_case({1, 777, 2, 1, 8, true, true, 0, DType::f32}, few_runners());
  check_case({1, 601, 1, 1, 10, true, false, 500.0, DType::bf16}, few_runners());
}

TEST_CASE("causal: a later token does not touch the bits of an earlier one") {
  for (DType dtype : compute_dtypes()) {
    const Case c{1, 140, 2, 2, 16, true, false, 0, dtype};
    const Inputs in = inputs_of(c);
    Runner& runner = best_runner();
    Run run = run_forward(c, in, runner);
    const Outputs before = outputs_of(c, run);
    for (std::int64_t changed : {3, 70, 139}) {
      Inputs other = in;
      for (std::size_t d = 0; d < 32; ++d) {
        double &k = other.k[static_cast<std::size_t>(changed) * 32 + d],
               &v = other.v[static_cast<std::size_t>(changed) * 32 + d];
        k = rounded(dtype, k + 5), v = rounded(dtype, v * 1e4);
      }
      Run rerun = run_forward(c, other, runner);
      const Outputs after = outputs_of(c, rerun);
      CHECK(std::equal(before.o.begin(), before.o.begin() + changed * 32, after.o.begin()));
      CHECK_FALSE(std::equal(before.o.begin() + changed * 32, before.o.begin() + (changed + 1) * 32,
                             after.o.begin() + changed * 32));
    }
  }
}

TEST_CASE("scores in the thousands neither overflow nor vanish") {
  const Case c{1, 100, 2, 1, 32, true, true, 0, DType::f32};
  const Inputs in = inputs_of(c, 5, 30);  // scores up to some 30² · √32 = 5000
  const Outputs truth = reference(c, in);
  for (Runner* runner : few_runners()) {
    Run run = run_forward(c, in, *runner);
    const Outputs out = outputs_of(c, run);
    for (std::size_t i = 0; i < out.lse.size(); ++i) CHECK(std::abs(out.lse[i] - truth.lse[i]) <= 16 * 0x1p-23 * 5000);
    for (std::size_t i = 0; i < out.o.size(); ++i)
      CHECK(std::abs(out.o[i] - truth.o[i]) <= 4 * 16 * 0x1p-23 * 5000);  // |v| ≤ 4 or so
    Run backward = run_backward(c, in, rounded(c, truth), *runner);
    const Gradients g = gradients_of(c, backward);
    for (const Doubles* part : {&g.dq, &g.dk, &g.dv})
      CHECK(std::all_of(part->begin(), part->end(), [](double x) { return std::isfinite(x); }));
  }
}

TEST_CASE("a score that is not a number reaches the output") {
  for (DType dtype : compute_dtypes()) {
    const Case c{1, 70, 1, 1, 16, true, false, 0, dtype};
    Inputs in = inputs_of(c);
    in.k[3] = NAN;
    for (Runner* runner : few_runners()) {
      Run run = run_forward(c, in, *runner);
      const Outputs out = outputs_of(c, run);
      CHECK(std::all_of(out.o.begin(), out.o.end(), [](double x) { return std::isnan(x); }));
    }
  }
}

TEST_CASE("operands that do not fit are refused") {
  const auto prepare = [](const Signature& s) {
    Run run = prepared_run(s);
    launch(s, best_runner(), run);
  };
  const Case c;
  Signature s = signature_of(c, Op::attention);
  s.attributes.set("kv_heads", std::int64_t{3});
  CHECK_THROWS_AS(prepare(s), Bug);
  s = signature_of(Case{.dim = 7, .theta = 10000.0}, Op::attention);
  CHECK_THROWS_WITH_AS(prepare(s), doctest::Contains("even part of a head"), Bug);
  s = signature_of(Case{.causal = false, .window = 3}, Op::attention);
  CHECK_THROWS_WITH_AS(prepare(s), doctest::Contains("a window is of causal attention"), Bug);
  s = signature_of(c, Op::attention_grad);
  s.operands[0].shape = Shape{1, 2, 3};
  CHECK_THROWS_WITH_AS(prepare(s), doctest::Contains("operand 0"), Bug);
  s = signature_of(Case{.packed = false, .keys = 64}, Op::attention);  // of 65 queries
  CHECK_THROWS_WITH_AS(prepare(s), doctest::Contains("queries are a part of the keys' sequence"), Bug);
  for (std::int64_t origin : {-1, 1}) {  // all queries are there, so that they begin at 0
    for (bool packed : {true, false}) {
      const Case whole{.packed = packed};
      Run run = prepared_run(signature_of(whole, Op::attention));
      CHECK_THROWS_WITH_AS(launch(signature_of(whole, Op::attention), best_runner(), run, origin),
                           doctest::Contains("of a sequence of 65"), Bug);
    }
  }
}
