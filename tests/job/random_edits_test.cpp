// Of random slips in good jobs each is refused at its line, or the job means what it now says. Many jobs go through one
// process of `trainer validate`, which reads graphs and plans too. `TRAINER_UNDER_TEST=/path/to/trainer` scores another
// build.
#include "tests/job/random_edits.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/job/job.h"
#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::tests {
namespace {

constexpr std::size_t kEdits = 2000, kAtOnce = 250;
constexpr std::uint64_t kSeed = 20261122;

std::vector<std::string> good_jobs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(TRAINER_SOURCE_DIR "/configs")) {
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  }
  std::ranges::sort(paths);
  std::vector<std::string> jobs;
  for (const std::string& path : paths) jobs.push_back(contents_of(path));
  return jobs;
}

/// What `validate --json` says of each edit.
std::vector<nlohmann::json> verdicts_of(const std::vector<Edit>& edits) {
  const char* other = std::getenv("TRAINER_UNDER_TEST");
  const TemporaryFolder folder;
  std::vector<nlohmann::json> out;
  for (std::size_t begin = 0; begin < edits.size(); begin += kAtOnce) {
    std::vector<std::string> words{"validate", "--json"};
    for (std::size_t i = begin; i < std::min(begin + kAtOnce, edits.size()); ++i) {
      words.push_back("job" + std::to_string(i) + ".yaml");
      folder.write(words.back(), edits[i].text);
    }
    const Outcome outcome = Process(folder.path(), words, other == nullptr ? "" : other).wait();
    REQUIRE_MESSAGE((outcome.code == 0 || outcome.code == 78), outcome.err);
    const nlohmann::json document = nlohmann::json::parse(outcome.out);
    for (const nlohmann::json& job : document["jobs"]) out.push_back(job);
  }
  return out;
}

/// The settings that the file makes, but those of line `without`.
std::map<std::string, std::string> settings_of(const std::string& text, int without = 0) {
  const LoadedJob loaded = parse_job(text, "job.yaml", {}, {.configs_dir = {}, .check_files = false});
  std::map<std::string, std::string> out;
  for (const Setting& setting : loaded.settings) {
    if (setting.from == Setting::From::file && setting.line != without) out[setting.path] = setting.value;
  }
  return out;
}

/// Whether an edit that was taken means what it says: its own value has changed and nothing else.
bool is_meant(const Edit& edit) {
  std::map<std::string, std::string> before = settings_of(edit.job, edit.kind == Edit::Kind::line_cut ? edit.line : 0);
  const std::map<std::string, std::string> after = settings_of(edit.text);
  if (edit.kind == Edit::Kind::other_type) {
    const auto below = [&](const auto& entry) {
      return entry.first == edit.path || entry.first.starts_with(edit.path + ".");
    };
    std::erase_if(before, below);
    before[edit.path] = edit.is;
  }
  return before == after;
}

std::string text_of(const nlohmann::json& error) {
  return error["file"].get<std::string>() + ":" + std::to_string(error["line"].get<int>()) + ": " +
         error["path"].get<std::string>() + ": " + error["message"].get<std::string>();
}

bool names(const nlohmann::json& error, const std::string& path) {
  return std::ranges::any_of(std::vector{"message", "suggestion"},
                             [&](const char* part) { return contains(error[part].get<std::string>(), path); });
}

struct Count {
  int edits = 0, meant = 0, not_meant = 0, refused = 0, first_there = 0, all_there = 0;

  void add(const Count& other) {
    edits += other.edits, meant += other.meant, not_meant += other.not_meant, refused += other.refused;
    first_there += other.first_there, all_there += other.all_there;
  }
};

Count judge(const Edit& edit, const nlohmann::json& verdict) {
  const std::string what =
      std::string(name_of(edit.kind)) + ", line " + std::to_string(edit.line) + ": " + edit.was + " -> " + edit.is;
  if (verdict["ok"].get<bool>()) {
    const bool meant = is_meant(edit);
    CHECK_MESSAGE(meant, what << "\n  was accepted and means something else\n" << edit.text);
    return {.edits = 1, .meant = meant, .not_meant = !meant};
  }
  // A cut line is no longer there: a message may stand where its key is missed, if it names the key.
  const auto there = [&](const nlohmann::json& error) {
    const bool names_it = edit.kind == Edit::Kind::line_cut && !edit.path.empty() && names(error, edit.path);
    return error["file"] == verdict["file"] &&
           (names_it || std::ranges::count(edit.lines, error["line"].get<int>()) > 0);
  };
  const nlohmann::json& errors = verdict["errors"];
  REQUIRE_FALSE(errors.empty());
  const bool all = std::all_of(errors.begin(), errors.end(), there);
  if (!all) {
    std::cout << what << "\n";
    for (const nlohmann::json& error : errors) std::cout << "    " << text_of(error) << "\n";
  }
  return {.edits = 1, .refused = 1, .first_there = there(errors[0]), .all_there = all};
}

TEST_CASE("a slip in a job is refused at its line, or the job means what it now says") {
  const std::vector<Edit> edits = random_edits(good_jobs(), kEdits, kSeed);
  const std::vector<nlohmann::json> verdicts = verdicts_of(edits);
  REQUIRE(verdicts.size() == edits.size());
  std::map<std::string_view, Count> counts;
  Count all;
  for (std::size_t i = 0; i < edits.size(); ++i) {
    const Count one = judge(edits[i], verdicts[i]);
    counts[name_of(edits[i].kind)].add(one);
    all.add(one);
  }
  counts["all"] = all;
  for (const auto& [kind, count] : counts)
    std::cout << kind << ": " << count.edits << " edits, " << count.meant << " accepted and meant, " << count.not_meant
              << " accepted and not, " << count.refused << " refused: the first message in the edited line "
              << count.first_there << ", all messages " << count.all_there << "\n";
  CHECK(100 * all.first_there >= 98 * all.refused);
}

}  // namespace
}  // namespace trainer::tests
