// Which pairs of layouts are known, and the matrices that lie between them.
#include "kernels/cpu/convolution/layouts.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "kernels/cpu/copy/transpose_loops.h"
#include "kernels/cpu/runtime/choose.h"
#include "kernels/cpu/runtime/parallel.h"

namespace trainer::kernels::cpu::onednn {
namespace {

using dnnl::memory;

constexpr std::int64_t kStrip = 64;       // channels of a part of a transposition: whole squares of its loops
constexpr std::int64_t kMostPlaces = 49;  // of a weight's window, for the room between its two transpositions
constexpr std::int64_t kMostBlock = 16;

bool is_blocked(const memory::desc& desc) {
  return desc.get_format_kind() == memory::format_kind::blocked && desc.get_ndims() == 4 &&
         desc.get_dims() == desc.get_padded_dims();
}

bool is_plain(const memory::desc& desc) {
  const memory::dims d = desc.get_dims();
  return desc.get_inner_nblks() == 0 && desc.get_strides() == memory::dims{d[1] * d[2] * d[3], d[2] * d[3], d[3], 1};
}

/// Channels that lie side by side; 0: none do.
std::int64_t channel_block(const memory::desc& desc) {
  const memory::dims d = desc.get_dims();
  std::int64_t block = d[1];
  if (desc.get_inner_nblks() == 1 && desc.get_inner_idxs()[0] == 1)
    block = desc.get_inner_blks()[0];
  else if (desc.get_inner_nblks() != 0)
    return 0;
  const std::int64_t beside = desc.get_inner_nblks() == 0 ? 1 : d[2] * d[3] * block;  // from one block to the next
  return desc.get_strides() == memory::dims{d[1] * d[2] * d[3], beside, d[3] * block, block} ? block : 0;
}

/// Whether a weight lies in blocks of [inputs, outputs], window by window.
bool is_weight_in_blocks(const memory::desc& desc) {
  if (desc.get_inner_nblks() != 2 || desc.get_inner_idxs() != memory::dims{1, 0}) return false;
  const memory::dims d = desc.get_dims(), blocks = desc.get_inner_blks();
  const std::int64_t square = blocks[0] * blocks[1];
  return blocks[0] <= kMostBlock && blocks[1] <= kMostBlock &&
         desc.get_strides() ==
             memory::dims{d[1] / blocks[0] * d[2] * d[3] * square, d[2] * d[3] * square, d[3] * square, square};
}

}  // namespace

std::optional<LayoutChange> LayoutChange::between(const memory::desc& from, const memory::desc& to, bool add) {
  if (!is_blocked(from) || !is_blocked(to) || from.get_data_type() != to.get_data_type()) return std::nullopt;
  const memory::desc& other = is_plain(from) ? to : from;
  if (!is_plain(is_plain(from) ? from : to)) return std::nullopt;
  const memory::dims d = from.get_dims();
  LayoutChange change;
  change.add_ = add;
  change.element_bytes_ = static_cast<std::int64_t>(memory::data_type_size(from.get_data_type()));
  change.samples_ = d[0], change.channels_ = d[1], change.places_ = d[2] * d[3];
  change.block_ = channel_block(other);
  if (change.block_ != 0 && !add && (change.element_bytes_ == 2 || change.element_bytes_ == 4)) {
    change.kind_ = is_plain(from) ? Kind::into_blocks : Kind::from_blocks;
    return change;
  }
  if (&other != &from || from.get_data_type() != memory::data_type::f32 || !is_weight_in_blocks(from) ||
      change.places_ > kMostPlaces)
    return std::nullopt;
  change.kind_ = Kind::weight_from_blocks;
  change.input_block_ = from.get_inner_blks()[0], change.block_ = from.get_inner_blks()[1];
  return change;
}

/// A part: a strip of a block of channels of a sample.
template <typename T>
void LayoutChange::run_images(const T* from, T* to, int threads, Isa isa) const {
  void (*loop)(const Transposition&, const T*, T*) = nullptr;
  if constexpr (std::is_same_v<T, float>)
    loop = CHOOSE_BY_ISA(isa, transpose_f32);
  else
    loop = CHOOSE_BY_ISA(isa, transpose_u16);
  const std::int64_t strips = (block_ + kStrip - 1) / kStrip;
  parallel_ranges(samples_ * channels_ / block_ * strips, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t first = i % strips * kStrip, strip = std::min(kStrip, block_ - first),
                         block = i / strips * block_ * places_;
      const std::int64_t plain = block + first * places_, inside = block + first;
      if (kind_ == Kind::into_blocks)
        loop({strip, places_, places_, block_}, from + plain, to + inside);
      else
        loop({places_, strip, block_, places_}, from + inside, to + plain);
    }
  });
}

/// A part: a block of outputs by a block of inputs. Its outputs first become rows of [places, inputs], which are then
/// transposed each.
void LayoutChange::run_weight(const float* from, float* to, int threads, Isa isa) const {
  const auto turn = CHOOSE_BY_ISA(isa, transpose_f32);
  const auto last = add_ ? CHOOSE_BY_ISA(isa, add_transposed_f32) : turn;
  const std::int64_t inputs = channels_ / input_block_, square = block_ * input_block_;
  parallel_ranges(samples_ / block_ * inputs, 1, threads, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) float rows[kMostBlock * kMostBlock * kMostPlaces];
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t row = input_block_ * places_;
      turn({row, block_, block_, row}, from + i * square * places_, rows);
      for (std::int64_t output = 0; output < block_; ++output)
        last({places_, input_block_, input_block_, places_}, rows + output * row,
             to + ((i / inputs * block_ + output) * channels_ + i % inputs * input_block_) * places_);
    }
  });
}

void LayoutChange::run(const void* from, void* to, int threads, Isa isa) const {
  if (kind_ == Kind::weight_from_blocks)
    run_weight(static_cast<const float*>(from), static_cast<float*>(to), threads, isa);
  else if (element_bytes_ == 4)
    run_images(static_cast<const float*>(from), static_cast<float*>(to), threads, isa);
  else
    run_images(static_cast<const std::uint16_t*>(from), static_cast<std::uint16_t*>(to), threads, isa);
}

}  // namespace trainer::kernels::cpu::onednn
