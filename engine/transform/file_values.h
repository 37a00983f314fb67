// Reading what stands behind the keys of a graph file: numbers and expressions, lists of dims, initial values, the
// attributes of an op. Each reader reports what is wrong and gives nothing; the caller goes on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/expression.h"
#include "engine/ops/op_def.h"
#include "engine/transform/mistakes.h"

namespace trainer {

class FileValues {
 public:
  FileValues(Mistakes& mistakes, Variables& variables) : mistakes_(mistakes), variables_(variables) {}

  /// What a param may be: a scalar, `${…}`, or a list of these.
  std::optional<ParamValue> value(const yaml::Node& node, const std::string& path);
  /// Whether it is a `${…}` of null: the key counts as not given.
  bool is_null(const yaml::Node& node) const;
  /// A number, or `${…}`.
  std::optional<double> number(const yaml::Node& node, const std::string& path);
  std::optional<std::int64_t> integer(const yaml::Node& node, const std::string& path);
  std::optional<bool> flag(const yaml::Node& node, const std::string& path);
  std::optional<std::string> text(const yaml::Node& node, const std::string& path);
  /// A word as it stands, or `${…}` of one.
  std::optional<std::string> word(const yaml::Node& node, const std::string& path);
  /// A name in which `{index}` and the like are replaced.
  std::optional<std::string> name(const yaml::Node& node, const std::string& path);
  /// A name or a list of names.
  std::optional<std::vector<std::pair<std::string, const yaml::Node*>>> names(const yaml::Node& node,
                                                                              const std::string& path);
  /// `{normal: x}`, `{constant: x}`, zeros, ones or sinusoids.
  std::optional<Init> init(const yaml::Node& node, const std::string& path);
  /// The attributes that `def` knows, defaults filled in; nothing if one is wrong or missing. `name` is the node's.
  std::optional<Attributes> attributes(const OpDef& def, const yaml::Node& node, const std::string& name);
  /// A size of an input's or a new shape: a number, an expression, or one of the variables by its bare name.
  std::optional<std::int64_t> dim(const yaml::Node& node, const std::string& path);

  /// Reports the keys of `node` that are none of `allowed`.
  void check_keys(const yaml::Node& node, const std::string& path, const std::string& message,
                  std::span<const std::string_view> allowed);
  /// Reports `node` unless it is a mapping (a sequence).
  bool need_mapping(const yaml::Node& node, const std::string& path, const std::string& allowed);
  bool need_sequence(const yaml::Node& node, const std::string& path, const std::string& allowed);
  /// A value of the wrong kind.
  void wrong(const yaml::Node& node, const std::string& path, const std::string& allowed);

 private:
  /// A text in which `{index}` and the like are replaced.
  std::optional<std::string> substituted(const yaml::Node& node, const std::string& path);
  std::optional<Attribute> attribute(const AttributeDef& def, const yaml::Node& node, const std::string& path);
  std::optional<Attribute> ranged(const AttributeDef& def, const yaml::Node& node, const std::string& path);
  std::optional<Attribute> rope(const yaml::Node& node, const std::string& path);
  std::optional<Attribute> dims(const yaml::Node& node, const std::string& path);
  std::optional<Attribute> pieces(const yaml::Node& node, const std::string& path);
  /// Of a `${…}`; nothing where it is none. A mistake is reported, and null.
  std::optional<ParamValue> evaluated(const yaml::Node& node, const std::string& path);
  /// Reports an expression whose value is of the wrong kind.
  void wrong_value(const yaml::Node& node, const std::string& path, const ParamValue& value,
                   const std::string& allowed);
  void expression_mistake(const ExpressionError& error, const yaml::Node& node, const std::string& path);

  Mistakes& mistakes_;
  Variables& variables_;
};

}  // namespace trainer
