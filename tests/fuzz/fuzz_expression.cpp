// Any bytes as an expression: either an ExpressionError at a place within the text, or a finite number.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/job/expression.h"

namespace {

const trainer::Variables kVariables{{"layers", 12}, {"dim", 64}, {"index", 3}, {"x", 0.5}};

template <typename Read>
void attempt(std::string_view text, Read read) {
  try {
    read();
  } catch (const trainer::ExpressionError& error) {
    if (error.offset > text.size()) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainer;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  attempt(text, [&] {
    if (!std::isfinite(evaluate(text, kVariables))) std::abort();
  });
  attempt(text, [&] {
    const std::optional<double> value = evaluate_template(text, kVariables);
    if (value && !std::isfinite(*value)) std::abort();
  });
  attempt(text, [&] { substitute(text, kVariables); });
  return 0;
}
