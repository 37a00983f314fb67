// A part of a dataset.
#include "engine/core/check.h"
#include "engine/data/dataset.h"

namespace trainer::data {
namespace {

class Part final : public Dataset {
 public:
  Part(std::shared_ptr<const Dataset> whole, std::int64_t first, std::int64_t count)
      : whole_(std::move(whole)), first_(first), count_(count) {
    CHECK(first >= 0 && count >= 0 && first + count <= whole_->num_samples(), "a part lies in its whole");
  }
  std::int64_t num_samples() const override { return count_; }
  const std::vector<SampleField>& fields() const override { return whole_->fields(); }
  void read(std::int64_t sample, std::span<std::byte* const> out) const override { whole_->read(first_ + sample, out); }

 private:
  std::shared_ptr<const Dataset> whole_;
  std::int64_t first_, count_;
};

}  // namespace

std::shared_ptr<const Dataset> part_of(std::shared_ptr<const Dataset> whole, std::int64_t first, std::int64_t count) {
  return std::make_shared<Part>(std::move(whole), first, count);
}

}  // namespace trainer::data
