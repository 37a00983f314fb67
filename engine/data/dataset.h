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

/// Which sample is at a place of a step's global batch: a pure function, so that it depends neither on world size nor
/// on where a run was resumed. Steps run through the samples one epoch after another; a batch may lie in two.
class SampleOrder {
 public:
  /// With `shuffle`, each epoch is a permutation keyed by (seed, epoch): the swap-or-not shuffle, some 0.3 us a
  /// sample, which permutes any number of samples without a table. (A Feistel network, walked down from a power of
  /// two, was visibly uneven below some 16 samples.) Source: Hoang, Morris and Rogaway, "An Enciphering Scheme Based
  /// on a Card Shuffle", CRYPTO 2012. REQUIRES: both are positive.
  SampleOrder(std::int64_t num_samples, std::int64_t global_batch, bool shuffle, std::uint64_t seed);

  std::int64_t global_batch() const { return global_batch_; }
  std::int64_t sample(std::int64_t step, std::int64_t position) const;

 private:
  std::int64_t permuted(std::int64_t index, std::int64_t epoch) const;

  std::int64_t num_samples_, global_batch_;
  bool shuffle_;
  std::uint64_t key_;
};

}  // namespace trainer::data
