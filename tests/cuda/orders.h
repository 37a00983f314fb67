// In how many orders the device under test can be made to run: the emulated one in several, a GPU as it pleases.
#pragma once

#include <cstdint>
#include <string>

namespace trainer::kernels::test {

/// Before the device is opened: the emulated one gets cuDNN, and few multiprocessors, so that blocks which stay for
/// many rows have several turns.
void choose_device();
/// Kernels of the runners are chosen by time in between, if the environment asks for it. Returns what the device says.
void begin_choices();
std::string end_choices();
std::uint64_t num_orders();
void set_order(std::uint64_t order);
std::string order_name(std::uint64_t order);

}  // namespace trainer::kernels::test
