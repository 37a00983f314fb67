// Element types of tensors. One enum for the whole engine: graphs, plans, kernels and checkpoints.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace trainer {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, u8 };

constexpr std::int64_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
  }
  return "?";
}

/// The dtype of that name, or nothing.
std::optional<DType> dtype_named(std::string_view name);

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

}  // namespace trainer
