// Holds a tree against the table of fields: every mistake is collected, every value that is right (or a default) is noted
// with its key path. What is left for others: rules that compare two values (rules.cpp), and typed access (bind.cpp).
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/fields.h"
#include "engine/job/job.h"

namespace trainer {

struct CheckedValue {
  yaml::Node node;
  Setting::From from = Setting::From::otherwise;
};

struct Checked {
  std::map<std::string, CheckedValue, std::less<>> values;  ///< by key path; of a mapping its values, of a list the whole, and of mappings in it their values (`a[0].b`)
  std::vector<std::string> order;                           ///< of the keys of `values`, as the table has them
  std::set<std::string, std::less<>> sections;              ///< key paths that hold a mapping with keys of its own
  std::set<std::string, std::less<>> doubtful;              ///< key paths whose value is a mistake
  std::vector<Diagnostic> mistakes;

  const CheckedValue* find(std::string_view path) const;
};

/// Whose words are known (aliases.h) besides the keys of the table: those of jobs, or no others.
enum class Words : std::uint8_t { of_the_table, of_jobs };

/// Checks `root`, which must be a mapping with the keys of `fields` and no short forms.
Checked check(const std::vector<FieldDef>& fields, const yaml::Node& root, Words words = Words::of_the_table);

/// Whether a scalar is of a form.
bool accepts(const Form& form, const yaml::Node& node);

/// What `forms` allow, for messages: "auto or an integer of at least 1".
std::string allowed_text(const std::vector<Form>& forms);

/// Puts mistakes into the order of the file; those of the command line last.
void sort_mistakes(std::vector<Diagnostic>& mistakes);

inline constexpr std::string_view kCommandLine = "command line";

}  // namespace trainer
