// What people bring from other tools is answered with our words, at their line. Each case is a process: what counts is
// what a user sees. `TRAINER_UNDER_TEST=/path/to/trainer` scores another build of the command.
#include "tests/job/brought_words.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::tests {
namespace {

Outcome run(const std::string& folder, const std::vector<std::string>& arguments) {
  const char* other = std::getenv("TRAINER_UNDER_TEST");
  return Process(folder, arguments, other == nullptr ? "" : other).wait();
}

/// The effective job of the case, a line each, without comments.
std::string effective(const std::string& folder, const BroughtCase& one) {
  std::vector<std::string> arguments{"plan", "job.yaml", "--effective"};
  for (const std::string& word : one.command) {
    if (word.find('=') != std::string::npos) arguments.push_back(word);
  }
  return run(folder, arguments).out;
}

bool has_line(const std::string& text, const Parts& wanted) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(std::min(line.find(" #"), line.size()));
    const std::size_t begin = std::min(line.find_first_not_of(" -"), line.size());
    line.erase(line.find_last_not_of(' ') + 1);
    for (const std::string& one : wanted.all[0]) {
      if (line.substr(std::min(begin, line.size())) == one) return true;
    }
  }
  return false;
}

/// What is wrong with the command's answer to `one`; empty: nothing.
std::string wrong(const BroughtCase& one) {
  const TemporaryFolder folder;
  if (!one.job.empty()) folder.write("job.yaml", one.job);
  folder.write("text.txt", std::string(200, 'a') + " plain text, long enough to train on and to hold a part out\n" +
                               std::string(20000, 'b'));
  for (const auto& [name, text] : one.files) folder.write(name, text);
  const Outcome outcome = run(folder.path(), one.command);
  if (outcome.code == 70 || outcome.code > 128)
    return "  exit " + std::to_string(outcome.code) + ": " + outcome.err + "\n";
  if (outcome.code != 0)
    return one.mistakes.empty() ? "  refused: " + outcome.err : difference(answers_in(outcome.err), one);
  if (one.effective.empty())
    return "  accepted; wanted: " + (one.mistakes.empty() ? "" : one.mistakes[0].parts.text) + "\n";
  const std::string job = effective(folder.path(), one);
  for (const Parts& line : one.effective) {
    if (!has_line(job, line)) return "  the effective job has no line " + line.text + "\n" + job;
  }
  return "";
}

// Cases that are not answered yet. One that is answered has to leave the list.
constexpr std::string_view kOpen[] = {
    "resume: no",
    "resume: latest",

    "a TOML file",
    "a tensor degree that does not divide the heads",
    "resume: true",
    "resume: false",
    "one of two files is not there",
    "a table of other features than the graph's",
};

TEST_CASE("what people bring from other tools is answered with our words, at their line") {
  const std::vector<BroughtCase> cases = read_brought_cases(TRAINER_SOURCE_DIR "/tests/job/brought_words.txt");
  CHECK(cases.size() >= 400);
  std::map<std::string, std::pair<int, int>> right;  // by kind: right, all
  for (const BroughtCase& one : cases) {
    const std::string difference = wrong(one);
    const bool open = std::ranges::find(kOpen, one.name) != std::end(kOpen);
    CHECK_MESSAGE((open || difference.empty()), one.kind << ": " << one.name << "\n" << difference);
    CHECK_MESSAGE((!open || !difference.empty()), one.name << " is answered now: take it off the list");
    right[one.kind].first += difference.empty();
    ++right[one.kind].second;
  }
  for (const auto& [kind, count] : right)
    std::cout << count.first << " of " << count.second << " right: " << kind << "\n";
}

}  // namespace
}  // namespace trainer::tests
