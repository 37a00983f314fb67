// Product: one matrix product by cuBLASLt, ready to run again and again. Operands are row-major as they lie; cuBLASLt,
// which counts columns first, is given the transposed product of the transposed matrices, which are the same bytes.
//
// Algorithm: the first that cuBLASLt's heuristic names for the shape and the workspace, among those that split a sum in
// no way but one whose parts meet in f32, in the workspace, in an order of their own: so results are the same from run
// to run. Where choices by time are kept (timed_choices.h), the fastest of its first ones is taken.
//
// Operands in fp8 have their scales beside them (fp8_operands.h), and lie with `inner` innermost, the only way in which
// cuBLASLt takes them before compute capability 10.0. Sums are not the fast ones, which lose bits on 8.9 and 9.0.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "engine/core/dtype.h"
#include "kernels/cuda/gemm/fp8_operands.h"
#include "kernels/cuda/table.h"

namespace trainer::kernels::cuda {

/// What happens to a product on its way to memory. GELU is the approximation with tanh.
enum class Epilogue : std::uint8_t {
  none,
  bias,           ///< + bias [columns] in every row
  gelu,           ///< gelu(…)
  gelu_bias,      ///< gelu(… + bias)
  gelu_aux,       ///< gelu, which leaves what it read in aux [rows, columns]
  gelu_aux_bias,  ///< the same with a bias
  gelu_gradient,  ///< … ⊙ gelu'(aux)
  left_sums,      ///< and beside it bias [rows] = the sums of left over `inner`
};

/// result [rows, columns] = left [rows, inner] · right [inner, columns], plus what is there with `accumulate`. Sums are
/// f32.
struct ProductSpec {
  std::int64_t rows = 0, columns = 0, inner = 0;
  bool left_transposed = false;   ///< left lies as [inner, rows]
  bool right_transposed = false;  ///< right lies as [columns, inner]
  DType operands = DType::f32;
  DType result = DType::f32;  ///< of operands' dtype or f32; bias and aux have it too
  Epilogue epilogue = Epilogue::none;
  bool accumulate = false;
  std::int64_t workspace_bytes = 0;
  Fp8Scales fp8 = Fp8Scales::none;  ///< of operands of codes: right of e4m3, left of left_code
  Fp8Code left_code = Fp8Code::e4m3;
  bool square_right = false;  ///< right has scales of squares, where rows have some of blocks of 128

  std::string str() const;
  friend bool operator==(const ProductSpec&, const ProductSpec&) = default;
};

struct ProductOperands {
  const void* left = nullptr;
  const void* right = nullptr;
  void* result = nullptr;
  void* bias = nullptr;
  void* aux = nullptr;
  void* workspace = nullptr;
  const void* left_scales = nullptr;
  const void* right_scales = nullptr;
};

class Product {
 public:
  /// Null where cuBLASLt does not take it: some epilogues want rows of whole multiples of 8 elements, and none changes
  /// the dtype to another of 16 bits; of fp8 no epilogue but a bias. Throws IoError for any other failure. Operands
  /// will be aligned to kOperandAlignment, the workspace to kBufferAlignment.
  static std::unique_ptr<Product> make(const ProductSpec& spec, const Context& context);
  ~Product();
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  /// Puts the product on the stream. REQUIRES: one call at a time for each object.
  void run(const ProductOperands& operands, cudaStream_t stream);
  /// Bytes of the workspace that the algorithm uses.
  std::int64_t workspace_bytes() const;

 private:
  struct State;
  explicit Product(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace trainer::kernels::cuda
