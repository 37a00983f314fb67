// The smallest checkpoint: one tensor `w` of six f32, whose element i is step + i.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "engine/checkpoint/checkpoint.h"

namespace trainer::tests {

inline const checkpoint::TensorInfo kSmall{"w", DType::f32, Shape{2, 3}};

inline void write_small(const std::string& dir, std::int64_t step) {
  checkpoint::FileWriter writer(dir, step, "model.safetensors", {{kSmall, {0, 6}}});
  std::array<float, 6> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(step) + static_cast<float>(i);
  writer.write({kSmall, {0, 6}}, values.data(), 6);
  writer.finish();
}

/// Returns the path of the checkpoint.
inline std::string save_small(checkpoint::Store& store, std::int64_t step, int keep = 0) {
  store.begin(step);
  write_small(store.dir(), step);
  std::string path = store.commit(step, "0123", R"({"name":"a"})");
  store.remove_older(step, keep);
  return path;
}

}  // namespace trainer::tests
