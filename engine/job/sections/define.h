// The words that the keys of a section are written with.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "engine/job/fields.h"

namespace trainer {

using Fields = std::vector<FieldDef>;
using Forms = std::vector<Form>;
using Names = std::vector<std::string_view>;

inline FieldDef required(std::string_view name, std::string_view doc, Forms forms) {
  return {name, doc, std::move(forms), FieldDef::Absent::required};
}
inline FieldDef optional(std::string_view name, std::string_view doc, Forms forms, std::string_view otherwise) {
  return {name, doc, std::move(forms), FieldDef::Absent::otherwise, otherwise};
}
inline FieldDef part(std::string_view name, std::string_view doc, Fields fields, std::string_view shorthand = {}) {
  return {name, doc, {form::section(std::move(fields), shorthand)}, FieldDef::Absent::fill};
}
inline FieldDef extra(std::string_view name, std::string_view doc, Forms forms) {
  return {name, doc, std::move(forms), FieldDef::Absent::nothing};
}

/// What the search decides where a job says so.
inline Names with_auto(Names words) {
  words.insert(words.begin(), "auto");
  return words;
}

inline Names without(Names words, std::string_view word) {
  std::erase(words, word);
  return words;
}

}  // namespace trainer
