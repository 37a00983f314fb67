// Lines are made section by section; a line that only one of the two has (a category of communication, a setting)
// stands where the other's would.
#include "engine/report/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/report/table.h"

namespace trainer::report {
namespace {

using LineUnit = ComparedLine::Unit;

class Comparison {
 public:
  Comparison(const PlannedJob& a, const PlannedJob& b) : a_(a), b_(b) {}

  std::vector<ComparedLine> run() {
    settings();
    plan();
    memory();
    communication();
    predicted();
    units();
    return std::move(lines_);
  }

 private:
  // The value behind a path of keys; null where there is none.
  static Json at(const Json& json, const std::string& path) {
    const Json* found = &json;
    for (std::size_t begin = 0; begin <= path.size();) {
      const std::size_t dot = std::min(path.find('.', begin), path.size());
      const std::string key = path.substr(begin, dot - begin);
      if (!found->is_object() || !found->contains(key)) return nullptr;
      found = &(*found)[key];
      begin = dot + 1;
    }
    return *found;
  }

  void add(const std::string& section, const std::string& name, Json a, Json b, LineUnit unit = LineUnit::none) {
    if (!a.is_null() || !b.is_null()) lines_.push_back({section, name, std::move(a), std::move(b), unit});
  }
  void add_at(const std::string& section, const std::string& name, const std::string& path,
              LineUnit unit = LineUnit::none) {
    add(section, name, at(a_.plan, path), at(b_.plan, path), unit);
  }

  void settings() {
    const auto value = [](const LoadedJob& loaded, const std::string& path) {
      const Setting* found = loaded.setting(path);
      return found == nullptr ? Json(nullptr) : Json(found->value);
    };
    const auto take = [&](const LoadedJob& loaded, bool only_here) {
      for (const Setting& setting : loaded.settings) {
        Json a = value(*a_.loaded, setting.path), b = value(*b_.loaded, setting.path);
        if (a != b && !(only_here && !a.is_null())) add("settings", setting.path, std::move(a), std::move(b));
      }
    };
    take(*a_.loaded, false);
    take(*b_.loaded, true);
  }

  void plan() {
    add("plan", "strategy", a_.strategy, b_.strategy);
    add_at("plan", "ranks", "world_size");
    for (const auto& [axis, size] : a_.plan["mesh"].items()) add_at("plan", axis, "mesh." + axis);
    add_at("plan", "global batch", "batch.global");
    add_at("plan", "micro-batch", "batch.micro");
    add_at("plan", "micro-batches", "batch.micro_batches");
    add_at("plan", "parameters", "parameters");
    add_at("plan", "FLOPs a step", "flops_per_step", LineUnit::flops);
    add_at("plan", "instructions of a step", "instructions.step");
  }

  void memory() {
    for (const auto& [category, bytes] : a_.plan["memory"]["by_category"].items())
      add_at("memory", category, "memory.by_category." + category, LineUnit::bytes);
    add_at("memory", "peak", "memory.peak_bytes", LineUnit::bytes);
    add_at("memory", "limit", "memory.limit_bytes", LineUnit::bytes);
    add_at("memory", "fits", "memory.fits");
    const auto points = [](const Json& plan) {
      std::map<std::string, Json> found;
      for (const Json& one : plan["memory"].value("lifecycle", Json::array())) found[one["point"]] = one["bytes"];
      return found;
    };
    both(points(a_.plan), points(b_.plan), [&](const std::string& name, const Json& a, const Json& b) {
      add("memory", "beside it: " + name, a, b, LineUnit::bytes);
    });
  }

  void communication() {
    const auto bytes = [](const Json& plan) {
      std::map<std::string, Json> found;
      for (const Json& one : plan["communication"])
        found[one["collective"].get<std::string>() + " " + one["axis"].get<std::string>()] = one["bytes"];
      return found;
    };
    const auto all = [](const Json& plan) {
      std::int64_t sum = 0;
      for (const Json& one : plan["communication"]) sum += one["bytes"].get<std::int64_t>();
      return sum;
    };
    both(bytes(a_.plan), bytes(b_.plan), [&](const std::string& name, const Json& a, const Json& b) {
      add("communication", name, a, b, LineUnit::bytes);
    });
    add("communication", "all", all(a_.plan), all(b_.plan), LineUnit::bytes);
  }

  void predicted() {
    const std::string section = "predicted";
    for (const auto& [name, key] : std::initializer_list<std::pair<const char*, const char*>>{
             {"step", "step_ms"},
             {"at least", "low_ms"},
             {"at most", "high_ms"},
             {"computing", "compute_ms"},
             {"exposed communication", "exposed_communication_ms"},
             {"bubble", "bubble_ms"},
             {"optimizer", "optimizer_ms"},
             {"input", "input_ms"}})
      add_at(section, name, std::string("predicted.") + key, LineUnit::ms);
    add_at(section, "tokens a second", "predicted.tokens_per_s");
    add_at(section, "model FLOPs utilisation", "predicted.mfu", LineUnit::share);
    add_at(section, "hardware", "predicted.hardware");
  }

  void units() {
    const auto sum = [](const Json& plan, const char* key) {
      std::int64_t all = 0;
      for (const Json& unit : plan["units"]) all += unit[key].get<std::int64_t>();
      return all;
    };
    const auto largest = [](const Json& plan) {
      std::int64_t most = 0;
      for (const Json& unit : plan["units"]) most = std::max(most, unit["elements"].get<std::int64_t>());
      return most;
    };
    const auto divided = [](const Json& plan, const char* what) {
      std::int64_t most = 1;
      for (const Json& unit : plan["units"]) most = std::max(most, unit["divided_by"][what].get<std::int64_t>());
      return most;
    };
    add("units", "number", a_.plan["units"].size(), b_.plan["units"].size());
    add("units", "elements of the largest", largest(a_.plan), largest(b_.plan));
    for (const char* what : {"states", "gradients", "parameters"})
      add("units", std::string(what) + " divided by", divided(a_.plan, what), divided(b_.plan, what));
    add("units", "gathers in a step", sum(a_.plan, "gathers"), sum(b_.plan, "gathers"));
    add("units", "reductions in a step", sum(a_.plan, "reductions"), sum(b_.plan, "reductions"));
  }

  template <typename Visit>
  static void both(const std::map<std::string, Json>& a, const std::map<std::string, Json>& b, Visit&& visit) {
    std::map<std::string, Json> names = a;
    names.insert(b.begin(), b.end());
    const auto value = [](const std::map<std::string, Json>& map, const std::string& name) {
      const auto found = map.find(name);
      return found == map.end() ? Json(nullptr) : found->second;
    };
    for (const auto& [name, ignored] : names) visit(name, value(a, name), value(b, name));
  }

  const PlannedJob& a_;
  const PlannedJob& b_;
  std::vector<ComparedLine> lines_;
};

std::string number_text(double value, LineUnit unit) {
  switch (unit) {
    case LineUnit::ms:
      return fmt::format("{:.3f}", value);
    case LineUnit::share:
      return fmt::format("{:.1f}%", 100 * value);
    case LineUnit::flops:
      return fmt::format("{:.4g}", value);
    case LineUnit::bytes:
      return bytes_text(value);
    case LineUnit::none:
      return grouped(std::llround(value));
  }
  return "";
}

std::string value_text(const Json& value, LineUnit unit) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return number_text(value.get<double>(), unit);
}

// Of numbers; what one of the two lacks counts as 0.
std::optional<double> difference(const ComparedLine& line) {
  const auto number = [](const Json& json) {
    return json.is_null()     ? std::optional<double>(0)
           : json.is_number() ? std::optional<double>(json.get<double>())
                              : std::nullopt;
  };
  const std::optional<double> a = number(line.a), b = number(line.b);
  if (!a || !b) return std::nullopt;
  return *b - *a;
}

// "+1,024" and "+3.1%".
std::pair<std::string, std::string> difference_text(const ComparedLine& line) {
  const std::optional<double> way = difference(line);
  if (!line.differs() || !way || *way == 0) return {line.differs() ? "differs" : "", ""};
  const std::string text = (*way > 0 ? "+" : "") + number_text(*way, line.unit);
  const double from = line.a.is_number() ? line.a.get<double>() : 0;
  return {text, from != 0 && line.unit != LineUnit::share ? fmt::format("{:+.1f}%", 100 * *way / from) : ""};
}

std::string name_of(const ComparedLine& line) {
  switch (line.unit) {
    case LineUnit::ms:
      return line.name + ", ms";
    default:
      return line.name;
  }
}

// Lines of words have a table of their own, so that those of numbers line up.
void add_section(std::string& out, const std::vector<ComparedLine>& lines, const std::string& section,
                 const std::string& title) {
  Table numbers({title, "A", "B", "B − A", ""}), words({title, "A", "B"});
  bool any_number = false, any_word = false;
  for (const ComparedLine& line : lines) {
    if (line.section != section) continue;
    if (difference(line)) {
      const auto [way, share] = difference_text(line);
      numbers.add({"  " + name_of(line), value_text(line.a, line.unit), value_text(line.b, line.unit), way, share});
      any_number = true;
    } else if (line.differs()) {
      words.add({"  " + name_of(line), value_text(line.a, line.unit), value_text(line.b, line.unit)});
      any_word = true;
    }
  }
  if (any_number || any_word) out += fmt::format("\n");
  if (any_number) out += numbers.str(0);
  if (any_word) out += words.str(0);
}

}  // namespace

std::vector<ComparedLine> compare(const PlannedJob& a, const PlannedJob& b) { return Comparison(a, b).run(); }

Json comparison_json(const PlannedJob& a, const PlannedJob& b) {
  Json differences = Json::array();
  for (const ComparedLine& line : compare(a, b)) {
    if (!line.differs()) continue;
    Json one{{"section", line.section}, {"name", line.name}, {"a", line.a}, {"b", line.b}};
    if (const std::optional<double> way = difference(line)) one["difference"] = *way;
    differences.push_back(std::move(one));
  }
  return {{"a", a.plan}, {"b", b.plan}, {"differences", differences}};
}

std::string comparison_text(const PlannedJob& a, const PlannedJob& b) {
  std::string out;
  for (const auto& [letter, job] : {std::pair{'A', &a}, std::pair{'B', &b}})
    out += fmt::format("{}: {}: {}: plan {}: {}\n", letter, job->loaded->file, job->plan["name"].get<std::string>(),
                       job->plan["hash"].get<std::string>(), job->strategy);
  const std::vector<ComparedLine> lines = compare(a, b);
  if (a.plan["hash"] == b.plan["hash"]) out += fmt::format("the plans are the same\n");
  add_section(out, lines, "settings", "settings that differ");
  add_section(out, lines, "plan", "plan");
  add_section(out, lines, "memory", "memory of the fullest rank");
  add_section(out, lines, "communication", "sent by a rank in a step");
  add_section(out, lines, "predicted", "predicted");
  add_section(out, lines, "units", "units of parameters");
  return out;
}

}  // namespace trainer::report
