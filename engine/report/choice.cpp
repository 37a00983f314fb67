// How the choice is printed: as YAML to paste, as a table of alternatives, and as JSON.
#include "engine/report/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/report/plan_report.h"
#include "engine/report/strategy_json.h"
#include "engine/report/table.h"

namespace trainer::report {
namespace {

// In YAML's flow style; words need no quotes there unless they could be read as something else.
std::string flow(const Json& json) {
  if (json.is_object()) {
    std::string text;
    for (const auto& [key, value] : json.items())
      text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", key, flow(value));
    return "{" + text + "}";
  }
  if (json.is_array()) {
    std::string text;
    for (const Json& item : json) text += (text.empty() ? "" : ", ") + flow(item);
    return "[" + text + "]";
  }
  if (!json.is_string()) return json.dump();
  const std::string& word = json.get_ref<const std::string&>();
  const bool plain =
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789.") == std::string::npos &&
      word.find_first_of("abcdefghijklmnopqrstuvwxyz_") == 0;
  return plain ? word : json.dump();
}

// Lines of at most so many bytes, broken between words.
std::string wrapped(const std::string& text, std::size_t width, const std::string& indent) {
  std::string result, line;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, end - at);
    if (!line.empty() && line.size() + 1 + word.size() > width) {
      result += indent + line + "\n";
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = end + 1;
  }
  return line.empty() ? result : result + indent + line + "\n";
}

}  // namespace

Json recompute_json(const ActivationCheckpointingJob& job) {
  Json json{{"mode", std::string(name_of(job.mode))}};
  if (job.mode == CheckpointingMode::every_n) json["every"] = job.every;
  return json;
}

Json alternatives_json(const CompiledJob& compiled) {
  Json list = Json::array();
  for (const Alternative& one : compiled.alternatives) {
    Json json{{"strategy", explicit_strategy(one.strategy, one.mesh)},
              {"micro", one.micro},
              {"activation_checkpointing", recompute_json(one.recompute)},
              {"predicted_ms", one.predicted_us / 1e3},
              {"peak_bytes", one.peak_bytes},
              {"basis", std::string(name_of(one.basis))}};
    if (!one.rejected.empty()) json["rejected"] = one.rejected;
    list.push_back(std::move(json));
  }
  return list;
}

Json suggestions_json(const std::vector<Suggestion>& suggestions) {
  Json list = Json::array();
  for (const Suggestion& one : suggestions)
    list.push_back({{"overrides", one.overrides},
                    {"text", one.text},
                    {"predicted_ms", one.predicted_us > 0 ? Json(one.predicted_us / 1e3) : Json(nullptr)}});
  return list;
}

std::string fixed_text(const CompiledJob& compiled) {
  std::string text = "strategy:\n";
  const Json strategy = strategy_json(compiled);
  for (const auto& [key, value] : strategy.items()) text += fmt::format("  {}: {}\n", key, flow(value));
  if (compiled.alternatives.empty()) return text;
  return text + fmt::format("activation_checkpointing: {}\ntrain: {{batch: {{micro: {}}}}}\n",
                            flow(recompute_json(compiled.recompute)), compiled.batch.micro);
}

std::string advice_text(const std::vector<Suggestion>& advice) {
  std::string out;
  if (advice.empty()) return out;
  out += fmt::format("\nwhat would be faster, by the same prediction\n");
  for (const Suggestion& one : advice) out += wrapped(one.str(), 120, "  ");
  return out;
}

std::string choice_text(const CompiledJob& compiled) {
  std::string out;
  if (compiled.alternatives.empty()) return out;
  out += fmt::format("\nthe choice\n{}", wrapped(compiled.strategy_why, 120, "  "));
  Table table({"  alternatives", "a step", "memory", "", "why not"});
  for (const Alternative& one : compiled.alternatives)
    table.add({one.text, fmt::format("{:.1f} ms", one.predicted_us / 1e3),
               bytes_text(static_cast<double>(one.peak_bytes)), std::string(name_of(one.basis)),
               !one.rejected.empty() ? one.rejected
               : compiled.fits       ? "taken"
                                     : "does not fit; needs the least memory"});
  out += table.str();
  if (!compiled.fits) return out;
  out += fmt::format("  to fix it, put into the job:\n");
  const std::string fixed = fixed_text(compiled);
  for (std::size_t begin = 0; begin < fixed.size();) {
    const std::size_t end = fixed.find('\n', begin);
    out += fmt::format("    {}\n", fixed.substr(begin, end - begin));
    begin = end + 1;
  }
  return out;
}

}  // namespace trainer::report
