// Expressions of graph files.
#include "engine/job/expression.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/nearest.h"

namespace trainer::expression_test {
namespace {

const Variables kVariables{{"layers", ParamValue(12.0)},
                           {"heads", ParamValue(4.0)},
                           {"dim", ParamValue(64.0)},
                           {"index", ParamValue(3.0)},
                           {"x_1", ParamValue(0.5)}};

double value(std::string_view text) {
  const ParamValue result = evaluate(text, kVariables);
  REQUIRE(result.number() != nullptr);
  return *result.number();
}

/// "offset message"; empty if the expression has a value.
std::string mistake(std::string_view text) {
  try {
    value(text);
  } catch (const ExpressionError& error) {
    return std::to_string(error.offset) + " " + error.what() +
           (error.suggestion.empty() ? "" : " ~" + error.suggestion);
  }
  return "";
}

TEST_CASE("operators bind as in arithmetic") {
  CHECK(value("1 + 2 * 3") == 7);
  CHECK(value("(1 + 2) * 3") == 9);
  CHECK(value("10 - 4 - 3") == 3);
  CHECK(value("24 / 4 / 3") == 2);
  CHECK(value("-2 ** 2") == -4);
  CHECK(value("2 ** 3 ** 2") == 512);
  CHECK(value("2 ** -1") == 0.5);
  CHECK(value("--3") == 3);
  CHECK(value("7 // 2") == 3);
  CHECK(value("-7 // 2") == -4);
  CHECK(value("7 % 3") == 1);
  CHECK(value("-7 % 3") == 2);
  CHECK(value("2 * 3 % 4") == 2);
  CHECK(value("1_000 + 1e2 + .5") == 1100.5);
}

TEST_CASE("comparisons are 1 or 0") {
  CHECK(value("layers > 2") == 1);
  CHECK(value("layers >= 12") == 1);
  CHECK(value("layers < 2 + 3") == 0);
  CHECK(value("heads <= 3") == 0);
  CHECK(value("heads == 4") == 1);
  CHECK(value("heads != 4") == 0);
}

ParamValue any(std::string_view text) {
  Variables variables = kVariables;
  const auto word = [](const char* text) { return ParamValue(std::string(text)); };
  variables["kinds"] = ParamValue(ParamValue::List{word("full"), word("sliding"), ParamValue()});
  variables["act"] = word("silu");
  variables["none"] = ParamValue();
  variables["rope.factor"] = ParamValue(8.0);
  return evaluate(text, variables);
}

TEST_CASE("words, lists and null have values; what is not taken is not evaluated") {
  CHECK(any("act == 'silu'") == ParamValue(1.0));
  CHECK(any("act == 'gelu' or kinds[1] != 'full'") == ParamValue(1.0));
  CHECK(any("not none and true") == ParamValue(1.0));
  CHECK(any("none ?? layers") == ParamValue(12.0));
  CHECK(any("heads ?? none / 0") == ParamValue(4.0));
  CHECK(any("none ?? null") == ParamValue());
  CHECK(any("rope.factor * 2") == ParamValue(16.0));
  CHECK(any("if none == null then 1 else none + 1") == ParamValue(1.0));
  CHECK(any("if none then 1 / 0 else if act == 'silu' then 2 else 3") == ParamValue(2.0));
  CHECK(any("none and 1 / 0") == ParamValue(0.0));
  CHECK(any("kinds[2]") == ParamValue());
  CHECK(any("layers[index]") == ParamValue(12.0));  // one value for every layer
  CHECK(any("[1, [2]][1][0]") == ParamValue(2.0));
  CHECK(any("each(i, 3, if i % 2 == 0 then 'a' else null)") ==
        ParamValue(ParamValue::List{ParamValue(std::string("a")), ParamValue(), ParamValue(std::string("a"))}));
  CHECK(any("each(i, 2, each(j, i + 1, 10 * i + j))[1][1]") == ParamValue(11.0));
  CHECK(any("each(i, 0, i)") == ParamValue(ParamValue::List{}));
  CHECK(any("sum(each(i, 4, 10 * i)) + len([7, 8, 9]) + sum([])") == ParamValue(63.0));
  CHECK(any("if true then 1 else len(3)") == ParamValue(1.0));
  CHECK(text_of(any("[1, 'a', null, 0.5]")) == "[1, 'a', null, 0.5]");
}

TEST_CASE("a value of the wrong kind is named at its place") {
  const auto told = [](std::string_view text) {
    try {
      any(text);
    } catch (const ExpressionError& error) {
      return std::to_string(error.offset) + " " + error.what();
    }
    return std::string();
  };
  CHECK(told("1 + act") == "4 a number is needed, and this is 'silu'");
  CHECK(told("none * 2") == "0 a number is needed, and this is null");
  CHECK(told("kinds[3]") == "6 a list of 3 has no element 3");
  CHECK(told("kinds[0.5]") == "6 an element is named by a whole number");
  CHECK(told("if 1 then 2") == "11 \"if\" without \"else\"");
  CHECK(told("'silu") == "0 a word without its second \"'\"");
  CHECK(told("len(3)") == "4 a list is needed, and this is 3");
  CHECK(told("sum(['a'])") == "4 a number is needed, and this is 'a'");
  CHECK(told("sum([1]") == "7 sum() takes one argument");
  CHECK(told("each(i, 1e9, i)") == "8 a list has 0 to 100000 elements");
  CHECK(told("each(i, 9e4, each(j, 9e4, 1))").ends_with("an expression that takes too long"));
  CHECK(told("then") == "0 unexpected \"then\" in an expression");
}

TEST_CASE("names are params, and functions are called") {
  CHECK(value("layers * 3") == 36);
  CHECK(value("0.02 / sqrt(2 * layers)") == 0.02 / std::sqrt(24.0));
  CHECK(value("x_1") == 0.5);
  CHECK(value("max(3, min(layers, 5))") == 5);
  CHECK(value("ceil(8 / 3 * dim)") == 171);
  CHECK(value("floor(2.7) + round(2.5) + abs(-1)") == 6);
  CHECK(value("pow(2, 10) + log2(8) + exp(0) + log(1)") == 1028);
}

TEST_CASE("a division that comes out even is an integer") {
  CHECK(whole(value("dim / heads * 2")) == 32);
  CHECK_FALSE(whole(value("dim / 3")).has_value());
  CHECK_FALSE(whole(1e17).has_value());
  CHECK_FALSE(whole(NAN).has_value());
  CHECK(whole(-0.0) == 0);
}

TEST_CASE("a mistake in an expression is told at its character, with the nearest name") {
  CHECK(mistake("layer * 3") == "0 unknown name \"layer\" ~layers");
  CHECK(mistake("2 * sqr(3)") == "4 unknown function \"sqr\" ~sqrt");
  CHECK(mistake("1 +") == "3 an expression that ends too early");
  CHECK(mistake("") == "0 an expression that ends too early");
  CHECK(mistake("(1 + 2") == "0 \"(\" without \")\"");
  CHECK(mistake("1 2") == "2 unexpected \"2\" in an expression");
  CHECK(mistake("1 $ 2") == "2 unexpected \"$\" in an expression");
  CHECK(mistake("4 / (heads - 4)") == "2 division by zero");
  CHECK(mistake("4 % 0") == "2 division by zero");
  CHECK(mistake("sqrt(-1)") == "0 the expression has no finite value");
  CHECK(mistake("1.2.3") == "0 \"1.2.3\" is not a number");
  CHECK(mistake("max(1)") == "5 max() takes two arguments");
  CHECK(mistake("sqrt(1, 2)") == "6 sqrt() takes one argument");
  CHECK(mistake("sqrt") == "0 unknown name \"sqrt\"");
}

TEST_CASE("a hostile expression ends in an error, not in the stack's end") {
  CHECK(mistake(std::string(100000, '(')).find("nested too deep") != std::string::npos);
  CHECK(mistake(std::string(100000, '-')).find("nested too deep") != std::string::npos);
  std::string powers = "2";
  for (int i = 0; i < 50000; ++i) powers += "**1";
  CHECK(mistake(powers).find("nested too deep") != std::string::npos);
}

TEST_CASE("a template is one expression and nothing around it") {
  CHECK(evaluate_template("${3 * dim}", kVariables) == ParamValue(192.0));
  CHECK_FALSE(evaluate_template("linear", kVariables).has_value());
  CHECK_THROWS_AS(evaluate_template("x${1}", kVariables), ExpressionError);
  CHECK_THROWS_AS(evaluate_template("${1} ", kVariables), ExpressionError);
  CHECK_THROWS_AS(evaluate_template("${1", kVariables), ExpressionError);
  try {
    evaluate_template("${3 * dmi}", kVariables);
    FAIL("an unknown name passed");
  } catch (const ExpressionError& error) {
    CHECK(error.offset == 6);
    CHECK(error.suggestion == "dim");
  }
}

TEST_CASE("names take expressions in braces") {
  CHECK(substitute("h.{index}", kVariables) == "h.3");
  CHECK(substitute("h.${2 * index}.x", kVariables) == "h.6.x");
  CHECK(substitute("plain", kVariables) == "plain");
  CHECK(substitute("{x_1}", kVariables) == "0.5");
  CHECK_THROWS_AS(substitute("h.{index", kVariables), ExpressionError);
}

TEST_CASE("the nearest name is at most a third away") {
  const std::vector<std::string_view> names{"optimizer", "batch", "steps", "lr_schedule"};
  CHECK(nearest("optimiser", names) == "optimizer");
  CHECK(nearest("bacth", names) == "batch");
  CHECK(nearest("Steps", names) == "steps");
  CHECK(nearest("step", names) == "steps");
  CHECK(nearest("zzz", names).empty());
  CHECK(nearest(std::string(100000, 'x'), names).empty());
}

TEST_CASE("the names that a text reads are those of its expressions, without functions") {
  CHECK(names_in("${0.02 / sqrt(2 * layers)}") == std::vector<std::string>{"layers"});
  CHECK(names_in("${min(dim, 2e3) + heads // 1.5e-2}") == std::vector<std::string>{"dim", "heads"});
  CHECK(names_in("h.{index}.x") == std::vector<std::string>{"index"});
  CHECK(names_in("plain text").empty());
  CHECK(names_in("${rope.factor ?? 1.5}") == std::vector<std::string>{"rope.factor"});
  CHECK(names_in("${if kinds[index] == 'full' then null else window}") ==
        std::vector<std::string>{"kinds", "index", "window"});
}

}  // namespace
}  // namespace trainer::expression_test
