// How cases are read: tensors by their names, attributes from the metadata of the file.
#include "tests/goldens/golden.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/safetensors.h"
#include "engine/core/error.h"

namespace trainer::goldens {

namespace {

using checkpoint::SafetensorsFile;
using nlohmann::json;
using reference::Tensor;

template <class T>
void widen(std::span<const std::byte> bytes, Tensor& to) {
  for (std::size_t i = 0; i < to.data.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    to.data[i] = static_cast<double>(value);
  }
}

Tensor read(const SafetensorsFile& file, const checkpoint::TensorEntry& entry) {
  Tensor tensor{Shape(entry.shape)};
  const std::span<const std::byte> bytes = file.bytes(entry);
  switch (entry.dtype.value_or(DType::u8)) {
    case DType::f64:
      widen<double>(bytes, tensor);
      break;
    case DType::f32:
      widen<float>(bytes, tensor);
      break;
    case DType::i32:
      widen<std::int32_t>(bytes, tensor);
      break;
    default:
      throw DataError(file.path() + ": " + entry.name + " has dtype " + entry.dtype_name);
  }
  return tensor;
}

const checkpoint::TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name) {
  const checkpoint::TensorEntry* entry = file.find(name);
  if (entry == nullptr) throw DataError(file.path() + ": no tensor " + name);
  return *entry;
}

Attribute attribute_of(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number()) return value.get<double>();
  return value.get<std::string>();
}

Case case_of(const SafetensorsFile& file, const json& entry) {
  Case result;
  result.name = entry.at("name");
  result.op = op_named(entry.at("op").get<std::string>()).value();
  for (const auto& [name, value] : entry.at("attributes").items()) result.attributes.set(name, attribute_of(value));
  const auto tensor = [&](const std::string& which) { return read(file, entry_of(file, result.name + "." + which)); };
  for (int i = 0; i < entry.at("inputs").get<int>(); ++i) {
    result.in.push_back(tensor("in" + std::to_string(i)));
    result.integer.push_back(entry_of(file, result.name + ".in" + std::to_string(i)).dtype == DType::i32);
  }
  for (int i = 0; i < entry.at("outputs").get<int>(); ++i) result.out.push_back(tensor("out" + std::to_string(i)));
  for (int i : entry.at("gradients")) result.gradients[i] = tensor("grad" + std::to_string(i));
  result.origin = entry.at("origin");
  if (!result.gradients.empty()) result.dout = tensor("dout");
  return result;
}

}  // namespace

std::string folder() { return std::string(TRAINER_SOURCE_DIR) + "/tests/goldens"; }

std::vector<Case> load_cases() {
  std::vector<Case> cases;
  for (const char* name : {"ops", "layout", "decoder"}) {
    const SafetensorsFile file(folder() + "/" + name + ".safetensors");
    for (const auto& [key, value] : file.metadata()) {
      if (key != "cases") continue;
      for (const json& entry : json::parse(value)) cases.push_back(case_of(file, entry));
    }
  }
  return cases;
}

std::map<std::string, Tensor> load_tensors(const std::string& path) {
  const SafetensorsFile file(path);
  std::map<std::string, Tensor> tensors;
  for (const checkpoint::TensorEntry& entry : file.tensors()) tensors[entry.name] = read(file, entry);
  return tensors;
}

}  // namespace trainer::goldens
