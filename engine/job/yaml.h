// The tree of a YAML file: what jobs, graph files and hardware files are read from. Our own tree over yaml-cpp's
// events, since a mistake must name file, line and column, and a hostile file must cost an error and no more.
// Scalars follow YAML 1.2's core schema (`no` is a string, `1e-4` a number); `_` may group the digits of a number
// (100_000_000). Invariants: one document, UTF-8, at most 1 MiB, depth at most 50, at most 50 aliases and 100,000
// nodes after they are expanded; no duplicate keys; keys are strings; no merge keys (`<<`) and no tags but !!str.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/error.h"

namespace trainer::yaml {

inline constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
inline constexpr int kMaxDepth = 50;
inline constexpr int kMaxAliases = 50;
inline constexpr int kMaxNodes = 100'000;

/// A text and the name it has in messages: a path, or "command line".
struct Source {
  std::string name;
  std::string text;
  std::vector<std::size_t> starts;  ///< of each line, so that a thousand mistakes do not read the text a thousand times

  Source(std::string source_name, std::string source_text);

  /// Line `number`, counted from 1, without its end; empty where there is none.
  std::string line(int number) const;
};

enum class Kind : std::uint8_t { scalar, sequence, mapping };

struct Node {
  Kind kind = Kind::scalar;
  bool quoted = false;      ///< a scalar in quotes, a block scalar, or one tagged !!str: a string whatever its text
  std::string text;         ///< of a scalar
  std::vector<Node> keys;   ///< of a mapping, in the order of the file; keys[i] belongs to items[i]
  std::vector<Node> items;  ///< of a sequence or mapping
  int line = 0;             ///< from 1; 0 in a node that no file holds
  int column = 0;           ///< from 1, in code points
  std::shared_ptr<const Source> source;

  bool is_scalar() const { return kind == Kind::scalar; }
  bool is_sequence() const { return kind == Kind::sequence; }
  bool is_mapping() const { return kind == Kind::mapping; }

  /// What the core schema makes of a scalar; nothing where it is of another type. An integer is a number too. A number
  /// written with a point or an exponent is no integer. `string` is what is none of the others.
  bool is_null() const;
  std::optional<bool> as_bool() const;
  std::optional<std::int64_t> as_integer() const;
  std::optional<double> as_number() const;
  std::optional<std::string> as_string() const;
  /// Whether the text is an integer by its form, even if it is beyond 64 bits.
  bool looks_integer() const;

  /// The value of `key` in a mapping, or null.
  const Node* find(std::string_view key) const;
  const Node* find_key(std::string_view key) const;

  /// The node as one line of YAML (flow style), cut after some 60 characters: for the value of a message.
  std::string brief() const;
  /// The node as one line of YAML, whole; parses to the same tree.
  std::string flow() const;

  const std::string& file() const;
  /// A mistake at this node: its file, line, column and source line. The value is left to the caller.
  Diagnostic at(std::string path, std::string message, std::string allowed = "") const;
};

/// Reads a file. Throws IoError if it cannot be read, JobError if it is not such a tree.
Node read_file(const std::string& path);

/// The same from a text. An empty text is a null scalar.
Node parse(std::string text, std::string name);

}  // namespace trainer::yaml
