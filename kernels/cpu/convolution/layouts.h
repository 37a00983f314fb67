// Between the layout of the contracts (NCHW, OIHW) and those that oneDNN's convolutions like, by transposition of
// matrices: oneDNN's own reorders move 1 to 4 elements a nanosecond on two cores where memory allows more, and there
// are six of activations to a convolution's step.
//
// Known here: channels last and channels in blocks, both ways; and from blocks of the two channels of a weight, a
// block's elements with the output channel last.
#pragma once

#include <cstdint>
#include <dnnl.hpp>
#include <optional>

#include "kernels/cpu/runtime/isa.h"

namespace trainer::kernels::cpu::onednn {

class LayoutChange {
 public:
  /// Nothing for pairs of layouts that are not known here. `add`: to what is there; for weights only. Both are of one
  /// dtype of 2 or 4 bytes, without padding.
  static std::optional<LayoutChange> between(const dnnl::memory::desc& from, const dnnl::memory::desc& to, bool add);

  /// Whether both layouts are the same bytes.
  bool is_none() const { return kind_ != Kind::weight_from_blocks && places_ == 1; }

  void run(const void* from, void* to, int threads, Isa isa) const;

 private:
  enum class Kind : std::uint8_t { into_blocks, from_blocks, weight_from_blocks };
  LayoutChange() = default;

  template <typename T>
  void run_images(const T* from, T* to, int threads, Isa isa) const;
  void run_weight(const float* from, float* to, int threads, Isa isa) const;

  Kind kind_ = Kind::into_blocks;
  bool add_ = false;
  std::int64_t element_bytes_ = 4;
  std::int64_t samples_ = 0, channels_ = 0, places_ = 0;  // of a weight: outputs, inputs, places of its window
  std::int64_t block_ = 0, input_block_ = 0;              // of channels (of outputs); all of them: channels last
};

}  // namespace trainer::kernels::cpu::onednn
