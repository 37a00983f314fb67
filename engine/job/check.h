// Checks a tree against the table of fields: every mistake is collected, every value that is right (or a default) is
// noted with its key path. What is left for others: rules that compare two values (rules.cpp), and typed access
// (bind.cpp).
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
  std::map<std::string, CheckedValue, std::less<>> values;  ///< by key path; of a mapping its values, of a list the
                                                            ///< whole, and of mappings in it their values (`a[0].b`)
  std::vector<std::string> order;                           ///< of the keys of `values`, as the table has them
  std::set<std::string, std::less<>> sections;              ///< key paths that hold a mapping with keys of its own
  std::set<std::string, std::less<>> doubtful;              ///< key paths whose value is a mistake
  std::vector<Diagnostic> mistakes;

  const CheckedValue* find(std::string_view path) const;
  /// The value at `path`; null where there is none.
  const yaml::Node& node(std::string_view path) const;
};

/// Whose words are known (aliases.h) besides the keys of the table: those of jobs, or no others.
enum class Words : std::uint8_t { of_the_table, of_jobs };

/// Writes the short forms of `root` out, so that all that reads the tree afterwards sees sections: a scalar in place of
/// a section, where only one key of it can be meant (`precision: bf16` is `precision: {compute: bf16}`). The key that
/// comes to stand has the place of the scalar.
void expand_short_forms(yaml::Node& root, const std::vector<FieldDef>& fields);

/// What a scalar in place of `section` may be. REQUIRES: it has a shorthand.
const std::vector<Form>& short_forms(const Form& section);

/// Checks `root`, which must be a mapping with the keys of `fields` and no short forms.
Checked check(const std::vector<FieldDef>& fields, const yaml::Node& root, Words words = Words::of_the_table);

/// Whether a scalar is of a form.
bool accepts(const Form& form, const yaml::Node& node);

/// What `forms` allow, for messages: "auto or an integer of at least 1".
std::string allowed_text(const std::vector<Form>& forms);

/// Fills in a Job: each section that `checked` has no mistake in; the others stay as they are by default, of model and
/// data what is right. `path` is the job file's. A model.graph that does not exist, and values that a profile fills in,
/// are seen to here: `checked` gets the latter, `mistakes` the former.
Job bind(Checked& checked, const std::string& path, const LoadOptions& options, std::vector<Diagnostic>& mistakes);

/// Puts mistakes into the order of the file; those of the command line last.
void sort_mistakes(std::vector<Diagnostic>& mistakes);

inline constexpr std::string_view kCommandLine = "command line";

}  // namespace trainer
