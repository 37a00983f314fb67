// The schema of a Parquet file as a tree of objects, lists, maps and leaves: the shape of a row's JSON. Each node knows
// the levels at which its values are present. Levels are those of Dremel (Melnik et al., "Dremel: Interactive Analysis
// of Web-Scale Datasets", VLDB 2010, section 4.1): an entry's definition level is the number of optional and repeated
// fields of its path that are present; its repetition level says in which list of the path it is a further item.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/data/parquet/metadata.h"

namespace trainer::data::parquet {

/// How a leaf's values are written as JSON.
enum class Form {
  text,  ///< UTF-8
  boolean,
  int32,
  int64,
  uint32,
  uint64,
  int96,  ///< a timestamp of older files: nanoseconds since 1970
  float32,
  float64,
  float16,
  decimal,  ///< of int32, int64, or big-endian bytes
  uuid,
};

struct Leaf {
  std::string path;       ///< as "messages.list.element.role", for messages
  std::size_t index = 0;  ///< its position among the leaves, and of its chunk in a row group
  Physical type = Physical::boolean;
  std::size_t type_bytes = 0;  ///< of values of fixed size, else 0
  int most_definition = 0, most_repetition = 0;
  Form form = Form::text;
  std::int32_t scale = 0;   ///< of a decimal
  std::string unsupported;  ///< why it cannot be read, or empty
};

struct Node {
  enum class Shape { leaf, object, list, map };
  Shape shape = Shape::object;
  std::string key;  ///< its name as a JSON string, and a colon
  std::string name;
  bool optional = false;
  int definition = 0;                         ///< if optional: an entry with a lower level is null
  int item_definition = 0;                    ///< of a list or map: an entry with a lower level is an empty one
  int item_repetition = 0;                    ///< of a list or map: an entry with this level is its next item
  std::size_t first_leaf = 0, last_leaf = 0;  ///< [first, last) are the leaves below it
  std::vector<Node> children;                 ///< an object's fields, a list's item, a map's key and value
};

/// The columns of a row.
struct Schema {
  Node row;
  std::vector<Leaf> leaves;  ///< of all columns, in the file's order
};

/// Raises Damaged.
Schema make_schema(const std::vector<SchemaElement>& elements);

}  // namespace trainer::data::parquet
