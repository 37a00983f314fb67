// The states of an optimizer on the CPU. Updates work on f32; states that are kept otherwise pass through a few KiB of
// f32 in L1, piece by piece. Pieces are whole blocks of int8, so that results depend on neither the pieces nor the
// number of threads.
#pragma once

#include <array>

#include "kernels/cpu/optimizer/state_loops.h"
#include "kernels/cpu/runtime/isa.h"
#include "kernels/cpu/runtime/parallel.h"
#include "kernels/optimizer.h"
#include "kernels/prepare.h"

namespace trainer::kernels::cpu {

class States {
 public:
  static constexpr int kMost = 2;

  States() = default;
  /// The `states` states from operand `first` on, or Bug. The second has no sign.
  States(const Signature& signature, int first, int states, Isa isa);

  StateFormat format() const { return operands_.format; }
  /// The operand after them.
  int end() const { return operands_.end; }
  /// State `index` where it is f32; null where there is no such state.
  float* as_f32(const Call& call, int index) const;

  /// fn(begin, end, first state, second state) for pieces of [0, count), on up to `threads` threads: the states from
  /// `begin` on as f32, null where there is none, which fn updates. REQUIRES: they are not f32. `applied`: the number
  /// of this update.
  template <typename Fn>
  void for_each_piece(const Call& call, std::int32_t applied, std::int64_t count, int threads, Fn&& fn) const {
    parallel_ranges(count, kPiece, threads, [&](std::int64_t first, std::int64_t last) {
      alignas(64) float values[kMost][kPiece];
      std::array<float*, kMost> at{};
      for (std::size_t i = 0; i < operands_.states.size(); ++i) at[i] = values[i];
      for (std::int64_t begin = first; begin < last; begin += kPiece) {
        const std::int64_t end = std::min(begin + kPiece, last);
        for (std::size_t i = 0; i < operands_.states.size(); ++i) unpack(call, i, begin, end, at[i]);
        fn(begin, end, at[0], at[1]);
        for (std::size_t i = 0; i < operands_.states.size(); ++i) pack(call, i, begin, end, at[i], applied);
      }
    });
  }

 private:
  static constexpr std::int64_t kPiece = 1024;  // two states of it, and what the update reads besides, are half of L1

  void unpack(const Call& call, std::size_t state, std::int64_t begin, std::int64_t end, float* to) const;
  void pack(const Call& call, std::size_t state, std::int64_t begin, std::int64_t end, const float* from,
            std::int32_t applied) const;

  StateOperands operands_;
  decltype(&portable::widen_state) widen_ = nullptr;
  decltype(&portable::round_state) round_ = nullptr;
  decltype(&portable::decode_state) decode_ = nullptr;
  decltype(&portable::encode_state) encode_ = nullptr;
};

}  // namespace trainer::kernels::cpu
