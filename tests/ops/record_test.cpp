// Records agree with themselves, with the rules of the same op, and with the table of kernels/README.md.
// TRAINER_WRITE_OP_TABLE=1 writes that table.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/core/error.h"
#include "engine/core/op_record.h"
#include "engine/ops/op_def.h"

namespace trainer {
namespace {

using Role = OperandDef::Role;
using Type = AttributeDef::Type;

const char* kReadme = TRAINER_SOURCE_DIR "/kernels/README.md";

template <typename Fn>
void each_record(Fn&& fn) {
  for (int op = 0; op < kNumOps; ++op) {
    const std::string name(name_of(static_cast<Op>(op)));
    CAPTURE(name);
    fn(record(static_cast<Op>(op)));
  }
}

// ---- The table ----------------------------------------------------------------------------------------------------

std::string operand_text(const OperandDef& operand) {
  std::string text = fmt::format("{}{} {}", operand.name, operand.many ? "ᵢ…" : "", operand.what);
  if (!operand.when.empty())
    text += operand.when == operand.name ? "?"
            : operand.when[0] == '!'     ? fmt::format(" (unless `{}`)", operand.when.substr(1))
                                         : fmt::format(" (if `{}`)", operand.when);
  if (operand.adds) text += " +";
  if (operand.role == Role::update) text += " (in place)";
  if (!operand.over.empty()) {
    std::string inputs(operand.over);
    if (const auto blank = inputs.find(' '); blank != std::string::npos) inputs.replace(blank, 1, " or ");
    text += fmt::format(" (in place of {})", inputs);
  }
  return text;
}

std::string operands_text(const OpRecord& record) {
  std::string text;
  bool outputs = false;
  for (const OperandDef& operand : record.operands) {
    const bool first_output = operand.role == Role::output && !outputs;
    outputs = outputs || first_output;
    text += first_output ? (text.empty() ? "→ " : " → ") : (text.empty() ? "" : ", ");
    text += operand_text(operand);
  }
  return record.note.empty() ? text : text + ": " + std::string(record.note);
}

std::string value_text(const Attribute& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&value)) return fmt::format("{}", *real);
  return "\"" + std::get<std::string>(value) + "\"";
}

std::string attribute_text(const AttributeDef& def) {
  static constexpr std::array kTypes{"flag", "integer", "real", "", "text", "", "", "list", "pieces"};
  std::string type = kTypes[static_cast<std::size_t>(def.type)];
  for (std::string_view choice : def.choices) type += fmt::format("{}\"{}\"", type.empty() ? "" : " \\| ", choice);
  std::string text = fmt::format("{}: {}", def.name, type);
  if (def.otherwise) text += " = " + value_text(*def.otherwise);
  if (!def.absent.empty()) text += fmt::format(" (absent: {})", def.absent);
  return text;
}

std::string attributes_text(const OpRecord& record) {
  std::string text;
  for (const AttributeDef& def : record.attributes)
    if (def.in_kernel()) text += (text.empty() ? "" : ", ") + attribute_text(def);
  return text;
}

std::string table() {
  std::vector<std::pair<std::string, std::string>> rows;  // names, and what they share
  each_record([&](const OpRecord& record) {
    if (record.work == WorkClass::none) return;
    const std::string attributes = attributes_text(record);
    const std::string rest =
        fmt::format(" | {} |{}{}\n", operands_text(record), attributes.empty() ? "" : " " + attributes, " |");
    const std::string name = fmt::format("`{}`", name_of(record.op));
    if (!rows.empty() && rows.back().second == rest)
      rows.back().first += " " + name;
    else
      rows.emplace_back(name, rest);
  });
  std::string text = "| op | operands | attributes |\n|---|---|---|\n";
  for (const auto& [names, rest] : rows) text += "| " + names + rest;
  return text;
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

}  // namespace

TEST_CASE("the table of kernels/README.md is that of the records") {
  std::string readme = contents(kReadme);
  const std::size_t begin = readme.find("| op | operands"), end = readme.find("\n\n", begin) + 1;
  REQUIRE(begin != std::string::npos);
  REQUIRE(end != std::string::npos + 1);
  if (std::getenv("TRAINER_WRITE_OP_TABLE") != nullptr) {
    std::ofstream(kReadme) << readme.replace(begin, end - begin, table());
    return;
  }
  CHECK_MESSAGE(readme.substr(begin, end - begin) == table(),
                "run build/tests/test_graph with TRAINER_WRITE_OP_TABLE=1");
}

TEST_CASE("names of operands and attributes are unique, and conditions are flags of the op") {
  each_record([](const OpRecord& record) {
    std::set<std::string_view> operands, attributes;
    for (const AttributeDef& def : record.attributes) {
      CHECK(attributes.insert(def.name).second);
      CHECK_FALSE((def.otherwise && !def.absent.empty()));
      CHECK(def.help.empty() == !def.in_file());
      CHECK((def.type == Type::choice) == !def.choices.empty());
    }
    for (const OperandDef& operand : record.operands) {
      CHECK(operands.insert(operand.name).second);
      CHECK_FALSE((operand.adds && operand.role != Role::output));
      if (operand.when.empty()) continue;
      const AttributeDef* flag = record.attribute(operand.when.substr(operand.when[0] == '!' ? 1 : 0));
      REQUIRE(flag != nullptr);
      CHECK(flag->type == Type::flag);
      CHECK(flag->otherwise);
    }
  });
}

TEST_CASE("defaults are of their attribute's type and in its range") {
  each_record([](const OpRecord& record) {
    for (const AttributeDef& def : record.attributes) {
      if (!def.otherwise) continue;
      const std::string name(def.name);
      CAPTURE(name);
      switch (def.type) {
        case Type::flag:
          CHECK(std::holds_alternative<bool>(*def.otherwise));
          break;
        case Type::integer:
          REQUIRE(std::holds_alternative<std::int64_t>(*def.otherwise));
          if (def.in_file()) CHECK(static_cast<double>(std::get<std::int64_t>(*def.otherwise)) >= def.least);
          break;
        case Type::real:
          CHECK(std::holds_alternative<double>(*def.otherwise));
          break;
        case Type::rope:
          CHECK(std::get<std::string>(*def.otherwise).empty());
          break;
        case Type::choice:
          CHECK(std::count(def.choices.begin(), def.choices.end(), std::get<std::string>(*def.otherwise)) == 1);
          break;
        case Type::text:
        case Type::node:
        case Type::dims:
        case Type::pieces:
          CHECK(false);  // nothing that a default could say
      }
    }
  });
}

TEST_CASE("traits go together as their ops do") {
  each_record([](const OpRecord& record) {
    CHECK(record.has(Trait::random) == (record.op == Op::dropout));
    CHECK((record.work == WorkClass::none) ==
          (record.has(Trait::view) || record.has(Trait::collective) || record.has(Trait::composite)));
    if (record.has(Trait::elementwise) && record.has(Trait::graph_file)) CHECK(record.has(Trait::keeps_columns));
    if (record.has(Trait::backward)) CHECK_FALSE(definition(record.op).gradient);
    CHECK_FALSE((record.has(Trait::backward) && record.has(Trait::graph_file)));
  });
}

TEST_CASE("ops of optimizers take what their rules say, in that order") {
  using Of = UpdateDef::Operand;
  each_record([](const OpRecord& record) {
    const std::optional<UpdateDef>& update = definition(record.op).update;
    if (!update) return;
    std::size_t at = 0;
    for (const OperandDef& operand : record.operands) {
      REQUIRE(at < update->operands.size());
      const std::string name(operand.name);
      CAPTURE(name);
      const Of of = update->operands[at];
      CHECK(operand.state == (of == Of::states));
      CHECK((operand.name == "lr") == (of == Of::rate));
      CHECK((operand.name == "scalars") == (of == Of::scalars));
      CHECK((operand.name == "applied") == (of == Of::applied));
      CHECK((operand.name == "gradient") == (of == Of::gradient));
      CHECK((operand.name == "master") == (of == Of::master));
      CHECK((operand.name == "working") == (of == Of::working));
      CHECK((operand.role == Role::update) == (of == Of::master || of == Of::states || of == Of::changed));
      CHECK((operand.role == Role::output) == (of == Of::made || of == Of::working));
      const bool more_states = of == Of::states && &operand != &record.operands.back() && (&operand + 1)->state;
      at += more_states ? 0 : 1;
    }
    const bool stateless = at < update->operands.size() && update->operands[at] == Of::states;
    CHECK(at + (stateless ? 1 : 0) == update->operands.size());
  });
}

TEST_CASE("an absent attribute is what the record says, and one that no record knows is a bug") {
  const Signature linear{Op::linear, {}, {}};
  CHECK(flag(linear, "bias"));
  CHECK_FALSE(flag(linear, "gelu"));
  CHECK_FALSE(flag(Signature{Op::linear, {{"bias", false}}, {}}, "bias"));
  CHECK(integer(Signature{Op::cross_entropy, {}, {}}, "ignore_index") == -100);
  CHECK_FALSE(given_integer(Signature{Op::cross_entropy_grad, {}, {}}, "classes"));
  CHECK(given_integer(Signature{Op::cross_entropy_grad, {{"classes", std::int64_t{7}}}, {}}, "classes") == 7);
  CHECK(real(Signature{Op::scale, {{"factor", std::int64_t{2}}}, {}}, "factor") == 2.0);
  CHECK_THROWS_AS(flag(linear, "biass"), Bug);
  CHECK_THROWS_AS(real(Signature{Op::scale, {}, {}}, "factor"), Bug);                   // has to be given
  CHECK_THROWS_AS(integer(Signature{Op::cross_entropy_grad, {}, {}}, "classes"), Bug);  // absence is no value
  CHECK_THROWS_AS(integer(linear, "bias"), Bug);                                        // of another type
  CHECK_THROWS_AS(accumulates(Signature{Op::embedding_grad, {{"accumulate", 1.0}}, {}}), Bug);
  CHECK_FALSE(accumulates(linear));
}

TEST_CASE("operands are found by name, whatever stands before them") {
  const TensorDesc x{DType::bf16, {4, 8}}, w{DType::bf16, {8}}, row{DType::f32, {4}};
  Signature norm{Op::layer_norm, {{"residual", true}, {"bias", true}}, {x, x, w, w, x, row, row, x}};
  CHECK(operand_index(norm, "residual") == 1);
  CHECK(operand_index(norm, "bias") == 3);
  CHECK(operand_index(norm, "sum") == 7);
  CHECK_NOTHROW(expect_recorded(norm));
  norm.operands.pop_back();
  CHECK_THROWS_AS(expect_recorded(norm), Bug);
  norm = {Op::layer_norm, {{"residual", false}, {"bias", false}}, {x, w, x, row, row}};
  CHECK(operand_index(norm, "residual") == -1);
  CHECK(operand_index(norm, "rstd") == 4);
  CHECK_THROWS_AS(operand_index(norm, "shift"), Bug);
  norm.attributes.set("shift", true);
  CHECK_THROWS_AS(expect_recorded(norm), Bug);

  const TensorDesc flat{DType::f32, {512}}, codes{DType::u8, {512}}, scales{DType::f32, {2}}, one{DType::f32, {1}},
      four{DType::f32, {4}}, count{DType::i32, {1}};
  const Attributes betas{{"beta1", 0.9}, {"beta2", 0.99}, {"eps", 1e-8}};
  const Signature adam{Op::adamw, betas, {flat, flat, codes, scales, codes, scales, one, four, count}};
  CHECK(operand_index(adam, "v") == 4);
  CHECK(operand_index(adam, "lr") == 6);
  CHECK(operand_index(adam, "working") == -1);
  CHECK_NOTHROW(expect_recorded(adam));
  CHECK(operand_index({Op::split, {}, {x, x, x, x}}, "y") == 1);
  CHECK(operand_index({Op::concat, {}, {x, x, x, x}}, "y") == 3);
  CHECK_NOTHROW(expect_recorded({Op::concat, {}, {x, x, x, x}}));
  CHECK_THROWS_AS(expect_recorded({Op::concat, {}, {x}}), Bug);
}

TEST_CASE("what may lie in place is what the names of operands say") {
  using Pairs = std::vector<std::pair<int, int>>;
  CHECK(definition(Op::layer_norm).in_place == Pairs{{0, 3}, {1, 3}});
  CHECK(definition(Op::layer_norm_grad).in_place == Pairs{{0, 0}, {5, 0}});
  CHECK(definition(Op::rms_norm_grad).in_place == Pairs{{0, 0}, {4, 0}});
  CHECK(definition(Op::silu_grad).in_place == Pairs{{0, 0}, {1, 0}});
  CHECK(definition(Op::add).in_place == Pairs{{0, 0}});
  CHECK(definition(Op::linear).in_place.empty());
}

}  // namespace trainer
