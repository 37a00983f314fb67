// What a device takes, by its own times or by what ranks agreed on.
#include "kernels/cuda/runtime/device_choices.h"

#include "kernels/cuda/runtime/timed_choices.h"

namespace trainer::kernels::cuda {

std::optional<std::string> DeviceChoices::choose(const std::string& key,
                                                 const std::function<bool(const std::string&)>& accepts,
                                                 const std::function<std::optional<std::string>()>& measure) {
  std::optional<std::string> choice;
  if (agreed_) {
    choice = agreed_on(key);
    if (choice && !accepts(*choice)) choice.reset();
  } else if (timed_ != nullptr) {
    choice = timed_->choose(key, accepts, measure);
  }
  taken_.emplace_back(key, choice);
  return choice;
}

std::int64_t DeviceChoices::kind_number() const { return static_cast<std::int64_t>(std::hash<std::string>{}(kind_)); }

std::string DeviceChoices::str() const {
  std::map<std::string, std::string> all;
  for (const auto& [key, choice] : taken_)
    if (choice) all.emplace(kind_ + "\t" + key, *choice);
  return text_of(all);
}

void DeviceChoices::agree(const std::string& all) { agreed_ = choices_of(all); }

bool DeviceChoices::changed(std::size_t begin, std::size_t end) const {
  for (std::size_t i = begin; i < end; ++i)
    if (agreed_ && taken_[i].second != agreed_on(taken_[i].first)) return true;
  return false;
}

// REQUIRES: agreed_.
std::optional<std::string> DeviceChoices::agreed_on(const std::string& key) const {
  const auto at = agreed_->find(kind_ + "\t" + key);
  return at == agreed_->end() ? std::nullopt : std::optional(at->second);
}

}  // namespace trainer::kernels::cuda
