// zero and cast: moving bytes.
#include <cstring>

#include "kernels/cpu/families.h"
#include "kernels/cpu/make_kernel.h"
#include "kernels/cpu/parallel.h"

namespace trainer::kernels::cpu {

Prepared prepare_zero(const Signature& signature, const Context& context) {
  expect_operands(signature, 1);
  const std::int64_t bytes = signature.operands[0].bytes();
  const int threads = threads_for(bytes, context.threads);
  return make_kernel([=](const Call& call) {
    char* y = operand<char>(call, 0);
    parallel_ranges(bytes, 64, threads, [&](std::int64_t begin, std::int64_t end) { std::memset(y + begin, 0, static_cast<std::size_t>(end - begin)); });
  });
}

}  // namespace trainer::kernels::cpu
