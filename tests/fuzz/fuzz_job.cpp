// Any bytes as a job, lines before it that begin with `@` as overrides: either mistakes, or a job whose effective form
// reads back to the same settings.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/job/job.h"
#include "engine/job/unsupported.h"

namespace {

/// A mistake in what the program wrote itself is a bug.
trainer::LoadedJob read_back(const std::string& text, const trainer::LoadOptions& options) {
  try {
    return trainer::parse_job(text, "job.yaml", {}, options);
  } catch (const trainer::JobError&) {
    std::abort();
  }
}

void try_job(const std::string& text, const std::vector<std::string>& overrides) {
  using namespace trainer;
  const LoadOptions options{.configs_dir = {}, .check_files = false};
  const LoadedJob first = parse_job(text, "job.yaml", overrides, options);
  unsupported(first);
  // A run cut short on the command line is the one job whose effective form may break a rule.
  if (!overrides.empty()) return;
  const LoadedJob second = read_back(effective_job(first), options);
  if (first.settings.size() != second.settings.size()) std::abort();
  for (std::size_t i = 0; i < first.settings.size(); ++i) {
    if (first.settings[i].path != second.settings[i].path || first.settings[i].value != second.settings[i].value)
      std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  while (text.starts_with("@") && overrides.size() < 8) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    overrides.push_back(text.substr(1, end - 1));
    text.erase(0, end + (end < text.size() ? 1 : 0));
  }
  try {
    try_job(text, overrides);
  } catch (const trainer::JobError&) {
  } catch (const trainer::UsageError&) {
  }
  return 0;
}
