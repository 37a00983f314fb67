// Lists and maps are groups of three levels; older files have lists of two, which rules tell apart (parquet-format,
// LogicalTypes.md, "Nested Types").
#include "engine/data/parquet/schema.h"

#include "engine/core/utf8.h"
#include "engine/data/parquet/json_text.h"
#include "engine/data/parquet/mistakes.h"

namespace trainer::data::parquet {
namespace {

constexpr int kMostDepth = 64;

class SchemaMaker {
 public:
  SchemaMaker(const std::vector<SchemaElement>& elements, std::vector<Leaf>& leaves)
      : elements_(elements), leaves_(leaves) {}

  Node row() {
    Node row;
    const SchemaElement& root = next();
    add_fields(row, root, {});
    if (at_ != elements_.size()) throw Damaged("the schema has elements outside its tree");
    return row;
  }

 private:
  // Where a field is: the levels of its path, and the path.
  struct Place {
    int definition = 0, repetition = 0, depth = 0;
    std::string path;
  };

  const SchemaElement& next() {
    if (at_ == elements_.size()) throw Damaged("the schema ends too early");
    return elements_[at_++];
  }

  const SchemaElement& peek() const {
    if (at_ == elements_.size()) throw Damaged("the schema ends too early");
    return elements_[at_];
  }

  void add_fields(Node& node, const SchemaElement& group, const Place& place) {
    node.shape = Node::Shape::object;
    node.first_leaf = leaves_.size();
    for (std::int32_t i = 0; i < group.num_children; ++i) node.children.push_back(field(next(), place));
    node.last_leaf = leaves_.size();
  }

  // The path is for messages: a long one is cut off, so that a small file cannot make many long ones.
  static void enter(Place& place, const SchemaElement& element) {
    constexpr std::size_t kMostName = 200, kMostPath = 1000;
    if (++place.depth > kMostDepth) throw Damaged("the schema nests too deep");
    if (place.path.size() > kMostPath) return;
    if (!place.path.empty()) place.path += '.';
    place.path += element.name.substr(0, whole_characters(element.name.substr(0, kMostName)));
  }

  // A field with its repetition.
  Node field(const SchemaElement& element, Place place) {
    enter(place, element);
    if (element.repetition == Repetition::required) return named(element, content(element, place));
    ++place.definition;
    if (element.repetition == Repetition::optional) {
      Node node = named(element, content(element, place));
      node.optional = true;
      node.definition = place.definition;
      return node;
    }
    ++place.repetition;  // a repeated field outside a list is itself a list
    Node list = list_of(place);
    list.children.push_back(content(element, place));
    return named(element, closed(std::move(list)));
  }

  static Node named(const SchemaElement& element, Node node) {
    node.name = element.name;
    append_json_string(node.key, element.name);
    node.key += ':';
    return node;
  }

  // A field without its repetition.
  Node content(const SchemaElement& element, const Place& place) {
    if (element.type) return leaf(element, place);
    if (element.num_children < 0) throw Damaged("a group of the schema has a negative number of fields");
    const bool wraps = element.num_children == 1 && peek().repetition == Repetition::repeated;
    if (element.logical == Logical::list && wraps) return list(element, place);
    if (element.logical == Logical::map && wraps && !peek().type && peek().num_children == 2) return map(place);
    Node node;
    add_fields(node, element, place);
    if (element.logical == Logical::unsupported)
      for (std::size_t leaf = node.first_leaf; leaf < node.last_leaf; ++leaf)
        leaves_[leaf].unsupported = "holds " + element.logical_name;
    return node;
  }

  Node leaf(const SchemaElement& element, const Place& place);

  Node list_of(const Place& place) const {
    Node list;
    list.shape = Node::Shape::list;
    list.first_leaf = leaves_.size();
    list.item_definition = place.definition;
    list.item_repetition = place.repetition;
    return list;
  }

  Node closed(Node node) const {
    node.last_leaf = leaves_.size();
    return node;
  }

  Place repeated_below(Place place) const {
    enter(place, peek());
    ++place.definition;
    ++place.repetition;
    return place;
  }

  Node list(const SchemaElement& group, const Place& place) {
    const Place below = repeated_below(place);
    const SchemaElement& repeated = next();
    Node list = list_of(below);
    const bool is_item = repeated.type || repeated.num_children != 1 || peek().repetition == Repetition::repeated ||
                         repeated.name == "array" || repeated.name == group.name + "_tuple";
    list.children.push_back(is_item ? content(repeated, below) : field(next(), below));
    return closed(std::move(list));
  }

  Node map(const Place& place) {
    const Place below = repeated_below(place);
    next();
    Node map = list_of(below);
    map.shape = Node::Shape::map;
    for (int i = 0; i < 2; ++i) map.children.push_back(field(next(), below));
    return closed(std::move(map));
  }

  const std::vector<SchemaElement>& elements_;
  std::vector<Leaf>& leaves_;
  std::size_t at_ = 0;
};

std::size_t bytes_of(const SchemaElement& element) {
  switch (*element.type) {
    case Physical::boolean:
    case Physical::byte_array:
      return 0;
    case Physical::int32:
    case Physical::float32:
      return 4;
    case Physical::int64:
    case Physical::float64:
      return 8;
    case Physical::int96:
      return 12;
    case Physical::fixed_bytes:
      if (element.type_length <= 0) throw Damaged("a column of fixed size has no size");
      return static_cast<std::size_t>(element.type_length);
  }
  throw Damaged("a column has no known type");
}

Form form_of(const SchemaElement& element) {
  const bool is_unsigned = element.logical == Logical::integer && !element.is_signed;
  if (element.logical == Logical::decimal) return Form::decimal;
  switch (*element.type) {
    case Physical::boolean:
      return Form::boolean;
    case Physical::int32:
      return is_unsigned ? Form::uint32 : Form::int32;
    case Physical::int64:
      return is_unsigned ? Form::uint64 : Form::int64;
    case Physical::int96:
      return Form::int96;
    case Physical::float32:
      return Form::float32;
    case Physical::float64:
      return Form::float64;
    case Physical::byte_array:
      return Form::text;
    case Physical::fixed_bytes:
      return element.logical == Logical::uuid      ? Form::uuid
             : element.logical == Logical::float16 ? Form::float16
                                                   : Form::text;
  }
  throw Damaged("a column has no known type");
}

// Why a leaf's values cannot be written as JSON, or "".
std::string reason_against(const SchemaElement& element, const Leaf& leaf) {
  constexpr std::size_t kMostDecimalBytes = 16;
  constexpr std::int32_t kMostDigits = 38;
  const bool integer = leaf.type == Physical::int32 || leaf.type == Physical::int64;
  if (element.logical == Logical::unsupported) return "holds " + element.logical_name;
  if (leaf.form == Form::uuid && leaf.type_bytes != 16) return "holds UUIDs that are not of 16 bytes";
  if (leaf.form == Form::float16 && leaf.type_bytes != 2) return "holds 16-bit floats that are not of 2 bytes";
  if (leaf.form != Form::decimal) return "";
  if (!integer && leaf.type != Physical::byte_array && leaf.type != Physical::fixed_bytes)
    return "holds decimals that are floats";
  if (leaf.type_bytes > kMostDecimalBytes || leaf.scale < 0 || leaf.scale > kMostDigits)
    return "holds decimals of more than 38 digits";
  return "";
}

Node SchemaMaker::leaf(const SchemaElement& element, const Place& place) {
  Leaf leaf;
  leaf.path = place.path;
  leaf.index = leaves_.size();
  leaf.type = *element.type;
  leaf.type_bytes = bytes_of(element);
  leaf.most_definition = place.definition;
  leaf.most_repetition = place.repetition;
  leaf.form = form_of(element);
  leaf.scale = element.scale;
  leaf.unsupported = reason_against(element, leaf);
  Node node;
  node.shape = Node::Shape::leaf;
  node.first_leaf = leaf.index;
  node.last_leaf = leaf.index + 1;
  leaves_.push_back(std::move(leaf));
  return node;
}

}  // namespace

Schema make_schema(const std::vector<SchemaElement>& elements) {
  Schema schema;
  schema.row = SchemaMaker(elements, schema.leaves).row();
  return schema;
}

}  // namespace trainer::data::parquet
