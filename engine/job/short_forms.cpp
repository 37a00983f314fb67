// Short forms: a scalar in the place of a section is written out as the section that it stands for.
#include <algorithm>

#include "engine/core/check.h"
#include "engine/job/check.h"

namespace trainer {
namespace {

/// Whether `node` is of the type of `form`, even if its value is wrong: the message about a wrong one then names the
/// key that was meant.
bool is_of_type(const Form& form, const yaml::Node& node) {
  switch (form.kind) {
    case Form::Kind::null:
      return node.is_null() && !node.text.empty();  // written out; an empty section is a mistake of its own
    case Form::Kind::word:
      return node.as_string() || node.as_bool();
    case Form::Kind::text:
    case Form::Kind::path:
      return node.as_string().has_value();
    case Form::Kind::integer:
    case Form::Kind::number:
    case Form::Kind::bytes:
      return node.as_number().has_value();
    default:
      return false;
  }
}

bool any_accepts(const std::vector<Form>& forms, const yaml::Node& node) {
  return std::ranges::any_of(forms, [&](const Form& form) { return accepts(form, node); });
}

/// The section that `node` is the short form of, or null.
const Form* meant(const std::vector<Form>& forms, const yaml::Node& node) {
  if (!node.is_scalar() || any_accepts(forms, node)) return nullptr;
  for (const Form& form : forms) {
    if (form.kind != Form::Kind::section || form.shorthand.empty()) continue;
    if (std::ranges::any_of(short_forms(form), [&](const Form& one) { return is_of_type(one, node); })) return &form;
  }
  return nullptr;
}

yaml::Node written_out(yaml::Node value, std::string_view key) {
  yaml::Node section, name;
  name.text = key;
  name.line = section.line = value.line;
  name.column = section.column = value.column;
  name.source = section.source = value.source;
  section.kind = yaml::Kind::mapping;
  section.keys.push_back(std::move(name));
  section.items.push_back(std::move(value));
  return section;
}

}  // namespace

const std::vector<Form>& short_forms(const Form& section) {
  const auto field = std::ranges::find(section.fields, section.shorthand, &FieldDef::name);
  CHECK(field != section.fields.end(), "a shorthand is a key of its section");
  return field->forms;
}

void expand_short_forms(yaml::Node& root, const std::vector<FieldDef>& fields) {
  if (!root.is_mapping()) return;
  for (const FieldDef& field : fields) {
    auto* value = const_cast<yaml::Node*>(root.find(field.name));
    if (value == nullptr) continue;
    if (const Form* form = meant(field.forms, *value)) *value = written_out(std::move(*value), form->shorthand);
    for (const Form& form : field.forms) {
      if (form.kind == Form::Kind::section) expand_short_forms(*value, form.fields);
      if (form.kind != Form::Kind::list || !value->is_sequence()) continue;
      for (const Form& item : form.items)
        if (item.kind == Form::Kind::section)
          for (yaml::Node& one : value->items) expand_short_forms(one, item.fields);
    }
  }
}

}  // namespace trainer
