// The schema of a Parquet file as the tree of what a row's JSON is made of: objects, lists, maps and leaves, with the
// levels that say what is there. Levels are those of Dremel (Melnik et al., "Dremel: Interactive Analysis of Web-Scale
// Datasets", VLDB 2010, section 4.1): an entry's definition level counts the optional and repeated fields of its path
// that are there, its repetition level says which list goes on.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/data/parquet/metadata.h"

namespace trainer::data::parquet {

/// How a leaf's values are written.
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
  std::size_t index = 0;  ///< of its chunk in a row group
  Physical type = Physical::boolean;
  std::size_t type_bytes = 0;  ///< of a value of fixed size, else 0
  int most_definition = 0, most_repetition = 0;
  Form form = Form::text;
  std::int32_t scale = 0;   ///< of a decimal
  std::string unsupported;  ///< why it cannot be read, if so
};

struct Node {
  enum class Shape { leaf, object, list, map };
  Shape shape = Shape::object;
  std::string key;  ///< its name as JSON and a colon
  std::string name;
  bool optional = false;
  int definition = 0;                         ///< of an optional one: an entry of a lower level is null
  int item_definition = 0;                    ///< of a list or map: an entry of a lower level is an empty one
  int item_repetition = 0;                    ///< of a list or map: an entry of this level is its next item
  std::size_t first_leaf = 0, last_leaf = 0;  ///< [first, last) of the leaves below it
  std::vector<Node> children;                 ///< fields of an object, the item of a list, key and value of a map
};

/// The columns of a row.
struct Schema {
  Node row;
  std::vector<Leaf> leaves;  ///< of all columns, in the file's order
};

/// Raises Damaged.
Schema make_schema(const std::vector<SchemaElement>& elements);

}  // namespace trainer::data::parquet
