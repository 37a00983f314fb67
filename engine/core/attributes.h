// Attributes: the named constants of an op (heads, eps, causal …), sorted by name. A small ordered list, so
// that ops, plans and kernels share one printable, comparable form. Read at preparation, never in a step.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trainer {

using Attribute = std::variant<bool, std::int64_t, double, std::string>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> items);

  void set(std::string_view name, Attribute value);
  bool has(std::string_view name) const { return find(name) != nullptr; }

  /// The value of `name`. Raises Bug if it is absent or of another type; `real` takes an integer too. Of a signature or
  /// a node ask op_record.h, which knows what absence means.
  bool flag(std::string_view name) const;
  std::int64_t integer(std::string_view name) const;
  double real(std::string_view name) const;
  const std::string& text(std::string_view name) const;

  const std::vector<std::pair<std::string, Attribute>>& items() const { return items_; }
  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  const Attribute* find(std::string_view name) const;
  std::vector<std::pair<std::string, Attribute>> items_;
};

}  // namespace trainer
