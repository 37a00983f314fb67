// top_k_compress and top_k_sum.
//
// The k largest are found exactly in one pass over memory: a sample (every 64th line of 16) gives a floor that somewhat
// more than k elements reach; the pass that adds the gradient to the residual collects those, and three digits of a
// radix selection choose among them. A thread whose part holds far more than its share takes its whole part for
// candidates; if fewer than k reach the floor, all do. So the floor decides about speed alone, and what is chosen
// depends on neither sample nor threads.
#include <cstring>
#include <limits>
#include <vector>

#include "engine/core/compression.h"
#include "engine/core/op_record.h"
#include "kernels/compression.h"
#include "kernels/cpu/compression/compression_loops.h"
#include "kernels/cpu/compression/top_k_loops.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/make_kernel.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu {
namespace {

constexpr std::int64_t kGrain = 64, kLine = 16, kSampleStride = 64 * kLine;
constexpr std::int64_t kLeastToSample = 65536;
constexpr std::int32_t kInfinity = 0x7F800000;
constexpr std::int64_t kDigits = 2048;  // of 11 bits; then twice 10 of them

/// Sizes, the same at planning and at preparation.
struct TopKSizes {
  std::int64_t count = 0, k = 0;
  int parts = 1;
  std::int64_t most = 0;      ///< elements of the largest part
  std::int64_t capacity = 0;  ///< candidates of a part; 0: not sampled, every element is one

  TopKSizes(const Signature& signature, const Context& context) {
    const TensorDesc& gradient = signature.operands[0];
    count = gradient.elements();
    k = integer(signature, "k");
    parts = threads_for(gradient.bytes() + 8 * count, context.threads);
    most = partition(count, 0, parts, kGrain).size();
    if (count >= kLeastToSample && k <= count / 8) capacity = std::min(most, 5 * k / parts + 8192);
  }
  std::int64_t histogram_bytes() const { return kDigits * 4; }
  std::int64_t list_bytes() const { return padded_to_64(4 * (capacity + kLine)); }
  std::int64_t sample_bytes() const { return padded_to_64((most / kSampleStride + 1) * kLine * 4); }
  /// A histogram, then the values and places of candidates; the sample lies where those will.
  std::int64_t part_bytes() const {
    return histogram_bytes() + (capacity == 0 ? 0 : std::max(2 * list_bytes(), sample_bytes()));
  }
};

class TopK final : public Kernel {
 public:
  TopK(const Signature& signature, const Context& context)
      : sizes_(signature, context),
        bf16_(expect_compute_dtype(signature, 0)),
        sample_(CHOOSE_BY_ISA(context.isa, sample_sums)),
        collect_(CHOOSE_BY_ISA(context.isa, add_and_collect)),
        count_(CHOOSE_BY_ISA(context.isa, count_digits)),
        hand_out_(CHOOSE_BY_ISA(context.isa, hand_out)),
        clear_(CHOOSE_BY_ISA(context.isa, clear_not_finite)),
        parts_(static_cast<std::size_t>(sizes_.parts)) {}

  void run(const Call& call) override {
    gradient_ = operand<void>(call, 0);
    residual_ = operand<float>(call, 1);
    workspace_ = static_cast<char*>(call.workspace);
    collect(floor_of_sample());
    const Choice choice = select(sizes_.k);
    write(choice, operand<char>(call, 2));
    if (choice.threshold >= kInfinity)
      parallel_ranges(sizes_.count, kGrain, sizes_.parts,
                      [&](std::int64_t begin, std::int64_t end) { clear_(residual_, begin, end); });
  }

 private:
  struct Part {
    Candidates candidates;
    std::int64_t greater = 0, equal = 0;  ///< than the threshold
  };
  struct Choice {
    std::int32_t threshold = 0;
    std::int64_t ties = 0;  ///< of those equal to it that are chosen
  };

  Part& part_at(int part) { return parts_[static_cast<std::size_t>(part)]; }
  char* memory_of(int part) const { return workspace_ + part * sizes_.part_bytes(); }
  std::uint32_t* histogram_of(int part) const { return reinterpret_cast<std::uint32_t*>(memory_of(part)); }
  float* values_of(int part) const { return reinterpret_cast<float*>(memory_of(part) + sizes_.histogram_bytes()); }
  Range range_of(int part) const { return partition(sizes_.count, part, sizes_.parts, kGrain); }

  /// A key that some more than k elements reach, most likely; 0 where none is sought.
  std::int32_t floor_of_sample() {
    if (sizes_.capacity == 0) return 0;
    parallel(sizes_.parts, [&](int part, int) {
      const Range range = range_of(part);
      const std::int64_t found =
          sample_(bf16_, gradient_, residual_, range.begin, range.end, kSampleStride, values_of(part));
      part_at(part).candidates = {values_of(part), nullptr, 0, found};
    });
    std::int64_t sampled = 0;
    for (const Part& part : parts_) sampled += part.candidates.count;
    const std::int64_t rank =
        static_cast<std::int64_t>(1.25 * static_cast<double>(sizes_.k) * static_cast<double>(sampled) /
                                  static_cast<double>(sizes_.count)) +
        64;
    return rank < sampled ? std::max(select(rank).threshold, 1) : 0;
  }

  /// Adds the gradient to the residual, and gathers the candidates of every part.
  void collect(std::int32_t floor) {
    const std::int32_t least = floor == 0 ? std::numeric_limits<std::int32_t>::max() : floor;
    const std::int64_t capacity = floor == 0 ? 0 : sizes_.capacity;
    parallel(sizes_.parts, [&](int part, int) {
      const Range range = range_of(part);
      Candidates& list = part_at(part).candidates;
      list = {values_of(part),
              reinterpret_cast<std::int32_t*>(reinterpret_cast<char*>(values_of(part)) + sizes_.list_bytes()), 0, 0};
      list.count = collect_(bf16_, gradient_, residual_, range.begin, range.end, least, list, capacity);
    });
    std::int64_t found = 0;
    for (const Part& part : parts_) found += part.candidates.count;
    for (int part = 0; part < sizes_.parts; ++part) {
      const Range range = range_of(part);
      Candidates& list = part_at(part).candidates;
      if (floor == 0 || found < sizes_.k || list.count > capacity)
        list = {residual_ + range.begin, nullptr, range.begin, range.size()};
    }
  }

  /// The `rank`-th largest key of all candidates, and for every part how many there are above and at it.
  Choice select(std::int64_t rank) {
    std::int64_t candidates = 0;
    for (Part& part : parts_) {
      part.greater = 0;
      candidates += part.candidates.count;
    }
    const int threads = threads_for(4 * candidates, sizes_.parts);
    Digit digit;
    for (;;) {
      parallel_ranges(sizes_.parts, 1, threads, [&](std::int64_t begin, std::int64_t end) {
        for (int part = static_cast<int>(begin); part < end; ++part) {
          std::memset(histogram_of(part), 0, static_cast<std::size_t>(sizes_.histogram_bytes()));
          count_(part_at(part).candidates, digit, histogram_of(part));
        }
      });
      const std::uint32_t chosen = choose(digit, rank);
      const std::uint32_t prefix = digit.prefix_shift >= 31 ? chosen : (digit.prefix << 10 | chosen);
      if (digit.shift == 0) return {static_cast<std::int32_t>(prefix), rank};
      digit = {prefix, digit.shift, digit.shift - 10, 1023};
    }
  }

  /// The digit of the `rank`-th largest; takes from rank those of larger digits.
  std::uint32_t choose(const Digit& digit, std::int64_t& rank) {
    for (std::uint32_t d = digit.mask;; --d) {
      std::int64_t here = 0;
      for (int part = 0; part < sizes_.parts; ++part) here += histogram_of(part)[d];
      if (here >= rank || d == 0) {
        for (int part = 0; part < sizes_.parts; ++part) part_at(part).equal = histogram_of(part)[d];
        return d;
      }
      for (int part = 0; part < sizes_.parts; ++part) part_at(part).greater += histogram_of(part)[d];
      rank -= here;
    }
  }

  /// Every part at its place, so that indices ascend.
  void write(const Choice& choice, char* out) {
    auto* const index = reinterpret_cast<std::int32_t*>(out);
    auto* const value = reinterpret_cast<float*>(out + top_k_values_offset(sizes_.k));
    parallel(sizes_.parts, [&](int part, int) {
      std::int64_t at = 0, ties = choice.ties;
      for (int before = 0; before < part; ++before) {
        const std::int64_t taken = std::min(ties, part_at(before).equal);
        at += part_at(before).greater + taken;
        ties -= taken;
      }
      hand_out_(part_at(part).candidates, choice.threshold, ties, {index + at, value + at}, residual_);
    });
    const auto padding = static_cast<std::size_t>(top_k_values_offset(sizes_.k) - 4 * sizes_.k);
    std::memset(index + sizes_.k, 0, padding);
    std::memset(value + sizes_.k, 0, padding);
  }

  TopKSizes sizes_;
  bool bf16_;
  decltype(&portable::sample_sums) sample_;
  decltype(&portable::add_and_collect) collect_;
  decltype(&portable::count_digits) count_;
  decltype(&portable::hand_out) hand_out_;
  decltype(&portable::clear_not_finite) clear_;
  std::vector<Part> parts_;
  const void* gradient_ = nullptr;  // of the run
  float* residual_ = nullptr;
  char* workspace_ = nullptr;
};

constexpr std::int64_t kSumBlock = 8192;  // elements whose sums stay in cache

/// Adds to sum[i − begin] the value of each pair of a rank whose index i lies in [begin, end).
void add_pairs(const char* pairs, std::int64_t k, std::int64_t begin, std::int64_t end, float* sum) {
  const auto* index = reinterpret_cast<const std::int32_t*>(pairs);
  const auto* value = reinterpret_cast<const float*>(pairs + top_k_values_offset(k));
  for (const std::int32_t* at = std::lower_bound(index, index + k, begin); at != index + k && *at < end; ++at)
    sum[*at - begin] += value[at - index];
}

}  // namespace

std::int64_t top_k_workspace(const Signature& signature, const Context& context) {
  const TopKSizes sizes(signature, context);
  return sizes.parts * sizes.part_bytes();
}

Prepared prepare_top_k_compress(const Signature& signature, const Context& context) {
  expect_operands(signature, 3);
  const std::int64_t count = signature.operands[0].elements(), k = integer(signature, "k");
  CHECK(1 <= k && k <= count && count <= std::numeric_limits<std::int32_t>::max(),
        describe(signature) + ": k must be from 1 to the number of elements");
  expect_operand(signature, 1, DType::f32, count);
  expect_operand(signature, 2, DType::u8, top_k_bytes(k));
  return std::make_unique<TopK>(signature, context);
}

Prepared prepare_top_k_sum(const Signature& signature, const Context& context) {
  expect_operands(signature, 2);
  const std::int64_t k = integer(signature, "k"), ranks = integer(signature, "ranks"), bytes = top_k_bytes(k);
  expect_operand(signature, 0, DType::u8, ranks * bytes);
  const bool bf16 = expect_compute_dtype(signature, 1);
  const TensorDesc& y = signature.operands[1];
  const std::int64_t count = y.elements(), blocks = (count + kSumBlock - 1) / kSumBlock;
  const int threads = threads_for(y.bytes() + ranks * bytes, context.threads);
  const auto round = CHOOSE_BY_ISA(context.isa, round_to_bf16);
  return make_kernel([=](const Call& call) {
    const char* pairs = operand<char>(call, 0);
    parallel_ranges(blocks, 1, threads, [&](std::int64_t begin, std::int64_t end) {
      alignas(64) float sums[kSumBlock];
      for (std::int64_t block = begin; block < end; ++block) {
        const std::int64_t first = block * kSumBlock, last = std::min(count, first + kSumBlock);
        float* sum = bf16 ? sums : operand<float>(call, 1) + first;
        std::memset(sum, 0, static_cast<std::size_t>(last - first) * sizeof(float));
        for (std::int64_t rank = 0; rank < ranks; ++rank) add_pairs(pairs + rank * bytes, k, first, last, sum);
        if (bf16) round(sums, operand<Bf16>(call, 1) + first, last - first);
      }
    });
  });
}

}  // namespace trainer::kernels::cpu
