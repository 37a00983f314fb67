// Dataset: samples that can be asked for in any order, and the order in which training asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/dtype.h"
#include "engine/core/shape.h"

namespace trainer::data {

/// What a sample has: a graph input of that name is one batch dim longer.
struct SampleField {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;  ///< of one sample

  std::int64_t bytes() const { return shape.elements() * size_of(dtype); }
};

class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t num_samples() const = 0;
  virtual const std::vector<SampleField>& fields() const = 0;
  /// Writes each field of the sample to `out[field]`. Raises DataError at bad data. Any number of threads.
  /// REQUIRES: 0 <= sample < num_samples().
  virtual void read(std::int64_t sample, std::span<std::byte* const> out) const = 0;
};

/// Samples that are a share of every batch. Parts of a dataset lie one after the other.
struct SamplePart {
  std::int64_t samples = 0;
  double weight = 1;
};

/// Which sample is at a place of a step's global batch: a pure function, so that it depends neither on world size nor
/// on where a run was resumed. Steps run through the samples one epoch after another; a batch may lie in two.
///
/// Of several parts each has its own epochs. Of any run of places a part has its share of them, up to one sample for
/// each part before it: places are dealt to the first part and to all others together by a Beatty sequence, and so on,
/// each sequence with an offset that is keyed by the seed.
class SampleOrder {
 public:
  /// With `shuffle`, each epoch is a permutation keyed by (seed, epoch): the swap-or-not shuffle, some 0.3 us a
  /// sample, which permutes any number of samples without a table. (A Feistel network, walked down from a power of
  /// two, was visibly uneven below some 16 samples.) Source: Hoang, Morris and Rogaway, "An Enciphering Scheme Based
  /// on a Card Shuffle", CRYPTO 2012. REQUIRES: both are positive.
  SampleOrder(std::int64_t num_samples, std::int64_t global_batch, bool shuffle, std::uint64_t seed);
  /// Of a mix. REQUIRES: there is a part; each has samples and a positive weight.
  SampleOrder(std::span<const SamplePart> parts, std::int64_t global_batch, bool shuffle, std::uint64_t seed);

  std::int64_t global_batch() const { return global_batch_; }
  std::int64_t sample(std::int64_t step, std::int64_t position) const;

 private:
  struct Part {
    std::int64_t first = 0, count = 0;    // of the samples
    std::uint64_t share = 0, offset = 0;  // of the places that are left to it and the parts behind it, times 2^62
    std::uint64_t key = 0;
  };
  static std::int64_t permuted(const Part& part, std::int64_t index, std::int64_t epoch);

  std::vector<Part> parts_;
  std::int64_t global_batch_;
  bool shuffle_;
};

}  // namespace trainer::data
