// split, concat, slice and expand: rows are shared out over threads, each row's pieces are copied.
#include "kernels/split.h"

#include <cstring>

#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

Prepared prepare_pieces(const Signature& signature, const Context& context, bool splits) {
  const SplitRows sizes = split_rows(signature);
  const int pieces = static_cast<int>(sizes.widths.size()), whole = splits ? 0 : pieces, first = splits ? 1 : 0;
  const int threads = threads_for(2 * sizes.rows * sizes.whole, context.threads);
  return make_kernel([=](const Call& call) {
    parallel_ranges(sizes.rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        for (int i = 0; i < pieces; ++i) {
          const std::int64_t offset = sizes.offsets[static_cast<std::size_t>(i)],
                             width = sizes.widths[static_cast<std::size_t>(i)];
          char* const in_whole = operand<char>(call, whole) + row * sizes.whole + offset;
          char* const alone = operand<char>(call, first + i) + row * width;
          std::memcpy(splits ? alone : in_whole, splits ? in_whole : alone, static_cast<std::size_t>(width));
        }
    });
  });
}

Prepared prepare_slice_of(const Signature& signature, const Context& context, bool forward) {
  const SliceRows s = slice_rows(signature);
  const int threads = threads_for(s.rows * (forward ? 2 * s.width : s.whole + s.width), context.threads);
  return make_kernel([=](const Call& call) {
    parallel_ranges(s.rows, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        char* const whole = operand<char>(call, forward ? 0 : 1) + row * s.whole;
        char* const piece = operand<char>(call, forward ? 1 : 0) + row * s.width;
        if (forward) {
          std::memcpy(piece, whole + s.offset, static_cast<std::size_t>(s.width));
          continue;
        }
        std::memset(whole, 0, static_cast<std::size_t>(s.offset));
        std::memcpy(whole + s.offset, piece, static_cast<std::size_t>(s.width));
        const std::int64_t after = s.offset + s.width;
        std::memset(whole + after, 0, static_cast<std::size_t>(s.whole - after));
      }
    });
  });
}

}  // namespace

Prepared prepare_split(const Signature& signature, const Context& context) {
  return prepare_pieces(signature, context, true);
}
Prepared prepare_concat(const Signature& signature, const Context& context) {
  return prepare_pieces(signature, context, false);
}

Prepared prepare_slice(const Signature& signature, const Context& context) {
  return prepare_slice_of(signature, context, true);
}
Prepared prepare_slice_grad(const Signature& signature, const Context& context) {
  return prepare_slice_of(signature, context, false);
}

Prepared prepare_expand(const Signature& signature, const Context& context) {
  const ExpandRows s = expand_rows(signature);
  const int threads = threads_for(2 * signature.operands[2].bytes(), context.threads);
  return make_kernel([=](const Call& call) {
    parallel_ranges(s.rows * s.copies, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t copy = begin; copy < end; ++copy)
        std::memcpy(operand<char>(call, 2) + copy * s.width, operand<char>(call, 0) + copy / s.copies * s.width,
                    static_cast<std::size_t>(s.width));
    });
  });
}

}  // namespace trainer::kernels::cpu
