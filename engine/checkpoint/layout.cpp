// How names of checkpoint directories become steps, and steps names.
#include "engine/checkpoint/layout.h"

#include <charconv>

namespace trainer::checkpoint {
namespace {

constexpr std::string_view kPrefix = "step-";
constexpr std::size_t kDigits = 8;  // at least; more where the step has more

}  // namespace

std::string step_name(std::int64_t step) {
  const std::string digits = std::to_string(step);
  return std::string(kPrefix) + std::string(digits.size() < kDigits ? kDigits - digits.size() : 0, '0') + digits;
}

std::string hidden_name(std::int64_t step, std::string_view suffix) {
  return "." + step_name(step) + std::string(suffix);
}

std::optional<std::int64_t> step_of(std::string_view name) {
  std::int64_t step = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || step < 0 || step_name(step) != name)
    return std::nullopt;
  return step;
}

std::optional<Hidden> hidden_of(std::string_view name) {
  if (!name.starts_with('.')) return std::nullopt;
  for (std::string_view suffix : {kUnfinished, kReplaced, kTrash}) {
    if (!name.ends_with(suffix)) continue;
    const auto step = step_of(name.substr(1, name.size() - 1 - suffix.size()));
    if (step) return Hidden{*step, suffix};
  }
  return std::nullopt;
}

}  // namespace trainer::checkpoint
