// Look-up in attribute lists.
#include "engine/core/attributes.h"

#include <algorithm>

#include "engine/core/check.h"

namespace trainer {
namespace {

template <typename T>
const T& expect(const Attribute* attribute, std::string_view name) {
  CHECK(attribute != nullptr, "missing attribute " + std::string(name));
  const T* value = std::get_if<T>(attribute);
  CHECK(value != nullptr, "attribute " + std::string(name) + " has another type");
  return *value;
}

}  // namespace

Attributes::Attributes(std::initializer_list<std::pair<std::string, Attribute>> items) {
  for (const auto& [name, value] : items) set(name, value);
}

void Attributes::set(std::string_view name, Attribute value) {
  const auto at = std::lower_bound(items_.begin(), items_.end(), name,
                                   [](const auto& item, std::string_view key) { return item.first < key; });
  if (at != items_.end() && at->first == name)
    at->second = std::move(value);
  else
    items_.insert(at, {std::string(name), std::move(value)});
}

const Attribute* Attributes::find(std::string_view name) const {
  for (const auto& item : items_)
    if (item.first == name) return &item.second;
  return nullptr;
}

bool Attributes::flag(std::string_view name) const { return expect<bool>(find(name), name); }
std::int64_t Attributes::integer(std::string_view name) const { return expect<std::int64_t>(find(name), name); }
const std::string& Attributes::text(std::string_view name) const { return expect<std::string>(find(name), name); }

double Attributes::real(std::string_view name) const {
  const Attribute* attribute = find(name);
  if (attribute != nullptr && std::holds_alternative<std::int64_t>(*attribute))
    return static_cast<double>(std::get<std::int64_t>(*attribute));
  return expect<double>(attribute, name);
}

}  // namespace trainer
