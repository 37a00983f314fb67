// The table of cases in, and the command's answers held to it.
#include "tests/job/brought_words.h"

#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <regex>
#include <sstream>
#include <stdexcept>

namespace trainer::tests {
namespace {

const std::string kModel =
    "model:\n  graph: models/gpt2.yaml\n  with: {layers: 2, heads: 4, dim: 64, vocab: 256, context: 128}\n";
const std::string kData = "data: {format: text, train: text.txt, val: {fraction: 0.1}, seq_len: 64}\n";
const std::string kTrain =
    "train:\n  steps: 100\n  batch: {global: 16, micro: 4}\n  optimizer: {name: adamw, lr: 1.0e-3}\n";
const std::string kMark = "«", kElsewhere = "‹";
constexpr std::size_t kTooLarge = (std::size_t{1} << 20) + 1;

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
    } else if (text[++i] == 'x') {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i] == 'n' ? '\n' : text[i] == 't' ? '\t' : text[i];
    }
  }
  return out;
}

std::string sentences(std::size_t size) {
  const std::string one =
      "It is a truth universally acknowledged, that a single man in possession of a good fortune…\n";
  std::string text;
  while (text.size() < size) text += one;
  text.resize(size);
  return text;
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> out;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    out.push_back(text.substr(begin, end - begin));
    if (end == std::string::npos) return out;
    begin = end + separator.size();
  }
}

Parts parts_of(const std::string& text) {
  Parts parts{{}, text};
  for (const std::string& part : split(text, " | ")) parts.all.push_back(split(part, " / "));
  return parts;
}

/// A case as it is read, line by line.
struct Reader {
  BroughtCase one;
  std::vector<std::string> changes;
  std::string command;
  std::vector<std::string> expected;  ///< the lines `!!`

  void take(const std::string& line) {
    const std::string rest = line.size() > 3 ? line.substr(3) : "";
    if (line.starts_with("!! ")) {
      expected.push_back(rest);
    } else if (line.starts_with("!? ")) {
      one.may.push_back(parts_of(rest));
    } else if (line.starts_with("== ")) {
      one.effective.push_back(parts_of(rest));
    } else if (line.starts_with("$ ")) {
      command = line.substr(2);
    } else if (line.starts_with("%")) {
      changes.push_back(line.substr(1));
    } else if (line.starts_with("+ ")) {
      take_file(line.substr(2));
    } else {
      one.job += line + "\n";
    }
  }

  void take_file(const std::string& text) {
    const std::size_t equals = text.find(" = ");
    if (equals != std::string::npos) {
      one.files[text.substr(0, equals)] = unescaped(text.substr(equals + 3));
    } else {
      const std::size_t space = text.find(' ');
      one.files[text.substr(0, space)] = sentences(std::stoul(text.substr(space + 1)));
    }
  }

  BroughtCase finished() {
    for (const auto& [name, section] : {std::pair{"@model\n", kModel}, {"@data\n", kData}, {"@train\n", kTrain}})
      replace_all(one.job, name, section);
    std::vector<ExpectedAnswer> places;
    std::vector<int> elsewhere;
    take_marks(places, elsewhere);
    std::istringstream words(command.empty() ? "validate job.yaml" : command);
    for (std::string word; words >> word;) {
      const bool marked = word.starts_with(kMark);
      if (marked) places.push_back({"command line", {0}, {}});
      one.command.push_back(marked ? word.substr(kMark.size()) : word);
    }
    std::size_t next = 0;
    for (const std::string& line : expected) one.mistakes.push_back(expected_answer(line, places, next));
    if (next != places.size()) throw std::runtime_error(one.name + ": more marks than mistakes");
    if (!one.mistakes.empty() && !elsewhere.empty())
      one.mistakes[0].lines.insert(one.mistakes[0].lines.end(), elsewhere.begin(), elsewhere.end());
    for (const std::string& change : changes) apply(change);
    return std::move(one);
  }

  void take_marks(std::vector<ExpectedAnswer>& places, std::vector<int>& elsewhere) {
    std::string plain;
    int line = 1;
    for (std::size_t i = 0; i < one.job.size(); ++i) {
      if (one.job.compare(i, kMark.size(), kMark) == 0) {
        places.push_back({"job.yaml", {line}, {}});
        i += kMark.size() - 1;
      } else if (one.job.compare(i, kElsewhere.size(), kElsewhere) == 0) {
        elsewhere.push_back(line);
        i += kElsewhere.size() - 1;
      } else {
        line += one.job[i] == '\n';
        plain += one.job[i];
      }
    }
    one.job = plain;
  }

  ExpectedAnswer expected_answer(const std::string& line, const std::vector<ExpectedAnswer>& places,
                                 std::size_t& next) const {
    if (line.starts_with("@")) {
      const std::size_t colon = line.find(':'), bar = line.find(" | ");
      return {line.substr(1, colon - 1), {std::stoi(line.substr(colon + 1))}, parts_of(line.substr(bar + 3))};
    }
    ExpectedAnswer answer = next < places.size() ? places[next++] : ExpectedAnswer{};
    answer.parts = parts_of(line);
    return answer;
  }

  void apply(const std::string& change) {
    if (change == "escapes") {
      one.job = unescaped(one.job);
    } else if (change == "crlf") {
      replace_all(one.job, "\n", "\r\n");
    } else if (change == "large") {
      one.job += "#" + std::string(kTooLarge, 'x') + "\n";
    } else if (change == "utf16" || change == "utf16be") {
      const bool big = change == "utf16be";
      std::string wide = big ? "\xFE\xFF" : "\xFF\xFE";
      for (const char c : one.job) wide += big ? std::string{'\0', c} : std::string{c, '\0'};
      one.job = wide;
    } else {
      throw std::runtime_error(one.name + ": no such change: " + change);
    }
  }
};

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// A word ends where no letter, digit or underscore goes on; `clos*` may go on.
bool holds_word(const std::string& text, std::string word) {
  const bool stem = word.size() > 1 && word.back() == '*';
  if (stem) word.pop_back();
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !in_word(word.front()) || !in_word(text[at - 1]);
    const bool ends = stem || end == text.size() || !in_word(word.back()) || !in_word(text[end]);
    if (begins && ends) return true;
  }
  return false;
}

/// Takes out the value that was found, and of an unknown key the list of all keys: neither is an answer.
std::string told(std::string text) {
  const std::size_t found = text.find(" (found ");
  if (found != std::string::npos) {
    std::size_t end = std::min(text.find("); did you mean", found), text.find("); allowed: ", found));
    if (end == std::string::npos) end = text.rfind(')');
    text.erase(found, end + 1 - found);
  }
  const std::size_t list = text.find("; allowed: ");
  if (list != std::string::npos && text.find("unknown key") < list) text.erase(list);
  return text;
}

}  // namespace

std::vector<BroughtCase> read_brought_cases(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  std::vector<BroughtCase> out;
  std::string kind;
  Reader reader;
  const auto finish = [&] {
    if (!reader.one.name.empty()) out.push_back(reader.finished());
    reader = {};
  };
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("=== ")) {
      finish();
      kind = line.substr(4);
    } else if (line.starts_with("## ")) {
      finish();
      reader.one.kind = kind;
      reader.one.name = line.substr(3);
    } else if (!line.empty() && !reader.one.name.empty()) {
      reader.take(line);
    }
  }
  finish();
  return out;
}

std::vector<Answer> answers_in(const std::string& err) {
  static const std::regex placed(R"(^(.+?):(\d+):(\d+): (?:error|warning): (.*)$)"), plain(R"(^(.+?): error: (.*)$)");
  std::vector<Answer> out;
  std::istringstream lines(err);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (line.empty() || line.starts_with("    ")) continue;  // the source line and its caret
    if (line.find(": warning: ") != std::string::npos || line.starts_with("Run `trainer")) continue;
    if (std::regex_match(line, match, placed)) {
      out.push_back({match[1], std::stoi(match[2]), told(match[4])});
    } else if (std::regex_match(line, match, plain)) {
      out.push_back({match[1], 0, told(match[2])});
    } else {
      out.push_back({"", 0, told(line)});
    }
  }
  return out;
}

bool holds(const std::string& text, const Parts& parts) {
  return std::ranges::all_of(parts.all, [&](const std::vector<std::string>& alternatives) {
    return std::ranges::any_of(alternatives, [&](const std::string& word) {
      return word.starts_with('~') ? !holds_word(text, word.substr(1)) : holds_word(text, word);
    });
  });
}

std::string difference(const std::vector<Answer>& answers, const BroughtCase& expected) {
  std::vector<const Answer*> left;
  for (const Answer& answer : answers) left.push_back(&answer);
  const auto may = [&](const Answer* answer) {
    return std::ranges::any_of(expected.may, [&](const Parts& parts) { return holds(answer->text, parts); });
  };
  std::ranges::stable_partition(left, std::not_fn(may));  // what must be there is looked for among the others first
  std::string out;
  for (const ExpectedAnswer& mistake : expected.mistakes) {
    const auto found = std::ranges::find_if(left, [&](const Answer* answer) {
      const bool here =
          mistake.file.empty() || (answer->file == mistake.file && std::ranges::count(mistake.lines, answer->line) > 0);
      return here && holds(answer->text, mistake.parts);
    });
    if (found != left.end()) {
      left.erase(found);
    } else {
      out += "  wanted at " + mistake.file + ":" + (mistake.lines.empty() ? "?" : std::to_string(mistake.lines[0])) +
             ": " + mistake.parts.text + "\n";
    }
  }
  for (const Answer* answer : left) {
    if (!may(answer))
      out += "  not wanted: " + answer->file + ":" + std::to_string(answer->line) + ": " + answer->text + "\n";
  }
  return out;
}

}  // namespace trainer::tests
