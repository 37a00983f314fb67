// What of cuDNN's attention can be checked without cuDNN.
#include <limits>

#include "kernels/cuda/attention/cudnn_attention.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

using trainer::kernels::cuda::masked_score;

TEST_CASE("a masked score is minus infinity from cuDNN 9.10 on, and the least finite number before") {
  CHECK(masked_score(91000) == -std::numeric_limits<float>::infinity());
  CHECK(masked_score(91900) == -std::numeric_limits<float>::infinity());
  CHECK(masked_score(90999) == std::numeric_limits<float>::lowest());
}
