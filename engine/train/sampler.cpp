// How a text moves to a larger plan when it outgrows its own, and loses its first half when it outgrows the largest.
#include "engine/train/sampler.h"

#include <algorithm>

#include "engine/core/error.h"
#include "engine/train/base.h"
#include "engine/train/ranks.h"

namespace trainer {

Sampler::Sampler(const LoadedJob& loaded, std::span<const CompiledJob> plans, const std::string& weights,
                 Communicator& communicator, const std::function<void(const std::string&)>& tell)
    : loaded_(loaded),
      plans_(plans),
      weights_(weights),
      communicator_(communicator),
      tell_(tell),
      room_(room_of(plans.back().plan.roles[0])),
      device_(device_for(loaded.job, communicator, threads_per_rank(1))) {
  open(0);
}

void Sampler::open(std::size_t plan) {
  generator_.reset();
  executor_.reset();
  plan_ = plan;
  const CompiledJob& compiled = plans_[plan];
  executor_ = device_->load(compiled.plan, 0, communicator_);
  manifest_ = load_for_use(loaded_, compiled, {*executor_, compiled.plan, communicator_.rank()}, weights_,
                           communicator_, communicator_.control(), tell_);
  executor_->run(executor_->role().program_index(ProgramKind::refresh));
  generator_.emplace(*executor_);
}

std::span<const float> Sampler::after(const std::vector<std::int32_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  if (start_ >= count) start_ = 0;
  while (count > generator_->room() && plan_ + 1 < plans_.size()) open(plan_ + 1);
  if (count - start_ > room_) start_ = count - std::max<std::int64_t>(1, room_ / 2);
  const std::span<const std::int32_t> text = std::span(ids).subspan(static_cast<std::size_t>(start_));
  const std::vector<std::int32_t>& known = generator_->ids();
  const auto same = std::ranges::mismatch(text.first(text.size() - 1), known).in1 - text.begin();
  generator_->rewind(same);
  return generator_->add(text.subspan(static_cast<std::size_t>(same)));
}

void with_sampler(const LoadedJob& loaded, std::span<const CompiledJob> plans, const std::string& weights,
                  const std::function<void(const std::string&)>& tell, const std::function<void(Sampler&)>& work) {
  require_threads_of(loaded.job, nullptr, threads_per_rank(1));
  if (!plans.front().classes) throw DataError("sampling needs a model that reads tokens");
  run_ranks(1, [&](Communicator& communicator) {
    Sampler sampler(loaded, plans, weights, communicator, tell);
    work(sampler);
  });
}

}  // namespace trainer
