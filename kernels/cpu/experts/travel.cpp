// Rows on their way to the ranks that have their experts, and back: which goes where, and the copies.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "engine/core/op_record.h"
#include "kernels/bf16.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/experts.h"

namespace trainer::kernels::cpu {
namespace {

// The parts of one block.
void fill_slots(const TravelSizes& z, std::int64_t of_part, const std::int32_t* choices, std::int32_t* slots,
                std::int32_t* sources, std::int32_t* numbers) {
  std::fill_n(sources, z.slots(), -1);
  std::fill_n(numbers, z.slots(), -1);
  std::vector<std::int64_t> taken(static_cast<std::size_t>(z.parts));
  for (std::int64_t j = 0; j < z.k; ++j)
    for (std::int64_t t = 0; t < z.tokens; ++t) {
      const std::int64_t choice = t * z.k + j;
      slots[choice] = -1;
      if (choices[choice] < 0) continue;
      const std::int64_t part = choices[choice] / of_part;
      std::int64_t& row = taken[static_cast<std::size_t>(part)];
      if (row == z.rows) continue;
      const std::int64_t slot = part * z.rows + row++;
      slots[choice] = static_cast<std::int32_t>(slot);
      sources[slot] = static_cast<std::int32_t>(choice);
      numbers[slot] = static_cast<std::int32_t>(choices[choice] % of_part);
    }
}

template <typename T>
void add_row(const T* from, std::int64_t columns, std::vector<float>& sum) {
  for (std::int64_t i = 0; i < columns; ++i) {
    if constexpr (std::is_same_v<T, float>)
      sum[static_cast<std::size_t>(i)] += from[i];
    else
      sum[static_cast<std::size_t>(i)] += to_f32(from[i]);
  }
}

template <typename T>
void store_row(const std::vector<float>& sum, T* to) {
  for (std::size_t i = 0; i < sum.size(); ++i) {
    if constexpr (std::is_same_v<T, float>)
      to[i] = sum[i];
    else
      to[i] = to_bf16(sum[i]);
  }
}

// Rows [begin, end) of y, of all blocks.
template <typename T>
void combine_rows(const TravelSizes& z, const T* rows, const std::int32_t* slots, T* y, std::int64_t begin,
                  std::int64_t end) {
  const std::int64_t summed = z.by_choice ? 1 : z.k, of_block = z.local_rows() / z.blocks;
  std::vector<float> sum(static_cast<std::size_t>(z.columns));
  for (std::int64_t row = begin; row < end; ++row) {
    std::ranges::fill(sum, 0.0F);
    const T* const block = rows + row / of_block * z.slots() * z.columns;
    for (std::int64_t j = 0; j < summed; ++j)
      if (const std::int64_t slot = slots[row * summed + j]; slot >= 0)
        add_row(block + slot * z.columns, z.columns, sum);
    store_row(sum, y + row * z.columns);
  }
}

}  // namespace

Prepared prepare_expert_slots(const Signature& s, const Context&) {
  const TravelSizes z = travel_sizes(s);
  const std::int64_t of_part = integer(s, "experts") / z.parts;
  return make_kernel([=](const Call& call) {
    for (std::int64_t block = 0; block < z.blocks; ++block)
      fill_slots(z, of_part, operand<std::int32_t>(call, 0) + block * z.choices(),
                 operand<std::int32_t>(call, 1) + block * z.choices(),
                 operand<std::int32_t>(call, 2) + block * z.slots(),
                 operand<std::int32_t>(call, 3) + block * z.slots());
  });
}

Prepared prepare_dispatch(const Signature& s, const Context& c) {
  const TravelSizes z = travel_sizes(s);
  const auto row_bytes = static_cast<std::size_t>(z.columns * size_of(s.operands[0].dtype));
  const std::int64_t of_block = z.local_rows() / z.blocks, together = z.by_choice ? 1 : z.k;
  return make_kernel([=, threads = threads_for(2 * s.operands[3].bytes(), c.threads)](const Call& call) {
    const auto* const x = operand<std::byte>(call, 0);
    const std::int32_t* const sources = operand<std::int32_t>(call, 2);
    auto* const rows = operand<std::byte>(call, 3);
    parallel_ranges(z.blocks * z.slots(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        std::byte* const to = rows + static_cast<std::size_t>(slot) * row_bytes;
        if (sources[slot] < 0) {
          std::memset(to, 0, row_bytes);
          continue;
        }
        const std::int64_t from = slot / z.slots() * of_block + sources[slot] / together;
        std::memcpy(to, x + static_cast<std::size_t>(from) * row_bytes, row_bytes);
      }
    });
  });
}

Prepared prepare_combine(const Signature& s, const Context& c) {
  const TravelSizes z = travel_sizes(s);
  const bool bf16 = expect_compute_dtype(s, 0);
  return make_kernel([=, threads = threads_for(2 * s.operands[0].bytes(), c.threads)](const Call& call) {
    const std::int32_t* const slots = operand<std::int32_t>(call, 1);
    parallel_ranges(z.local_rows(), 1, threads, [&](std::int64_t begin, std::int64_t end) {
      if (bf16)
        combine_rows(z, operand<Bf16>(call, 0), slots, operand<Bf16>(call, 3), begin, end);
      else
        combine_rows(z, operand<float>(call, 0), slots, operand<float>(call, 3), begin, end);
    });
  });
}

}  // namespace trainer::kernels::cpu
