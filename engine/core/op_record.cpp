// Look-ups in records.
#include "engine/core/op_record.h"

#include <algorithm>
#include <variant>

#include "engine/core/check.h"
#include "engine/core/records/all.h"

namespace trainer {
namespace {

using Type = AttributeDef::Type;

/// What the attributes that every op with sums has say: one row for all.
const AttributeDef& accumulate_def() {
  static const AttributeDef def{.name = "accumulate", .type = Type::flag, .otherwise = false};
  return def;
}

std::string quoted(Op op, std::string_view name) { return std::string(name_of(op)) + "." + std::string(name); }

/// The attribute `name`: as given, or by default; null where it is absent and the record says so in words.
const Attribute* find(Op op, const Attributes& attributes, std::string_view name) {
  for (const auto& item : attributes.items())
    if (item.first == name) return &item.second;
  const AttributeDef* def = record(op).attribute(name);
  CHECK(def != nullptr, "no op has the attribute " + quoted(op, name));
  CHECK(!def->required(), quoted(op, name) + " has to be given");
  return def->otherwise ? &*def->otherwise : nullptr;
}

template <typename T>
const T& value_of(Op op, const Attributes& attributes, std::string_view name) {
  const Attribute* found = find(op, attributes, name);
  const T* value = found == nullptr ? nullptr : std::get_if<T>(found);
  CHECK(value != nullptr, quoted(op, name) + " is absent, or of another type");
  return *value;
}

bool is_of(const Attribute& value, Type type) {
  switch (type) {
    case Type::flag:
      return std::holds_alternative<bool>(value);
    case Type::integer:
      return std::holds_alternative<std::int64_t>(value);
    case Type::real:
      return std::holds_alternative<double>(value) || std::holds_alternative<std::int64_t>(value);
    case Type::choice:
    case Type::text:
    case Type::rope:
    case Type::node:
    case Type::dims:
    case Type::pieces:
      return std::holds_alternative<std::string>(value);
  }
  return false;
}

bool is_there(const Signature& signature, const OperandDef& def) {
  if (def.when.empty()) return true;
  return def.when[0] == '!' ? !flag(signature, def.when.substr(1)) : flag(signature, def.when);
}

/// How many operands of the signature are `def`'s, whose first stands at `index`.
std::size_t length_of(const Signature& signature, const OpRecord& record, const OperandDef& def, std::size_t index) {
  if (!is_there(signature, def)) return 0;
  const std::size_t all = signature.operands.size();
  if (def.many) return all + 1 - std::min(all, record.operands.size());
  return def.state && index < all && signature.operands[index].dtype == DType::u8 ? 2 : 1;
}

}  // namespace

const OpRecord& record(Op op) {
  static const std::vector<OpRecord> all{
#define TRAINER_OP(name, kernel) records::name(Op::name),
#include "engine/core/ops.inc"
  };
  return all[static_cast<std::size_t>(op)];
}

const AttributeDef* OpRecord::attribute(std::string_view name) const {
  if (name == "accumulate" && adds()) return &accumulate_def();
  for (const AttributeDef& def : attributes)
    if (def.name == name) return &def;
  return nullptr;
}

bool OpRecord::adds() const {
  return std::any_of(operands.begin(), operands.end(), [](const OperandDef& operand) { return operand.adds; });
}

std::vector<OperandPlace> operand_places(const Signature& signature) {
  const OpRecord& record = trainer::record(signature.op);
  std::vector<OperandPlace> places;
  places.reserve(record.operands.size());
  std::size_t first = 0;
  for (const OperandDef& def : record.operands) {
    const std::size_t count = length_of(signature, record, def, first);
    places.push_back({&def, static_cast<int>(first), static_cast<int>(count)});
    first += count;
  }
  return places;
}

int operand_index(const Signature& signature, std::string_view name) {
  for (const OperandPlace& place : operand_places(signature))
    if (place.def->name == name) return place.count == 0 ? -1 : place.first;
  UNREACHABLE("there is no operand " + quoted(signature.op, name));
}

void expect_recorded(const Signature& signature) {
  const OpRecord& record = trainer::record(signature.op);
  for (const auto& [name, value] : signature.attributes.items()) {
    const AttributeDef* def = record.attribute(name);
    CHECK(def != nullptr && def->in_kernel(), "kernels take no attribute " + quoted(signature.op, name));
    CHECK(is_of(value, def->type), quoted(signature.op, name) + " is of another type");
    const auto* word = std::get_if<std::string>(&value);
    CHECK(def->type != Type::choice || std::find(def->choices.begin(), def->choices.end(), *word) != def->choices.end(),
          quoted(signature.op, name) + " cannot be " + (word == nullptr ? "" : *word));
  }
  std::size_t due = 0;
  for (const OperandPlace& place : operand_places(signature)) due += static_cast<std::size_t>(place.count);
  CHECK(signature.operands.size() == due, std::string(name_of(signature.op)) + " takes " + std::to_string(due) +
                                              " operands, not " + std::to_string(signature.operands.size()));
}

std::vector<std::pair<int, int>> in_place_of(const OpRecord& record) {
  std::vector<std::string_view> inputs;
  std::vector<std::pair<int, int>> pairs;
  int output = 0;
  for (const OperandDef& def : record.operands) {
    if (def.role != OperandDef::Role::output) {
      inputs.push_back(def.name);
      continue;
    }
    for (std::string_view rest = def.over; !rest.empty();) {
      const std::string_view name = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), name.size() + 1));
      const auto at = std::find(inputs.begin(), inputs.end(), name);
      CHECK(at != inputs.end(), "there is no input " + quoted(record.op, name));
      pairs.emplace_back(static_cast<int>(at - inputs.begin()), output);
    }
    ++output;
  }
  return pairs;
}

bool flag_of(Op op, const Attributes& attributes, std::string_view name) {
  return value_of<bool>(op, attributes, name);
}
std::int64_t integer_of(Op op, const Attributes& attributes, std::string_view name) {
  return value_of<std::int64_t>(op, attributes, name);
}
const std::string& text_of(Op op, const Attributes& attributes, std::string_view name) {
  return value_of<std::string>(op, attributes, name);
}

double real_of(Op op, const Attributes& attributes, std::string_view name) {
  const Attribute* found = find(op, attributes, name);
  if (found != nullptr && std::holds_alternative<std::int64_t>(*found))
    return static_cast<double>(std::get<std::int64_t>(*found));
  return value_of<double>(op, attributes, name);
}

std::optional<std::int64_t> given_integer_of(Op op, const Attributes& attributes, std::string_view name) {
  if (find(op, attributes, name) == nullptr) return std::nullopt;
  return value_of<std::int64_t>(op, attributes, name);
}

}  // namespace trainer
