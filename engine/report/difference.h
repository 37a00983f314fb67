// Two plans side by side: what `trainer plan A B` shows. It reads what `plan --json` says of each, and has no
// description of its own.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/compile/compile.h"
#include "engine/report/json.h"

namespace trainer::report {

/// One of the two.
struct PlannedJob {
  const LoadedJob* loaded = nullptr;
  std::string strategy;  ///< strategy_line
  Json plan;             ///< the document of plan --json
};

/// A line of the comparison. `a`, `b`: numbers, or words; null: that job has no such line.
struct ComparedLine {
  enum class Unit : std::uint8_t { none, bytes, ms, share, flops };
  std::string section;  ///< settings, plan, memory, communication, predicted, units
  std::string name;
  Json a, b;
  Unit unit = Unit::none;

  bool differs() const { return a != b; }
};

/// Settings alone that differ; of all else every line.
std::vector<ComparedLine> compare(const PlannedJob& a, const PlannedJob& b);

/// {a, b, differences}: the two documents, and of the lines that differ section, name, a, b and, of numbers,
/// difference.
Json comparison_json(const PlannedJob& a, const PlannedJob& b);
std::string comparison_text(const PlannedJob& a, const PlannedJob& b);

}  // namespace trainer::report
