// A convolution as one product over unfolded images ("im2col"): a row for each place of an output plane, which holds
// the inputs under its window in the order of the filters.
//
//   unfolded[(n, i, j), (c, a, b)] = x[n, c, i·stride + a − padding, j·stride + b − padding]
//   y = unfolded · weightᵀ    d unfolded = dy · weight    dweight = dyᵀ · unfolded
//
// where y and dy lie channels last. Weights and their gradients stay as they are. Source: Chellapilla, Puri and Simard,
// "High Performance Convolutional Neural Networks for Document Processing", 2006, section 3.
//
// Small planes have many filters: there oneDNN's direct loops, which go along rows of places, leave registers and tiles
// almost empty, and bring filters that are larger than the images into a layout of their own first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/convolution/convolution.h"

namespace trainer::kernels::cpu::unfolded {

/// Whether it is faster so.
bool is_faster(const Convolution& convolution, Pass pass);

/// Of a run; a multiple of 64.
std::int64_t workspace_bytes(const Convolution& convolution, Pass pass, int threads);

class Product {
 public:
  Product(const Convolution& convolution, Pass pass, int threads);

  /// Operands in the order of the op. REQUIRES: workspace of `workspace_bytes`, 64-byte aligned.
  void run(std::span<void* const> operands, void* workspace) const;

 private:
  template <typename T>
  void unfold(const T* x, T* to) const;
  template <typename T>
  void fold(const float* from, T* dx, std::byte* planes) const;
  void turn(bool channels_last, const void* from, void* to) const;

  Convolution c_;
  Pass pass_;
  int threads_;
  /// Of each place of an output plane and each element of its window: where in the input plane that lies; -1: in the
  /// padding.
  std::vector<std::int32_t> windows_;
};

}  // namespace trainer::kernels::cpu::unfolded
