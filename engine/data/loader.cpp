// How the loader's thread prepares the next batch while the step runs.
#include "engine/data/loader.h"

#include <algorithm>
#include <new>

#include "engine/core/check.h"

namespace trainer::data {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

Share share_of(int rank, int ranks, std::int64_t global_batch) {
  CHECK(global_batch % ranks == 0, "data ranks divide the global batch");
  const std::int64_t count = global_batch / ranks;
  return {rank * count, count};
}

void Loader::Free::operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }

Loader::Loader(std::shared_ptr<const Dataset> dataset, SampleOrder order, Share share, std::int64_t first_step)
    : dataset_(std::move(dataset)), order_(order), share_(share), first_step_(first_step) {
  CHECK(share.first >= 0 && share.count > 0 && share.first + share.count <= order.global_batch(),
        "a share lies in the global batch");
  for (Slot& slot : slots_) {
    for (const SampleField& field : dataset_->fields()) {
      const auto bytes = static_cast<std::size_t>(std::max<std::int64_t>(1, field.bytes() * share.count));
      slot.memory.emplace_back(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
      slot.fields.push_back(slot.memory.back().get());
    }
  }
  thread_ = std::thread([this] { work(); });
}

Loader::~Loader() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Loader::Batch Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return prepared_ > taken_ || error_; });
  if (prepared_ <= taken_) std::rethrow_exception(error_);
  const std::int64_t batch = taken_++;
  changed_.notify_all();
  return {first_step_ + batch, slot_of(batch).fields};
}

void Loader::seek(std::int64_t step) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy_; });
  // Batches keep their count, and so their slots: what the caller still holds stays valid.
  prepared_ = taken_;
  first_step_ = step - taken_;
  error_ = nullptr;
  changed_.notify_all();
}

void Loader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (prepared_ <= taken_ && !error_); });
    if (stop_) return;
    const std::int64_t batch = prepared_, step = first_step_ + batch;
    busy_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      prepare(slot_of(batch), step);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    busy_ = false;
    error_ = error;
    if (!error) ++prepared_;
    changed_.notify_all();
  }
}

void Loader::prepare(Slot& slot, std::int64_t step) const {
  const std::vector<SampleField>& fields = dataset_->fields();
  std::vector<std::byte*> out(fields.size());
  for (std::int64_t i = 0; i < share_.count; ++i) {
    for (std::size_t field = 0; field < fields.size(); ++field)
      out[field] = slot.memory[field].get() + i * fields[field].bytes();
    dataset_->read(order_.sample(step, share_.first + i), out);
  }
}

}  // namespace trainer::data
