// expert_linear and its gradients: rows are copied in the order of their experts, each expert's product is one of gemm/
// over its rows, and the results go back to their tokens.
//
//   y  = x·Wᵀ    A = rows of x   B = W[e] by columns
//   dx = dy·W    A = rows of dy  B = W[e] by rows
//   dW = dyᵀ·x   A = rows of dy by columns, B = rows of x by rows
#include "kernels/cpu/experts/grouped.h"

#include <algorithm>
#include <cstring>

#include "engine/core/op_record.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/reduction/reduce_loops.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {

namespace {

using gemm::Order;
using gemm::Problem;

std::int64_t in_lines(std::int64_t bytes) { return gemm::round_up(bytes, 64); }

}  // namespace

std::int64_t Groups::bytes(const ExpertSizes& sizes) {
  return in_lines((sizes.experts + 1 + 2 * sizes.choices()) * std::int64_t{sizeof(std::int32_t)});
}

Groups::Groups(const ExpertSizes& sizes, void* memory)
    : begin(static_cast<std::int32_t*>(memory)), order(begin + sizes.experts + 1), place(order + sizes.choices()) {}

void Groups::sort(const ExpertSizes& sizes, const std::int32_t* choices) const {
  std::fill_n(begin, sizes.experts + 1, 0);
  for (std::int64_t i = 0; i < sizes.choices(); ++i) {
    CHECK(choices[i] >= -1 && choices[i] < sizes.experts, "a choice is the number of an expert");
    if (choices[i] >= 0) ++begin[choices[i] + 1];
  }
  for (std::int64_t e = 0; e < sizes.experts; ++e) begin[e + 1] += begin[e];
  for (std::int64_t i = 0; i < sizes.choices();
       ++i) {  // begin[e] runs to the end of e's rows, which is where e + 1 begins
    place[i] = choices[i] < 0 ? -1 : begin[choices[i]]++;
    if (place[i] >= 0) order[place[i]] = static_cast<std::int32_t>(i);
  }
  for (std::int64_t e = sizes.experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
}

namespace {

/// Rows of the choices, in the order of the groups.
void gather(const Groups& groups, const ExpertSizes& sizes, bool by_choice, const void* from, std::int64_t row_bytes,
            void* to, int threads) {
  const std::int64_t count = groups.begin[sizes.experts];
  parallel_ranges(count, 1, threads_for(count * row_bytes, threads), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = by_choice ? groups.order[i] : groups.order[i] / sizes.k;
      std::memcpy(static_cast<std::byte*>(to) + i * row_bytes, static_cast<const std::byte*>(from) + row * row_bytes,
                  static_cast<std::size_t>(row_bytes));
    }
  });
}

/// The products of rows with a weight, or with its transpose.
class RowProducts {
 public:
  RowProducts(const Signature& s, const Context& c)
      : context_(c), sizes_(expert_sizes(s)), forward_(s.op == Op::expert_linear), f32_(!expect_compute_dtype(s, 0)) {
    for (const std::size_t i : {2U, 3U})
      if (s.operands[i].dtype != s.operands[0].dtype) refuse_dtypes(s, "one compute dtype");
  }

  std::int64_t workspace_bytes() const {
    return Groups::bytes(sizes_) + in_lines(sizes_.choices() * columns_in() * size()) +
           in_lines(sizes_.choices() * columns_out() * out_size()) +
           gemm::most_workspace_bytes(problem(sizes_.choices()), context_.isa, context_.threads);
  }

  void run(const Call& call) const {
    auto* at = static_cast<std::byte*>(call.workspace);
    const Groups groups(sizes_, at);
    std::byte* const a = at += Groups::bytes(sizes_);
    std::byte* const c = at += in_lines(sizes_.choices() * columns_in() * size());
    at += in_lines(sizes_.choices() * columns_out() * out_size());
    groups.sort(sizes_, operand<std::int32_t>(call, 1));
    gather(groups, sizes_, in_by_choice(), operand<void>(call, 0), columns_in() * size(), a, context_.threads);
    for (std::int64_t e = 0; e < sizes_.experts; ++e) {
      const std::int64_t rows = groups.count(e);
      if (rows == 0) continue;
      Problem p = problem(rows);
      p.a = a + groups.begin[e] * columns_in() * size();
      p.b = operand<std::byte>(call, 2) + e * sizes_.out * sizes_.in * size();
      p.c = c + groups.begin[e] * columns_out() * out_size();
      gemm::run(p, gemm::method_for(p, context_.isa), context_.isa, context_.threads, at);
    }
    if (out_by_choice())
      spread(groups, c, operand<std::byte>(call, 3));
    else
      sum(groups, c, operand<std::byte>(call, 3));
  }

 private:
  std::int64_t columns_in() const { return forward_ ? sizes_.in : sizes_.out; }
  std::int64_t columns_out() const { return forward_ ? sizes_.out : sizes_.in; }
  bool in_by_choice() const { return forward_ ? sizes_.x_by_choice : sizes_.y_by_choice; }
  bool out_by_choice() const { return forward_ ? sizes_.y_by_choice : sizes_.x_by_choice; }
  std::int64_t size() const { return f32_ ? 4 : 2; }
  /// Of products that are still to be summed f32.
  std::int64_t out_size() const { return out_by_choice() ? size() : 4; }

  Problem problem(std::int64_t rows) const {
    Problem p;
    p.m = rows, p.k = columns_in(), p.n = columns_out();
    p.inputs_are_f32 = f32_;
    p.c_is_f32 = f32_ || !out_by_choice();
    p.lda = p.k, p.ldc = p.n;
    p.b_order = forward_ ? Order::columns : Order::rows;
    p.ldb = sizes_.in;
    return p;
  }

  void spread(const Groups& groups, const std::byte* from, std::byte* to) const {
    const auto bytes = static_cast<std::size_t>(columns_out() * size());
    parallel_ranges(sizes_.choices(), 1, threads_for(sizes_.choices() * columns_out() * size(), context_.threads),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) {
                        std::byte* const row = to + static_cast<std::size_t>(i) * bytes;
                        if (groups.place[i] < 0)
                          std::memset(row, 0, bytes);
                        else
                          std::memcpy(row, from + static_cast<std::size_t>(groups.place[i]) * bytes, bytes);
                      }
                    });
  }

  void sum(const Groups& groups, const std::byte* from, std::byte* to) const {
    const auto loop = CHOOSE_BY_ISA_OR_BF16(context_.isa, sum_indexed_rows);
    const std::int64_t n = columns_out();
    parallel_ranges(sizes_.tokens, 1, threads_for(sizes_.choices() * n * 4, context_.threads),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t t = begin; t < end; ++t) {
                        std::int32_t* const places =
                            groups.place + t * sizes_.k;  // of none, those that are none left out
                        const auto count = std::remove(places, places + sizes_.k, -1) - places;
                        loop(false, !f32_, from, places, count, to + t * n * size(), n, false, 0, n);
                      }
                    });
  }

  Context context_;
  ExpertSizes sizes_;
  bool forward_, f32_;
};

class WeightProducts {
 public:
  WeightProducts(const Signature& s, const Context& c)
      : context_(c),
        sizes_(expert_sizes(s)),
        f32_(!expect_compute_dtype(s, 0)),
        result_f32_(!expect_compute_dtype(s, 3)),
        accumulate_(accumulates(s)) {
    if (s.operands[1].dtype != s.operands[0].dtype) refuse_dtypes(s, "one compute dtype for x and dy");
  }

  std::int64_t workspace_bytes() const {
    return Groups::bytes(sizes_) + in_lines(sizes_.choices() * sizes_.in * size()) +
           in_lines(sizes_.choices() * sizes_.out * size()) +
           gemm::most_workspace_bytes(problem(sizes_.choices()), context_.isa, context_.threads);
  }

  void run(const Call& call) const {
    auto* at = static_cast<std::byte*>(call.workspace);
    const Groups groups(sizes_, at);
    std::byte* const x = at += Groups::bytes(sizes_);
    std::byte* const dy = at += in_lines(sizes_.choices() * sizes_.in * size());
    at += in_lines(sizes_.choices() * sizes_.out * size());
    groups.sort(sizes_, operand<std::int32_t>(call, 2));
    gather(groups, sizes_, sizes_.x_by_choice, operand<void>(call, 0), sizes_.in * size(), x, context_.threads);
    gather(groups, sizes_, sizes_.y_by_choice, operand<void>(call, 1), sizes_.out * size(), dy, context_.threads);
    const std::int64_t matrix = sizes_.out * sizes_.in * (result_f32_ ? 4 : 2);
    for (std::int64_t e = 0; e < sizes_.experts; ++e) {
      const std::int64_t rows = groups.count(e);
      std::byte* const result = operand<std::byte>(call, 3) + e * matrix;
      if (rows == 0 && !accumulate_) std::memset(result, 0, static_cast<std::size_t>(matrix));
      if (rows == 0) continue;
      Problem p = problem(rows);
      p.a = dy + groups.begin[e] * sizes_.out * size();
      p.b = x + groups.begin[e] * sizes_.in * size();
      p.c = result;
      p.addend = accumulate_ ? result : nullptr;
      gemm::run(p, gemm::method_for(p, context_.isa), context_.isa, context_.threads, at);
    }
  }

 private:
  std::int64_t size() const { return f32_ ? 4 : 2; }

  Problem problem(std::int64_t rows) const {
    Problem p;
    p.m = sizes_.out, p.k = rows, p.n = sizes_.in;
    p.inputs_are_f32 = f32_;
    p.c_is_f32 = result_f32_;
    p.lda = p.m, p.ldb = p.n, p.ldc = p.n;
    p.a_order = Order::columns, p.b_order = Order::rows;
    return p;
  }

  Context context_;
  ExpertSizes sizes_;
  bool f32_, result_f32_, accumulate_;
};

template <typename Products>
Prepared prepared(const Signature& s, const Context& c) {
  return make_kernel([products = Products(s, c)](const Call& call) { products.run(call); });
}

}  // namespace

Prepared prepare_expert_linear(const Signature& s, const Context& c) { return prepared<RowProducts>(s, c); }
Prepared prepare_expert_linear_grad_input(const Signature& s, const Context& c) { return prepared<RowProducts>(s, c); }
Prepared prepare_expert_linear_grad_weight(const Signature& s, const Context& c) {
  return prepared<WeightProducts>(s, c);
}

std::int64_t expert_linear_workspace(const Signature& s, const Context& c) {
  return s.op == Op::expert_linear_grad_weight ? WeightProducts(s, c).workspace_bytes()
                                               : RowProducts(s, c).workspace_bytes();
}

}  // namespace trainer::kernels::cpu
