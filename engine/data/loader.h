// Loader: one rank's part of each global batch, prepared on a thread of its own while the step before runs.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "engine/data/dataset.h"

namespace trainer::data {

/// Places [first, first + count) of the global batch.
struct Share {
  std::int64_t first = 0, count = 0;
};

/// The share of data rank `rank` of `ranks`: r·(B/R) … (r+1)·(B/R) − 1. REQUIRES: ranks divides the batch.
Share share_of(int rank, int ranks, std::int64_t global_batch);

class Loader {
 public:
  /// Begins to prepare step `first_step` at once.
  Loader(std::shared_ptr<const Dataset> dataset, SampleOrder order, Share share, std::int64_t first_step = 0);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  struct Batch {
    std::int64_t step = 0;
    /// In the order of the dataset's fields: `count` samples end to end, 64-byte aligned. Valid until the next but
    /// one call of next().
    std::span<const std::byte* const> fields;
  };

  /// The batch of the next step; waits if it is not ready. Raises what reading it raised (DataError).
  Batch next();
  /// The next call of next() gives step `step`.
  void seek(std::int64_t step);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  // One batch. Three of them: the two that the caller may hold, and the one being prepared.
  struct Slot {
    std::vector<std::unique_ptr<std::byte, Free>> memory;
    std::vector<const std::byte*> fields;
  };
  static constexpr int kNumSlots = 3;

  void work();
  void prepare(Slot& slot, std::int64_t step) const;
  Slot& slot_of(std::int64_t batch) { return slots_[batch % kNumSlots]; }

  std::shared_ptr<const Dataset> dataset_;
  SampleOrder order_;
  Share share_;
  Slot slots_[kNumSlots];

  std::mutex mutex_;
  std::condition_variable changed_;
  std::int64_t first_step_;    // of batch 0
  std::int64_t taken_ = 0;     // batches given out
  std::int64_t prepared_ = 0;  // batches ready; at most taken_ + 1
  bool busy_ = false;          // the thread is preparing one
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace trainer::data
