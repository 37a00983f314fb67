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

#include "kernels/cpu/choose.h"
#include "kernels/cpu/elementwise_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/make_kernel.h"
#include "kernels/cpu/optimizer_loops.h"
#include "kernels/cpu/optimizer_states.h"
#include "kernels/cpu/parallel.h"
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

Whole whole_of(const MuonMatrix& matrix, std::int64_t parts) {
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

  Places(const MuonUpdate& update, const Context& context) {
    const std::int64_t matrix = padded(4 * update.most_elements),
                       small = padded(4 * update.most_small * update.most_small);
    x = 0;
    y = x + matrix;
    gram = y + matrix;
    polynomial = gram + small;
    sums = polynomial + small;
    products = sums + padded(8 * chunks_of(update.most_elements));
    end = products;
    for (const MuonMatrix& m : update.matrices)
      end = std::max(end, products + product_bytes(whole_of(m, update.parts), context));
  }
};

class Muon final : public Kernel {
 public:
  Muon(const Signature& signature, const Context& context)
      : update_(muon_update(signature)), context_(context), places_(update_, context) {
    if (update_.working) expect_operand(signature, MuonOperands::working, DType::bf16, update_.count);
  }

  void run(const Call& call) override {
    using At = MuonOperands;
    if (operand<Scalars>(call, At::scalars)->factor == 0) return;
    const std::int64_t first = update_.first(call);
    for (const MuonMatrix& matrix : update_.matrices) {
      if (!update_.has(matrix, first)) continue;
      const Whole whole = whole_of(matrix, update_.parts);
      put_together(call, matrix, whole, matrix.offset - first);
      normalise(call, whole);
      float *x = at<float>(call, places_.x), *y = at<float>(call, places_.y);
      for (std::int64_t step = 0; step < update_.steps; ++step, std::swap(x, y)) newton_schulz(call, whole, x, y);
      apply(call, matrix, whole, matrix.offset - first, x);
    }
  }

 private:
  template <typename T>
  static T* at(const Call& call, std::int64_t place) {
    return reinterpret_cast<T*>(static_cast<unsigned char*>(call.workspace) + place);
  }

  int threads_of(std::int64_t elements) const { return threads_for(8 * elements, context_.threads); }

  /// fn(row of the piece, part) for the rows of all parts that have a piece of the whole.
  template <typename Fn>
  void for_each_row(const MuonMatrix& matrix, std::int64_t first_part, std::int64_t last_part, Fn fn) const {
    const std::int64_t rows = (last_part - first_part) * matrix.rows;
    parallel_ranges(rows, 1, threads_of(rows * matrix.cols), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) fn(i % matrix.rows, first_part + i / matrix.rows);
    });
  }

  /// Where row `row` of part `part` begins in the whole matrix.
  static std::int64_t place(const MuonMatrix& matrix, const Whole& whole, std::int64_t row, std::int64_t part) {
    switch (matrix.cut) {
      case MuonMatrix::Cut::none:
        return row * whole.cols;
      case MuonMatrix::Cut::rows:
        return (part * matrix.rows + row) * whole.cols;
      case MuonMatrix::Cut::columns:
        return row * whole.cols + part * matrix.cols;
    }
    fail_check("cut", __FILE__, __LINE__, "a cut outside the enum");
  }

  /// x = the whole matrix of u; `offset`: where its pieces begin in the slices.
  void put_together(const Call& call, const MuonMatrix& matrix, const Whole& whole, std::int64_t offset) const {
    const float* u = operand<float>(call, MuonOperands::u) + offset;
    float* x = at<float>(call, places_.x);
    const bool cut = matrix.cut != MuonMatrix::Cut::none;
    const std::int64_t first = cut ? 0 : update_.index(call), last = cut ? update_.parts : first + 1;
    for_each_row(matrix, first, last, [&](std::int64_t row, std::int64_t part) {
      std::memcpy(x + place(matrix, whole, row, part), u + part * update_.count + row * matrix.cols,
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
    const auto factor = static_cast<float>(1.0 / std::max(std::sqrt(squares), update_.eps));
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

  /// The update of this rank's piece.
  void apply(const Call& call, const MuonMatrix& matrix, const Whole& whole, std::int64_t offset,
             const float* x) const {
    using At = MuonOperands;
    const double lr = static_cast<double>(*operand<float>(call, At::lr));
    UpdateArgs piece;
    piece.master = operand<float>(call, At::master) + offset;
    piece.working = update_.working ? operand<Bf16>(call, At::working) + offset : nullptr;
    piece.keep = static_cast<float>(1.0 - lr * update_.weight_decay);
    piece.step = static_cast<float>(lr * update_.adjustment(matrix));
    const auto loop = CHOOSE_BY_ISA_OR_BF16(context_.isa, muon_apply);
    const std::int64_t index = update_.index(call);
    for_each_row(matrix, index, index + 1, [&](std::int64_t row, std::int64_t part) {
      UpdateArgs of_row = piece;
      of_row.master += row * matrix.cols;
      if (of_row.working != nullptr) of_row.working += row * matrix.cols;
      loop(of_row, x + place(matrix, whole, row, part), matrix.cols);
    });
  }

  MuonUpdate update_;
  Context context_;
  Places places_;
};

}  // namespace

Prepared prepare_muon(const Signature& signature, const Context& context) {
  return std::make_unique<Muon>(signature, context);
}

std::int64_t muon_workspace(const Signature& signature, const Context& context) {
  return Places(muon_update(signature), context).end;
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
  args.beta1 = static_cast<float>(signature.attributes.real("momentum"));
  args.one_less_beta1 = static_cast<float>(1.0 - signature.attributes.real("momentum"));
  args.nesterov = signature.attributes.flag("nesterov");
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
