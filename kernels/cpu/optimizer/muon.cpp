// Muon on the CPU: one matrix after the other, its products on the whole team (gemm/), all in f32.
//
// A matrix is put together in the workspace first, so that everything after sees the whole one: the same bits however
// it is cut. With a on the diagonal of the polynomial P = a I + b A + c A², a step ends with one product, P·X, or X·P
// of a tall matrix.
#include "kernels/muon.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/core/op_record.h"
#include "kernels/cpu/elementwise/elementwise_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/optimizer/optimizer_loops.h"
#include "kernels/cpu/optimizer/states.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/optimizer.h"

namespace trainer::kernels::cpu {
namespace {

using gemm::Order;
using gemm::Problem;

constexpr std::int64_t kChunk = 32768;  // elements summed at a time

std::int64_t chunks_of(std::int64_t count) { return (count + kChunk - 1) / kChunk; }
std::int64_t padded(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// A whole matrix, row-major, and the products of a step.
struct Whole {
  std::int64_t rows, cols;

  bool tall() const { return rows > cols; }
  std::int64_t small() const { return std::min(rows, cols); }
  std::int64_t large() const { return std::max(rows, cols); }
  std::int64_t elements() const { return rows * cols; }

  /// A = X·Xᵀ, or Xᵀ·X of a tall X.
  Problem gram() const {
    Problem p = product(small(), small(), large());
    p.lda = p.ldb = cols;
    (tall() ? p.a_order : p.b_order) = Order::columns;
    return p;
  }
  Problem square() const {
    Problem p = product(small(), small(), small());
    p.lda = p.ldb = small();
    return p;
  }
  /// P·X, or X·P of a tall X.
  Problem apply() const {
    Problem p = product(rows, cols, small());
    p.lda = small();
    p.ldb = cols;
    return p;
  }

 private:
  static Problem product(std::int64_t m, std::int64_t n, std::int64_t k) {
    Problem p;
    p.m = m, p.n = n, p.k = k;
    p.inputs_are_f32 = p.c_is_f32 = true;
    p.b_order = Order::rows;
    p.ldc = n;
    return p;
  }
};

Whole whole_of(const OwnedMatrix& matrix, std::int64_t parts) {
  return {matrix.whole_rows(parts), matrix.whole_cols(parts)};
}

std::int64_t product_bytes(const Whole& whole, const Context& c) {
  std::int64_t bytes = 0;
  for (const Problem& p : {whole.gram(), whole.square(), whole.apply()})
    bytes = std::max(bytes, gemm::workspace_bytes(p, gemm::method_for(p, c.isa), c.isa, c.threads));
  return bytes;
}

/// Where what the steps need lies in the workspace, in bytes.
struct Places {
  std::int64_t x, y, gram, polynomial, sums, products, end;

  Places(const MuonMatrices& all, const Context& context) {
    const std::int64_t matrix = padded(4 * all.most_elements), small = padded(4 * all.most_small * all.most_small);
    x = 0;
    y = x + matrix;
    gram = y + matrix;
    polynomial = gram + small;
    sums = polynomial + small;
    products = sums + padded(8 * chunks_of(all.most_elements));
    end = products;
    for (const OwnedMatrix& m : all.matrices)
      end = std::max(end, products + product_bytes(whole_of(m, all.parts), context));
  }
};

class Orthogonalize final : public Kernel {
 public:
  Orthogonalize(const Signature& signature, const Context& context)
      : all_(muon_matrices_of(signature)), context_(context), places_(all_, context) {}

  void run(const Call& call) override {
    if (operand<Scalars>(call, 1)->factor == 0) return;
    std::int64_t end = 0;  // of what is done
    for (const OwnedMatrix& matrix : all_.matrices) {
      if (matrix.owner != call.origin) continue;
      clear(call, end, matrix.offset);
      end = matrix.end();
      const Whole whole = whole_of(matrix, all_.parts);
      put_together(call, matrix, whole);
      normalise(call, whole);
      float *x = at<float>(call, places_.x), *y = at<float>(call, places_.y);
      for (std::int64_t step = 0; step < all_.steps; ++step, std::swap(x, y)) newton_schulz(call, whole, x, y);
      write_back(call, matrix, whole, x);
    }
    clear(call, end, all_.elements);
  }

 private:
  template <typename T>
  static T* at(const Call& call, std::int64_t place) {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(call.workspace) + place);
  }

  int threads_of(std::int64_t elements) const { return threads_for(8 * elements, context_.threads); }

  /// fn(row of the piece, part) for the rows of the first `parts` parts.
  template <typename Fn>
  void for_each_row(const OwnedMatrix& matrix, std::int64_t parts, Fn fn) const {
    const std::int64_t rows = parts * matrix.rows;
    parallel_ranges(rows, 1, threads_of(rows * matrix.cols), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) fn(i % matrix.rows, i / matrix.rows);
    });
  }

  float* row_of(const Call& call, const OwnedMatrix& matrix, std::int64_t row, std::int64_t part) const {
    return operand<float>(call, 0) + part * all_.elements + matrix.offset + row * matrix.cols;
  }

  /// Elements [first, last) of all parts are 0.
  void clear(const Call& call, std::int64_t first, std::int64_t last) const {
    if (first == last) return;
    for (std::int64_t part = 0; part < all_.parts; ++part) {
      float* x = operand<float>(call, 0) + part * all_.elements;
      parallel_ranges(last - first, 64, threads_of(last - first), [&](std::int64_t begin, std::int64_t end) {
        std::fill(x + first + begin, x + first + end, 0.0f);
      });
    }
  }

  /// Where row `row` of part `part` begins in the whole matrix.
  static std::int64_t place(const OwnedMatrix& matrix, const Whole& whole, std::int64_t row, std::int64_t part) {
    switch (matrix.cut) {
      case OwnedMatrix::Cut::none:
        return row * whole.cols;
      case OwnedMatrix::Cut::rows:
        return (part * matrix.rows + row) * whole.cols;
      case OwnedMatrix::Cut::columns:
        return row * whole.cols + part * matrix.cols;
    }
    UNREACHABLE("a cut outside the enum");
  }

  /// The workspace's x = the whole matrix.
  void put_together(const Call& call, const OwnedMatrix& matrix, const Whole& whole) const {
    float* x = at<float>(call, places_.x);
    for_each_row(matrix, matrix.cut == OwnedMatrix::Cut::none ? 1 : all_.parts,
                 [&](std::int64_t row, std::int64_t part) {
                   std::memcpy(x + place(matrix, whole, row, part), row_of(call, matrix, row, part),
                               static_cast<std::size_t>(4 * matrix.cols));
                 });
  }

  /// x = x / max(‖x‖, eps).
  void normalise(const Call& call, const Whole& whole) const {
    float* x = at<float>(call, places_.x);
    double* sums = at<double>(call, places_.sums);
    const std::int64_t count = whole.elements(), chunks = chunks_of(count);
    const auto sum = CHOOSE_BY_ISA_OR_BF16(context_.isa, sum_squares);
    const auto scale = CHOOSE_BY_ISA_OR_BF16(context_.isa, scale);
    parallel_ranges(chunks, 1, threads_of(count), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sums[i] = sum(false, x, i * kChunk, std::min((i + 1) * kChunk, count));
    });
    double squares = 0;
    for (std::int64_t i = 0; i < chunks; ++i) squares += sums[i];
    const auto factor = static_cast<float>(1.0 / std::max(std::sqrt(squares), all_.eps));
    parallel_ranges(count, 64, threads_of(count),
                    [&](std::int64_t begin, std::int64_t end) { scale(false, x, factor, x, begin, end); });
  }

  void multiply(const Call& call, Problem p, const float* a, const float* b, float* c) const {
    p.a = a;
    p.b = b;
    p.c = c;
    gemm::run(p, gemm::method_for(p, context_.isa), context_.isa, context_.threads, at<void>(call, places_.products));
  }

  /// y = P·x.
  void newton_schulz(const Call& call, const Whole& whole, const float* x, float* y) const {
    float *gram = at<float>(call, places_.gram), *p = at<float>(call, places_.polynomial);
    multiply(call, whole.gram(), x, x, gram);
    multiply(call, whole.square(), gram, gram, p);
    const std::int64_t small = whole.small();
    const auto polynomial = CHOOSE_BY_ISA_OR_BF16(context_.isa, muon_polynomial);
    parallel_ranges(small, 1, threads_of(small * small), [&](std::int64_t begin, std::int64_t end) {
      polynomial(gram, p, begin * small, end * small);
      for (std::int64_t i = begin; i < end; ++i) p[i * small + i] += kNewtonSchulzA;
    });
    multiply(call, whole.apply(), whole.tall() ? x : p, whole.tall() ? p : x, y);
  }

  /// What the ranks hold of r · x.
  void write_back(const Call& call, const OwnedMatrix& matrix, const Whole& whole, const float* x) const {
    const auto scale = CHOOSE_BY_ISA_OR_BF16(context_.isa, scale);
    const auto factor = static_cast<float>(all_.adjustment(matrix));
    for_each_row(matrix, all_.parts, [&](std::int64_t row, std::int64_t part) {
      scale(false, x + place(matrix, whole, row, part), factor, row_of(call, matrix, row, part), 0, matrix.cols);
    });
  }

  MuonMatrices all_;
  Context context_;
  Places places_;
};

}  // namespace

Prepared prepare_muon_orthogonalize(const Signature& signature, const Context& context) {
  return std::make_unique<Orthogonalize>(signature, context);
}

std::int64_t muon_orthogonalize_workspace(const Signature& signature, const Context& context) {
  return Places(muon_matrices_of(signature), context).end;
}

Prepared prepare_muon_momentum(const Signature& signature, const Context& context) {
  const std::int64_t count = signature.operands[0].elements();
  const States states(signature, 1, 1, context.isa);
  const int scalars = states.end(), applied = scalars + 1, u = scalars + 2;
  expect_operands(signature, static_cast<std::size_t>(u) + 1);
  expect_operand(signature, scalars, DType::f32, 4);
  expect_operand(signature, applied, DType::i32, 1);
  expect_operand(signature, u, DType::f32, count);
  UpdateArgs args;
  args.bf16_gradient = expect_compute_dtype(signature, 0);
  args.beta1 = static_cast<float>(real(signature, "momentum"));
  args.one_less_beta1 = static_cast<float>(1.0 - real(signature, "momentum"));
  args.nesterov = flag(signature, "nesterov");
  const int threads = threads_for(16 * count, context.threads);
  const auto loop = CHOOSE_BY_ISA_OR_BF16(context.isa, muon_momentum);
  return make_kernel([=](const Call& call) {
    UpdateArgs now = args;
    now.gradient = operand<void>(call, 0);
    now.master = operand<float>(call, u);
    now.factor = operand<Scalars>(call, scalars)->factor;
    if (now.factor == 0) {
      parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) {
        std::fill(now.master + begin, now.master + end, 0.0f);
      });
    } else if (states.format() == StateFormat::f32) {
      now.m = states.as_f32(call, 0);
      parallel_ranges(count, 64, threads, [&](std::int64_t begin, std::int64_t end) { loop(now, begin, end); });
    } else {
      states.for_each_piece(call, *operand<std::int32_t>(call, applied), count, threads,
                            [&](std::int64_t begin, std::int64_t end, float* m, float*) {
                              UpdateArgs piece = now.from(begin);
                              piece.m = m;
                              loop(piece, 0, end - begin);
                            });
    }
  });
}

}  // namespace trainer::kernels::cpu
