// Random numbers, and ids that are in range.
#include "tools/calibrate/operands.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <vector>

namespace trainer::tools {
namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20;

// Words whose halves are both bf16 numbers of N(0, 1), so that they are random as f32 and as bf16: zeros flatter a
// processor, which clocks higher on them.
const std::vector<std::uint32_t>& pattern() {
  static const std::vector<std::uint32_t> words = [] {
    std::vector<std::uint32_t> out(kBytes / 4);
    std::mt19937 generator(1);
    std::normal_distribution<float> normal;
    const auto half = [&] {
      const float value = normal(generator);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      return bits >> 16;
    };
    for (std::uint32_t& word : out) word = half() << 16 | half();
    return out;
  }();
  return words;
}

// Numbers in [0, below), in no order. Ranks ask for them at the same time.
const std::vector<std::int32_t>& numbers(std::int64_t below) {
  static std::mutex mutex;
  static std::map<std::int64_t, std::vector<std::int32_t>> all;
  const std::lock_guard lock(mutex);
  const auto [at, added] = all.try_emplace(below);
  if (added)
    for (std::size_t i = 0; i < kBytes / 4; ++i)
      at->second.push_back(static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % below));
  return at->second;
}

// Numbers that ids may be: rows of a table, classes, a counter; 0: unknown.
std::int64_t ids_of(const Signature& s) {
  switch (s.op) {
    case Op::embedding:
      return s.operands[1].shape[0];
    case Op::embedding_grad:
      return s.operands[2].shape[0];
    case Op::cross_entropy:
    case Op::cross_entropy_grad:
    case Op::cross_entropy_and_grad:
    case Op::cross_entropy_stats:
    case Op::cross_entropy_gathered:
    case Op::correct_count:
      return s.operands[0].shape[-1];
    case Op::max_pool2d:  // it writes them
      return s.operands[0].shape[-1] * s.operands[0].shape[-2];
    case Op::max_pool2d_grad:
      return s.operands[2].shape[-1] * s.operands[2].shape[-2];
    case Op::cross_entropy_count:
    case Op::correct_count_gathered:
      return 2;
    default:
      return 0;
  }
}

}  // namespace

// Of a weight's gradient and of sums it is the second; the step's own kernels take what lies long back.
int fresh_of(const Signature& s) {
  switch (s.op) {
    case Op::linear_grad_weight:
    case Op::conv2d_grad_weight:
    case Op::conv1d_grad_weight:
    case Op::embedding:
    case Op::embedding_grad:
      return 1;
    case Op::zero:
    case Op::cast:
    case Op::sum_squares:
    case Op::sgd:
    case Op::adam:
    case Op::adamw:
    case Op::lion:
    case Op::muon_momentum:
    case Op::muon:
    case Op::scale:
    case Op::outer_gradient:
    case Op::outer_step:
    case Op::apply_delayed:
    case Op::compress_bf16:
    case Op::quantize_int8:
    case Op::dequantize_int8:
    case Op::dequantize_sum_int8:
    case Op::top_k_compress:
      return -1;
    default:
      return 0;
  }
}

// A single number counts steps, and any will do.
bool knows_contents(const Signature& signature) {
  return ids_of(signature) != 0 || std::ranges::none_of(signature.operands, [](const TensorDesc& operand) {
           return operand.dtype == DType::i32 && operand.elements() > 1;
         });
}

std::span<const std::byte> contents_of(const Signature& signature, int operand) {
  switch (signature.operands[static_cast<std::size_t>(operand)].dtype) {
    case DType::i32:
      return std::as_bytes(std::span(numbers(std::max<std::int64_t>(1, ids_of(signature)))));
    case DType::f32:
    case DType::bf16:
    case DType::f16:
      return std::as_bytes(std::span(pattern()));
    default:
      return {};
  }
}

}  // namespace trainer::tools
