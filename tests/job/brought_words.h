// Cases of tests/job/brought_words.txt: a job, a command, and what it must answer. The file's head describes the
// format.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace trainer::tests {

/// Words that one message must hold: of each part, one of its alternatives.
struct Parts {
  std::vector<std::vector<std::string>> all;
  std::string text;  ///< as the table writes it
};

struct ExpectedAnswer {
  std::string file;        ///< empty: anywhere
  std::vector<int> lines;  ///< any of them; 0 for the command line
  Parts parts;
};

struct BroughtCase {
  std::string kind, name;
  std::string job;                           ///< its bytes; empty: there is no job
  std::vector<std::string> command;          ///< "validate", "job.yaml"
  std::map<std::string, std::string> files;  ///< beside the job
  std::vector<ExpectedAnswer> mistakes;
  std::vector<Parts> may;        ///< messages that may be there as well
  std::vector<Parts> effective;  ///< lines of the effective job
};

std::vector<BroughtCase> read_brought_cases(const std::string& path);

/// One message of the command: where it points and what it says, without what was found and the list behind an unknown
/// key.
struct Answer {
  std::string file;
  int line = 0;
  std::string text;
};

/// The messages in what the command wrote to stderr.
std::vector<Answer> answers_in(const std::string& err);

/// Whether `text` holds every part as whole words.
bool holds(const std::string& text, const Parts& parts);

/// What is wrong with `answers`; empty: nothing.
std::string difference(const std::vector<Answer>& answers, const BroughtCase& expected);

}  // namespace trainer::tests
