// How config.json is edited: as text where only keys change, so that all other bytes stay as they are.
#include "engine/export/config_text.h"

#include <nlohmann/json.hpp>

#include "engine/core/check.h"

namespace trainer::exporting {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Where the value of a key of the outermost object lies, as [first, last) of the text, and where the key begins.
struct Place {
  std::size_t key = std::string::npos, first = 0, last = 0;
};

std::size_t after_string(const std::string& text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at)
    if (text[at] == '\\') ++at;
  return at + 1;
}

std::size_t after_space(const std::string& text, std::size_t at) {
  while (at < text.size() && std::string_view(" \t\r\n").find(text[at]) != std::string_view::npos) ++at;
  return at;
}

/// REQUIRES: `text` is valid JSON.
std::size_t after_value(const std::string& text, std::size_t at) {
  int depth = 0;
  do {
    if (text[at] == '"') {
      at = after_string(text, at);
      continue;
    }
    if (text[at] == '{' || text[at] == '[') ++depth;
    if (text[at] == '}' || text[at] == ']') --depth;
    if (depth < 0) return at;
    ++at;
  } while (at < text.size() && (depth > 0 || std::string_view(",}] \t\r\n").find(text[at]) == std::string_view::npos));
  return at;
}

/// REQUIRES: `text` is a valid JSON object.
Place place_of(const std::string& text, std::string_view key) {
  std::size_t at = after_space(text, text.find('{') + 1);
  while (at < text.size() && text[at] == '"') {
    Place place{at, 0, 0};
    const std::size_t name_ends = after_string(text, at);
    const std::string_view name = std::string_view(text).substr(at + 1, name_ends - at - 2);
    place.first = after_space(text, text.find(':', name_ends) + 1);
    place.last = after_value(text, place.first);
    if (name == key) return place;
    at = after_space(text, place.last);
    if (at < text.size() && text[at] == ',') at = after_space(text, at + 1);
  }
  return {};
}

void remove(std::string& text, std::string_view key) {
  const Place place = place_of(text, key);
  if (place.key == std::string::npos) return;
  std::size_t last = after_space(text, place.last);
  if (text[last] == ',') {
    last = after_space(text, last + 1);
    text.erase(place.key, last - place.key);
  } else {  // the last of the object: the comma is before it
    std::size_t first = text.find_last_not_of(" \t\r\n", place.key - 1);
    if (text[first] != ',') ++first;
    text.erase(first, place.last - first);
  }
}

}  // namespace

std::string with_dtype(const std::string& text, std::string_view dtype) {
  std::string changed = text;
  for (const char* key : {"dtype", "torch_dtype"}) {
    const Place place = place_of(changed, key);
    if (place.key == std::string::npos || changed[place.first] != '"') continue;
    changed.replace(place.first, place.last - place.first, "\"" + std::string(dtype) + "\"");
  }
  remove(changed, "quantization_config");
  CHECK(OrderedJson::accept(changed), "a config.json that is no JSON any more");
  return changed;
}

std::string section_of(const std::string& text, const std::string& part, const std::string& architecture) {
  const OrderedJson whole = OrderedJson::parse(text);
  OrderedJson section = {{"architectures", {architecture}}};
  for (const auto& [key, value] : whole.at(part).items()) section[key] = value;
  section["architectures"] = {architecture};
  for (const char* key : {"dtype", "torch_dtype"})
    if (whole.contains(key) && !section.contains(key)) section[key] = whole[key];
  return section.dump(2) + "\n";
}

std::string model_type_in(const std::string& text, const std::string& part) {
  const OrderedJson whole = OrderedJson::parse(text);
  return whole.at(part).value("model_type", "");
}

}  // namespace trainer::exporting
