// split and concat: rows are shared out over threads, each row's pieces are copied.
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

}  // namespace

Prepared prepare_split(const Signature& signature, const Context& context) {
  return prepare_pieces(signature, context, true);
}
Prepared prepare_concat(const Signature& signature, const Context& context) {
  return prepare_pieces(signature, context, false);
}

}  // namespace trainer::kernels::cpu
