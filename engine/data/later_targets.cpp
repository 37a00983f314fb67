// Both fields are those of the sample moved by one place.
#include "engine/data/later_targets.h"

#include <algorithm>
#include <utility>

#include "engine/core/check.h"
#include "engine/data/row_samples.h"

namespace trainer::data {
namespace {

class LaterTargets final : public Dataset {
 public:
  explicit LaterTargets(std::shared_ptr<const Dataset> samples)
      : samples_(std::move(samples)),
        fields_(samples_->fields()),
        tokens_(index_of("tokens")),
        targets_(index_of("targets")),
        documents_(index_of("documents")) {
    CHECK(tokens_ >= 0 && targets_ >= 0, "samples of tokens and targets");
    const Shape shape = fields_[static_cast<std::size_t>(tokens_)].shape;
    CHECK(shape.rank() == 1 && fields_[static_cast<std::size_t>(targets_)].shape == shape, "one sequence a sample");
    seq_len_ = static_cast<std::size_t>(shape[0]);
    for (const char* name : {kNextTokens, kLaterTargets}) fields_.push_back({name, DType::i32, shape});
  }

  std::int64_t num_samples() const override { return samples_->num_samples(); }
  const std::vector<SampleField>& fields() const override { return fields_; }

  void read(std::int64_t sample, std::span<std::byte* const> out) const override {
    samples_->read(sample, out.first(out.size() - 2));
    const auto values = [&](int field) {
      return reinterpret_cast<std::int32_t*>(out[static_cast<std::size_t>(field)]);
    };
    const std::int32_t *tokens = values(tokens_), *targets = values(targets_);
    const std::int32_t* documents = documents_ < 0 ? nullptr : values(documents_);
    std::int32_t* next = reinterpret_cast<std::int32_t*>(out[out.size() - 2]);
    std::int32_t* later = reinterpret_cast<std::int32_t*>(out[out.size() - 1]);
    for (std::size_t i = 0; i < seq_len_; ++i) {
      const bool there = i + 1 < seq_len_ && (documents == nullptr || documents[i] == documents[i + 1]);
      next[i] = there ? tokens[i + 1] : 0;
      later[i] = there ? targets[i + 1] : kIgnored;
    }
  }

 private:
  /// -1: there is none.
  int index_of(std::string_view name) const {
    const auto found = std::ranges::find(fields_, name, &SampleField::name);
    return found == fields_.end() ? -1 : static_cast<int>(found - fields_.begin());
  }

  std::shared_ptr<const Dataset> samples_;
  std::vector<SampleField> fields_;
  int tokens_, targets_, documents_;
  std::size_t seq_len_ = 0;
};

}  // namespace

std::shared_ptr<const Dataset> with_later_targets(std::shared_ptr<const Dataset> samples) {
  return std::make_shared<LaterTargets>(std::move(samples));
}

}  // namespace trainer::data
