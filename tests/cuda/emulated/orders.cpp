// On the emulated GPU: four orders of threads and streams.
#include "tests/cuda/orders.h"

#include "tests/cuda/emulated/emulated.h"

namespace trainer::kernels::test {

void choose_device() {
  emulated::settings().units = 5;
  emulated::settings().cudnn = true;
}
std::uint64_t num_orders() { return 4; }
void set_order(std::uint64_t order) { emulated::settings().order = order; }
std::string order_name(std::uint64_t order) { return ", emulated in order " + std::to_string(order); }

}  // namespace trainer::kernels::test
