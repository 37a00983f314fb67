// What the schema says is what check.cpp does: forms become types and ranges, conditions become if/then. Rules that
// compare two values (rules.cpp) are beyond draft-07 and stay with the program.
#include "engine/job/schema.h"

#include <fmt/format.h>

#include <cmath>
#include <list>
#include <nlohmann/json.hpp>
#include <variant>

#include "engine/core/op_record.h"
#include "engine/core/rope.h"
#include "engine/job/bytes.h"
#include "engine/job/check.h"
#include "engine/job/expression.h"
#include "engine/job/fields.h"
#include "engine/job/job.h"

namespace trainer {
namespace {

using Json = nlohmann::ordered_json;
using Fields = std::vector<FieldDef>;

Json section_schema(const Fields& fields);
Json forms_schema(const std::vector<Form>& forms);
Json section_or_short_form(const Form& form);

Json number_json(double value) { return whole(value) ? Json(*whole(value)) : Json(value); }

Json number_schema(const Form& form) {
  Json out{{"type", form.kind == Form::Kind::integer ? "integer" : "number"}};
  if (std::isfinite(form.least)) out[form.above_least ? "exclusiveMinimum" : "minimum"] = number_json(form.least);
  if (std::isfinite(form.most)) out[form.below_most ? "exclusiveMaximum" : "maximum"] = number_json(form.most);
  return out;
}

Json form_schema(const Form& form) {
  switch (form.kind) {
    case Form::Kind::null:
      return {{"type", "null"}};
    case Form::Kind::word:
      return {{"type", "string"}, {"enum", form.words}};
    case Form::Kind::integer:
    case Form::Kind::number:
      return number_schema(form);
    case Form::Kind::bytes:
      return {{"anyOf",
               {{{"type", "integer"}, {"minimum", 1}, {"maximum", number_json(kMostInteger)}},
                {{"type", "string"}, {"pattern", kBytesPattern}}}}};
    case Form::Kind::flag:
      return {{"type", "boolean"}};
    case Form::Kind::text:
      return {{"type", "string"}, {"minLength", 1}};
    case Form::Kind::path:
      return {{"type", "string"}, {"pattern", "/|\\" + std::string(form.name) + "$"}};
    case Form::Kind::expression:
      return {{"type", "string"}, {"pattern", "^\\$\\{[^}]*\\}$"}};
    case Form::Kind::list: {
      Json out{{"type", "array"}, {"items", forms_schema(form.items)}};
      if (form.min_items > 0) out["minItems"] = form.min_items;
      if (form.max_items < std::numeric_limits<std::size_t>::max()) out["maxItems"] = form.max_items;
      return out;
    }
    case Form::Kind::map:
      return {{"type", "object"},
              {"patternProperties", {{"^[A-Za-z_][A-Za-z0-9_]*$", forms_schema(form.items)}}},
              {"additionalProperties", false}};
    case Form::Kind::section:
      return form.shorthand.empty() ? section_schema(form.fields) : section_or_short_form(form);
    case Form::Kind::tree:
      return {{"type", "object"}};
    case Form::Kind::reference:
      return {{"$ref", "#/definitions/" + std::string(form.name)}};
  }
  return {};
}

/// The types of JSON that the scalars of `forms` have.
Json scalar_types(const std::vector<Form>& forms) {
  Json types = Json::array();
  for (const Form& form : forms) {
    const Json schema = form_schema(form);
    if (schema.contains("type") && schema["type"] != "object" && schema["type"] != "array")
      types.push_back(schema["type"]);
  }
  return types;
}

/// The short forms of a section, without the words that ask for more keys (`wsd` for decay_steps).
std::vector<Form> whole_short_forms(const Form& section) {
  std::vector<Form> forms = short_forms(section);
  const auto asks_for_more = [&](std::string_view word) {
    yaml::Node alone = yaml::parse("{" + std::string(section.shorthand) + ": " + std::string(word) + "}", "short form");
    return !check(section.fields, alone).mistakes.empty();
  };
  for (Form& form : forms)
    if (form.kind == Form::Kind::word) std::erase_if(form.words, asks_for_more);
  return forms;
}

/// By type, so that a mistake in the section is told as that, and not as "none of these".
Json section_or_short_form(const Form& form) {
  const std::vector<Form> shorts = whole_short_forms(form);
  return {
      {"if", {{"type", scalar_types(shorts)}}}, {"then", forms_schema(shorts)}, {"else", section_schema(form.fields)}};
}

Json forms_schema(const std::vector<Form>& forms) {
  if (forms.size() == 1) return form_schema(forms.front());
  Json out{{"anyOf", Json::array()}};
  for (const Form& form : forms) out["anyOf"].push_back(form_schema(form));
  return out;
}

Json value_json(const yaml::Node& node) {
  if (node.is_sequence()) {
    Json out = Json::array();
    for (const yaml::Node& item : node.items) out.push_back(value_json(item));
    return out;
  }
  if (node.is_mapping()) {
    Json out = Json::object();
    for (std::size_t i = 0; i < node.keys.size(); ++i) out[node.keys[i].text] = value_json(node.items[i]);
    return out;
  }
  if (node.is_null()) return nullptr;
  if (const auto flag = node.as_bool()) return *flag;
  if (const auto number = node.as_number()) return number_json(*number);
  return node.text;
}

Json default_json(std::string_view text) { return value_json(yaml::parse(std::string(text), "default")); }

bool meets(const Condition& condition, const Json& value) {
  if (condition.above) return value.is_number() && value.get<double>() > *condition.above;
  if (condition.words.empty()) return !value.is_null();
  return value.is_string() && std::ranges::find(condition.words, value.get<std::string>()) != condition.words.end();
}

Json wanted_schema(const Condition& condition) {
  if (condition.above) return {{"type", "number"}, {"exclusiveMinimum", number_json(*condition.above)}};
  return condition.words.empty() ? Json{{"not", {{"type", "null"}}}} : Json{{"enum", condition.words}};
}

/// Holds for a section in which the condition does, whether the value is written or a default.
Json condition_schema(const Fields& fields, std::string_view path, const Condition& condition) {
  const std::string name(path.substr(0, path.find('.')));
  const auto field = std::ranges::find(fields, name, &FieldDef::name);
  Json inner;
  bool absent_meets = false;
  if (name.size() == path.size()) {
    inner = wanted_schema(condition);
    absent_meets = field->absent == FieldDef::Absent::otherwise && meets(condition, default_json(field->otherwise));
  } else {
    inner = condition_schema(field->forms.front().fields, path.substr(name.size() + 1), condition);
  }
  Json out{{"properties", {{name, inner}}}};
  if (!absent_meets) out["required"] = {name};
  return out;
}

Json conditions_schema(const Fields& fields, const FieldDef& field) {
  if (field.conditions.size() == 1)
    return condition_schema(fields, field.conditions.front().path, field.conditions.front());
  Json out{{"allOf", Json::array()}};
  for (const Condition& condition : field.conditions)
    out["allOf"].push_back(condition_schema(fields, condition.path, condition));
  return out;
}

/// All that stands in the section under one name.
std::vector<const FieldDef*> variants_of(const Fields& fields, std::string_view name) {
  std::vector<const FieldDef*> out;
  for (const FieldDef& field : fields) {
    if (field.name == name) out.push_back(&field);
  }
  return out;
}

/// What editors show, and the value's forms where they do not depend on a condition.
Json property_schema(const std::vector<const FieldDef*>& variants) {
  const FieldDef& first = *variants.front();
  Json out = variants.size() == 1 ? forms_schema(first.forms) : Json::object();
  if (out.contains("$ref")) return out;
  out["description"] = first.doc;
  if (variants.size() == 1 && first.absent == FieldDef::Absent::otherwise)
    out["default"] = default_json(first.otherwise);
  return out;
}

/// What a field is under its own conditions, with what the others of its name do not share.
Json variant_schema(const FieldDef& variant, const FieldDef& first) {
  Json out = forms_schema(variant.forms);
  if (out.contains("$ref")) return out;
  if (variant.doc != first.doc) out["description"] = variant.doc;
  if (variant.absent == FieldDef::Absent::otherwise) out["default"] = default_json(variant.otherwise);
  return out;
}

/// Whether the variants' conditions, one each on the same key, are all the values that it may have: a wrong one is told
/// there alone.
bool applies_always(const Fields& fields, const std::vector<const FieldDef*>& variants) {
  const std::vector<Condition>& first = variants.front()->conditions;
  std::vector<std::string_view> words;
  for (const FieldDef* variant : variants) {
    if (variant->conditions.size() != 1 || variant->conditions.front().path != first.front().path ||
        variant->conditions.front().above)
      return false;
    words.insert(words.end(), variant->conditions.front().words.begin(), variant->conditions.front().words.end());
  }
  const auto decides = std::ranges::find(fields, first.front().path, &FieldDef::name);
  if (decides == fields.end() || decides->forms.size() != 1 || decides->forms.front().kind != Form::Kind::word)
    return false;
  return std::ranges::all_of(decides->forms.front().words,
                             [&](std::string_view word) { return std::ranges::find(words, word) != words.end(); });
}

/// Under its conditions a field has its forms and may be required; where no variant's conditions hold, it must not be
/// there.
void add_conditions(Json& all, const Fields& fields, const std::vector<const FieldDef*>& variants) {
  Json any = Json::array();
  for (const FieldDef* variant : variants) {
    const Json condition = conditions_schema(fields, *variant);
    Json then = Json::object();
    if (variants.size() > 1)
      then["properties"] = {{std::string(variant->name), variant_schema(*variant, *variants.front())}};
    if (variant->absent == FieldDef::Absent::required) then["required"] = {variant->name};
    if (!then.empty()) all.push_back({{"if", condition}, {"then", then}});
    any.push_back(condition);
  }
  if (applies_always(fields, variants)) return;
  Json wanted = any.size() == 1 ? any.front() : Json{{"anyOf", any}};
  all.push_back({{"if", {{"required", {variants.front()->name}}}}, {"then", std::move(wanted)}});
}

Json section_schema(const Fields& fields) {
  Json properties = Json::object(), required = Json::array(), all = Json::array();
  for (const FieldDef& field : fields) {
    const std::string name(field.name);
    if (properties.contains(name)) continue;
    const std::vector<const FieldDef*> variants = variants_of(fields, name);
    properties[name] = property_schema(variants);
    if (!field.conditions.empty())
      add_conditions(all, fields, variants);
    else if (field.absent == FieldDef::Absent::required)
      required.push_back(name);
  }
  Json out{{"type", "object"}, {"additionalProperties", false}};
  if (!required.empty()) out["required"] = required;
  out["properties"] = properties;
  if (!all.empty()) out["allOf"] = all;
  return out;
}

std::string printed(const std::string& title, const std::string& description, const Json& body) {
  Json out{{"$schema", "http://json-schema.org/draft-07/schema#"}, {"title", title}, {"description", description}};
  out.update(body);
  return out.dump(2) + "\n";
}

// ---- Graph files --------------------------------------------------------------------------------------------------

FieldDef given(std::string_view name, std::string_view doc, std::vector<Form> forms, bool required = false) {
  return {name, doc, std::move(forms), required ? FieldDef::Absent::required : FieldDef::Absent::nothing};
}

std::vector<Form> forms_of(RopeKey::Type type) {
  if (type == RopeKey::Type::flag) return {form::flag(), form::expression()};
  if (type == RopeKey::Type::number) return {form::positive(), form::expression()};
  Form list = form::list(form::positive(), 1);
  list.items.push_back(form::expression());
  return {list, form::expression()};
}

std::vector<Form> rope_forms() {
  std::vector<Form> scalings{form::word({"none"})};
  for (const RopeScaling& scaling : rope_scalings()) {
    Fields fields{given("kind", "How frequencies are scaled.", {form::word({scaling.name})}, true)};
    for (const RopeKey& key : scaling.keys)
      fields.push_back(given(key.name, key.help, forms_of(key.type), key.required));
    scalings.push_back(form::section(fields));
  }
  // Where the kind is an expression, keys of all kinds may be there, and are null where they do not belong to it.
  Fields any{given("kind", "How frequencies are scaled.", {form::expression()}, true)};
  for (const RopeScaling& scaling : rope_scalings())
    for (const RopeKey& key : scaling.keys)
      if (std::ranges::find(any, key.name, &FieldDef::name) == any.end())
        any.push_back(given(key.name, key.help, forms_of(key.type)));
  scalings.push_back(form::section(any));
  const std::vector<Form> number{form::positive(), form::expression()};
  return {form::word({"none"}),
          form::section({given("theta", "Base of the angles.", number, true),
                         given("style", "Pairs are elements of two halves (default), or neighbours.",
                               {form::word({"halves", "interleaved"}), form::expression()}),
                         given("partial", "Share of a head that turns; 1 if not given.", number),
                         given("scaling", "Frequencies for longer sequences.", scalings)})};
}

std::vector<Form> attribute_forms(const AttributeDef& attribute) {
  using Type = AttributeDef::Type;
  switch (attribute.type) {
    case Type::flag:
      return {form::flag(), form::expression()};
    case Type::integer: {
      const bool bounded = std::isfinite(attribute.below);
      return {form::integer(attribute.least, bounded ? attribute.below - 1 : kMostInteger), form::expression()};
    }
    case Type::real:
      return {form::between(attribute.least, attribute.below, attribute.above, true), form::expression()};
    case Type::choice:
      return {form::word({attribute.choices.begin(), attribute.choices.end()}), form::expression()};
    case Type::rope:
      return rope_forms();
    case Type::node:
    case Type::text:
      return {form::text()};
    case Type::dims:
      return {form::list(form::reference("size"), 1)};
    case Type::pieces:
      return {form::map({form::reference("size")})};
  }
  return {};
}

std::vector<Form> init_forms() {
  const Form deviation = form::number(0), constant = form::number(-kInfinity, kInfinity);
  return {form::word({"zeros", "ones", "sinusoids"}),
          form::section({given("normal", "Drawn from N(0, x).", {deviation, form::expression()}, true)}),
          form::section({given("uniform", "Drawn from U(−x, x).", {deviation, form::expression()}, true)}),
          form::section({given("constant", "All the same.", {constant, form::expression()}, true)})};
}

/// The default as YAML; empty where absence means something that no value says.
std::string default_of(const AttributeDef& attribute) {
  if (!attribute.otherwise) return "";
  if (attribute.type == AttributeDef::Type::rope) return "none";
  if (const auto* flag = std::get_if<bool>(&*attribute.otherwise)) return *flag ? "true" : "false";
  if (const auto* integer = std::get_if<std::int64_t>(&*attribute.otherwise)) return fmt::format("{}", *integer);
  if (const auto* real = std::get_if<double>(&*attribute.otherwise)) return fmt::format("{}", *real);
  return std::get<std::string>(*attribute.otherwise);
}

std::vector<Op> graph_ops() {
  std::vector<Op> ops;
  for (int op = 0; op < kNumOps; ++op)
    if (has(static_cast<Op>(op), Trait::graph_file)) ops.push_back(static_cast<Op>(op));
  return ops;
}

std::vector<Form> condition_forms() { return {form::flag(), form::integer(0, 1), form::expression()}; }

/// `defaults` holds the texts that the fields refer to.
Fields node_fields(std::list<std::string>& defaults) {
  std::vector<std::string_view> names;
  for (Op op : graph_ops()) names.push_back(name_of(op));
  Fields out{
      given("name", "Parameters are called <name>.weight and <name>.bias.", {form::text()}, true),
      given("op", "What the node computes.", {form::word(names)}, true),
      given("input", "A node or input, or a list of them; default: the node before.",
            {form::text(), form::list(form::text(), 1)}),
      given("init", "How the weight starts.", init_forms()),
      given("if", "Whether the node is there. One that is left out stands for its first input.", condition_forms()),
  };
  for (Op op : graph_ops())
    for (const AttributeDef& attribute : record(op).attributes) {
      if (!attribute.in_file()) continue;
      FieldDef field{attribute.name, attribute.help, attribute_forms(attribute), FieldDef::Absent::nothing};
      if (attribute.required()) field.absent = FieldDef::Absent::required;
      if (attribute.otherwise) {
        field.absent = FieldDef::Absent::otherwise;
        field.otherwise = defaults.emplace_back(default_of(attribute));
      }
      out.push_back(field.when("op", {name_of(op)}));
    }
  return out;
}

Fields group_fields() {
  return {
      given("repeat", "How often.", {form::integer(0, 100'000), form::expression()}),
      given("first", "What `index` is in the first repetition; default: 0.",
            {form::integer(0, 100'000), form::expression()}),
      given("name", "Prefix of the names inside; {index} counts the repetitions.", {form::text()}, true),
      given("block", "Kind of block, which wrap policies name.", {form::text()}),
      given("input", "What block.input is; default: the node before.", {form::text()}),
      given("if", "Whether the group is there. One that is left out stands for its input.", condition_forms()),
      given("nodes", "The nodes of one repetition.", {form::list(form::reference("node"), 0)}, true),
  };
}

Fields file_fields() {
  const Form shape = form::list(form::reference("size"), 1, 6);
  const Form input = form::section(
      {given("dtype", "Element type.", {form::word({"f32", "i32"})}, true),
       given("shape", "Sizes of the dims; the first is batch, and seq is a sample's length.", {shape}, true),
       given("if", "Whether the graph has it.", condition_forms()),
       given("optional",
             "true: data without it will do. What the node that names it does then is the node's matter, and "
             "inputs.<name> is 0 in expressions.",
             {form::flag(), form::expression()})});
  const Form outputs = form::section(
      {given("loss", "The node that is minimised.", {form::text()}),
       given("auxiliary",
             "A second loss, which adds to the gradient. Its mean over its own targets is in the log under the node's "
             "name.",
             {form::section(
                 {given("loss", "Its node.", {form::text()}, true),
                  given("weight",
                        "What it is multiplied by. Both losses are divided by the number of targets of the first.",
                        {form::number(0), form::expression()}, true),
                  given("if", "Whether it is there.", condition_forms())})}),
       given("logits", "The node whose values evaluation and sampling read.", {form::text()})});
  const Form inputs = form::map({input, form::list(input, 1)});  // of a list the first whose `if` holds
  return {
      given("name", "What the model is called.", {form::text()}),
      given("params",
            "What expressions read and a job's model.with replaces: numbers, true, false, words, null, \"${…}\", or a "
            "list of "
            "these, one for each layer.",
            {form::map(form::values())}),
      given("inputs", "Fields of the data.", {inputs}, true),
      given("nodes", "The model, in an order in which each node reads what stands before it.",
            {form::list(form::reference("node"), 0)}, true),
      given("outputs", "What the model is for.", {outputs}, true),
  };
}

bool is_figure(const Form& form) { return !form.fields.empty() && form.fields.front().name == "value"; }

}  // namespace

std::string hardware_schema(const Fields& fields) {
  // A file with a base says only what differs, so nothing is required of it; what follows from what stays with the
  // program.
  const auto loose = [](const auto& self, Fields all) -> Fields {
    Fields out;
    for (FieldDef& field : all) {
      if (std::ranges::find(out, field.name, &FieldDef::name) != out.end()) continue;
      field.conditions.clear();
      if (field.absent == FieldDef::Absent::required) field.absent = FieldDef::Absent::nothing;
      for (Form& form : field.forms)
        if (form.kind == Form::Kind::section && !is_figure(form)) form.fields = self(self, form.fields);
      out.push_back(std::move(field));
    }
    return out;
  };
  const Json body{{"if", {{"required", {"base"}}}},
                  {"then", section_schema(loose(loose, fields))},
                  {"else", section_schema(fields)}};
  return printed("trainer hardware", "A machine, named by cluster.hardware of a job", body);
}

std::string job_schema() {
  return printed("trainer job", "A training job: trainer run job.yaml", section_schema(job_fields()));
}

std::string graph_schema() {
  std::list<std::string> defaults;
  Json body = section_schema(file_fields());
  const Json is_group{{"anyOf", {{{"required", {"repeat"}}}, {{"required", {"nodes"}}}}}};
  body["definitions"] = {
      {"size", {{"anyOf", {{{"type", "integer"}}, {{"type", "string"}, {"minLength", 1}}}}}},
      {"node",
       {{"if", is_group}, {"then", section_schema(group_fields())}, {"else", section_schema(node_fields(defaults))}}},
  };
  return printed("trainer graph", "A model as a graph file, named by model.graph of a job", body);
}

}  // namespace trainer
