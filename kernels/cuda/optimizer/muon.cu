// Muon's update of whole matrices: products by cuBLASLt with factors in bf16 and sums in f32, and passes over elements
// between them.
//
// X lies in f32 (y), to which the last product of a step adds, and in bf16 (x), which products take. Between two steps
// one pass rounds y to x and leaves a · y in y, so that y + P·x, with P = b A + c A², is the next X: what is rounded
// are factors of products alone. A matrix is put together as the first pass reads it, a block for each row of the
// whole, and the last pass, a block for each row of the pieces, puts it back; in between nothing knows of cuts, so a
// cut matrix has the bits of the whole one. Which matrices are this rank's is known when a launch is put on the stream.
// Whether the step is applied is known on the device alone, so products are made in any case: of zeros where it is not,
// which stay.
#include <algorithm>
#include <cmath>

#include "engine/core/error.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/gemm/products.h"
#include "kernels/cuda/optimizer/muon.h"
#include "kernels/cuda/runtime/device.cuh"
#include "kernels/cuda/target.h"
#include "kernels/optimizer.h"

namespace trainer::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kGroup = 4;  // elements of a thread in passes over contiguous ones

/// A matrix as kernels see it: its pieces in the parts of x, and the whole.
struct Pieces {
  int rows = 0, cols = 0;  ///< of a piece
  int whole_rows = 0, whole_cols = 0;
  bool cut_rows = false, cut_columns = false;
  std::int64_t count = 0;  ///< elements of a part of x
};

// ---- Device ----

/// Element (row, col) of the whole matrix; u begins at the first part's piece.
__device__ __forceinline__ float of_whole(const float* u, const Pieces& m, int row, int col) {
  const int part = m.cut_rows ? row / m.rows : m.cut_columns ? col / m.cols : 0;
  const int in_row = m.cut_rows ? row % m.rows : row, in_col = m.cut_columns ? col % m.cols : col;
  return u[part * m.count + static_cast<std::int64_t>(in_row) * m.cols + in_col];
}

/// sums[block] = Σ u² of the rows block, block + gridDim.x, …
__global__ void __launch_bounds__(kThreads) squares_of_rows(const float* u, Pieces m, double* sums) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  for (int row = static_cast<int>(blockIdx.x); row < m.whole_rows; row += static_cast<int>(gridDim.x))
    for (int col = static_cast<int>(threadIdx.x); col < m.whole_cols; col += kThreads) {
      const double value = static_cast<double>(of_whole(u, m, row, col));
      sum = fma(value, value, sum);
    }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) inverse_norm(const double* sums, int count, double eps, float* inverse) {
  __shared__ double shared[kThreads / kWarp];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) sum += sums[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *inverse = static_cast<float>(1.0 / fmax(sqrt(sum), eps));
}

/// Of row blockIdx.x of the whole: x = u / max(‖u‖, eps) in bf16, y = a times it.
__global__ void __launch_bounds__(kThreads)
    begin_rows(const float* u, Pieces m, const float* inverse, bf16* x, float* y) {
  const int row = static_cast<int>(blockIdx.x);
  const float by = *inverse;
  for (int col = static_cast<int>(threadIdx.x); col < m.whole_cols; col += kThreads) {
    const std::int64_t at = static_cast<std::int64_t>(row) * m.whole_cols + col;
    const float value = of_whole(u, m, row, col) * by;
    x[at] = from_f32<bf16>(value);
    y[at] = kNewtonSchulzA * value;
  }
}

/// The thread's four elements of `count`, as load and store see them; fewer at the end one by one.
template <typename Fn>
__device__ __forceinline__ void for_my_group(std::int64_t count, Fn fn) {
  const std::int64_t group = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if ((group + 1) * kGroup <= count) {
    fn(std::integral_constant<int, kGroup>{}, group);
  } else {
    for (std::int64_t i = group * kGroup; i < count; ++i) fn(std::integral_constant<int, 1>{}, i);
  }
}

/// A = b A + c A².
__global__ void __launch_bounds__(kThreads) polynomial(bf16* a, const float* square, std::int64_t count) {
  for_my_group(count, [&]<int N>(std::integral_constant<int, N>, std::int64_t at) {
    Vec<bf16, N> p = load<N>(a, at);
    const Vec<float, N> s = load<N>(square, at);
#pragma unroll
    for (int i = 0; i < N; ++i) p[i] = from_f32<bf16>(fmaf(kNewtonSchulzC, s[i], kNewtonSchulzB * to_f32(p[i])));
    store(a, at, p);
  });
}

/// Between two steps: x = y rounded, y = a y.
__global__ void __launch_bounds__(kThreads) next_step(float* y, bf16* x, std::int64_t count) {
  for_my_group(count, [&]<int N>(std::integral_constant<int, N>, std::int64_t at) {
    Vec<float, N> whole = load<N>(y, at);
    Vec<bf16, N> rounded;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      rounded[i] = from_f32<bf16>(whole[i]);
      whole[i] *= kNewtonSchulzA;
    }
    store(x, at, rounded);
    store(y, at, whole);
  });
}

/// u = r · y: row blockIdx.x % rows of part blockIdx.x / rows.
__global__ void __launch_bounds__(kThreads) write_rows(const float* y, Pieces m, float r, float* u) {
  const int part = static_cast<int>(blockIdx.x) / m.rows, row = static_cast<int>(blockIdx.x) % m.rows;
  const std::int64_t from = static_cast<std::int64_t>(row + (m.cut_rows ? part * m.rows : 0)) * m.whole_cols +
                            (m.cut_columns ? part * m.cols : 0);
  float* const to = u + part * m.count + static_cast<std::int64_t>(row) * m.cols;
  for (int col = static_cast<int>(threadIdx.x); col < m.cols; col += kThreads) to[col] = r * y[from + col];
}

// ---- Host ----

/// The products of a step of matrices of one whole shape.
struct Products {
  std::int64_t rows = 0, cols = 0;
  std::unique_ptr<Product> gram, square, apply;

  bool tall() const { return rows > cols; }
  std::int64_t small() const { return std::min(rows, cols); }

  Products(std::int64_t r, std::int64_t c, const Context& context, const Signature& s) : rows(r), cols(c) {
    const std::int64_t bytes = product_workspace(context.capability), large = std::max(rows, cols);
    const auto make = [&](ProductSpec spec) {
      spec.operands = DType::bf16;
      spec.workspace_bytes = bytes;
      std::unique_ptr<Product> product = Product::make(spec, context);
      if (!product) throw IoError("cuBLASLt: no algorithm for a " + spec.str() + " in " + describe(s));
      return product;
    };
    gram = make({.rows = small(),
                 .columns = small(),
                 .inner = large,
                 .left_transposed = tall(),
                 .right_transposed = !tall(),
                 .result = DType::bf16});
    square = make({.rows = small(), .columns = small(), .inner = small(), .result = DType::f32});
    apply = make({.rows = rows, .columns = cols, .inner = small(), .result = DType::f32, .accumulate = true});
  }
};

class Orthogonalize final : public Kernel {
 public:
  Orthogonalize(const Signature& s, const Context& context)
      : all_(muon_matrices_of(s)), places_(all_, product_workspace(context.capability)) {
    for (const OwnedMatrix& matrix : all_.matrices) {
      const std::int64_t rows = matrix.whole_rows(all_.parts), cols = matrix.whole_cols(all_.parts);
      CHECK(rows * all_.parts < (std::int64_t{1} << 31) && cols < (std::int64_t{1} << 31),
            describe(s) + ": sides of a matrix are below 2^31");
      if (products_of(rows, cols) == nullptr) products_.emplace_back(rows, cols, context, s);
    }
  }

  void run(const Call& call) override {
    std::int64_t end = 0;  // of what is done
    for (const OwnedMatrix& matrix : all_.matrices) {
      if (matrix.owner != call.origin) continue;
      clear(call, end, matrix.offset);
      end = matrix.end();
      orthogonalize(call, matrix);
    }
    clear(call, end, all_.elements);
  }

 private:
  template <typename T>
  static T* at(const Call& call, std::int64_t place) {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(call.workspace) + place);
  }

  const Products* products_of(std::int64_t rows, std::int64_t cols) const {
    const auto found = std::find_if(products_.begin(), products_.end(),
                                    [&](const Products& one) { return one.rows == rows && one.cols == cols; });
    return found == products_.end() ? nullptr : &*found;
  }

  Pieces pieces_of(const OwnedMatrix& matrix) const {
    return {.rows = static_cast<int>(matrix.rows),
            .cols = static_cast<int>(matrix.cols),
            .whole_rows = static_cast<int>(matrix.whole_rows(all_.parts)),
            .whole_cols = static_cast<int>(matrix.whole_cols(all_.parts)),
            .cut_rows = matrix.cut == OwnedMatrix::Cut::rows,
            .cut_columns = matrix.cut == OwnedMatrix::Cut::columns,
            .count = all_.elements};
  }

  /// Elements [first, last) of all parts are 0.
  void clear(const Call& call, std::int64_t first, std::int64_t last) const {
    if (first == last) return;
    for (std::int64_t part = 0; part < all_.parts; ++part)
      check(cudaMemsetAsync(operand<float>(call, 0) + part * all_.elements + first, 0,
                            static_cast<std::size_t>(4 * (last - first)), stream_of(call)),
            "cudaMemsetAsync");
  }

  static Grid rows_grid(int rows) { return {.blocks = static_cast<unsigned>(rows), .threads = kThreads}; }
  static Grid groups_grid(std::int64_t count) {
    return {.blocks = blocks_for(count, kThreads * kGroup), .threads = kThreads};
  }

  void begin(const Call& call, const Pieces& pieces, const float* u) const {
    double* const sums = at<double>(call, places_.sums);
    float* const inverse = reinterpret_cast<float*>(sums + MuonWorkspace::kSums);
    const int blocks = std::min(pieces.whole_rows, MuonWorkspace::kSums);
    launch(call, rows_grid(blocks), squares_of_rows, u, pieces, sums);
    launch(call, rows_grid(1), inverse_norm, sums, blocks, all_.eps, inverse);
    launch(call, rows_grid(pieces.whole_rows), begin_rows, u, pieces, inverse, at<bf16>(call, places_.x),
           at<float>(call, places_.y));
  }

  void multiply(const Call& call, Product& product, const void* left, const void* right, void* result) const {
    product.run({.left = left, .right = right, .result = result, .workspace = at<void>(call, places_.products)},
                stream_of(call));
  }

  void orthogonalize(const Call& call, const OwnedMatrix& matrix) const {
    const Pieces pieces = pieces_of(matrix);
    const Products& products = *products_of(pieces.whole_rows, pieces.whole_cols);
    const std::int64_t elements = products.rows * products.cols, small = products.small() * products.small();
    float* const u = operand<float>(call, 0) + matrix.offset;
    bf16 *const x = at<bf16>(call, places_.x), *const gram = at<bf16>(call, places_.gram);
    float *const y = at<float>(call, places_.y), *const square = at<float>(call, places_.square);
    begin(call, pieces, u);
    for (std::int64_t step = 0; step < all_.steps; ++step) {
      if (step > 0) launch(call, groups_grid(elements), next_step, y, x, elements);
      multiply(call, *products.gram, x, x, gram);
      multiply(call, *products.square, gram, gram, square);
      launch(call, groups_grid(small), polynomial, gram, square, small);
      multiply(call, *products.apply, products.tall() ? x : gram, products.tall() ? gram : x, y);
    }
    launch(call, rows_grid(static_cast<int>(all_.parts) * pieces.rows), write_rows, y, pieces,
           static_cast<float>(all_.adjustment(matrix)), u);
  }

  MuonMatrices all_;
  MuonWorkspace places_;
  std::vector<Products> products_;
};

}  // namespace

Prepared prepare_muon_orthogonalize(const Signature& s, const Context& context) {
  return std::make_unique<Orthogonalize>(s, context);
}

}  // namespace trainer::kernels::cuda
