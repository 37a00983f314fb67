// Tables of bad files: each a text with marks («) where its mistakes are told, and a line for each mistake.
//
//   ## name of the case
//   the text, marked
//   !! key.path ~suggestion | part of the message
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/core/error.h"

namespace trainer::tests {

struct ExpectedMistake {
  int line = 0, column = 0;
  std::string path, suggestion, message;
};

struct BadFile {
  std::string name, text;
  std::vector<ExpectedMistake> mistakes;
};

/// Takes the marks out of `text`; their places, columns in code points.
inline std::vector<std::pair<int, int>> take_marks(std::string& text) {
  const std::string mark = "«";
  std::vector<std::pair<int, int>> places;
  for (std::size_t at = text.find(mark); at != std::string::npos; at = text.find(mark)) {
    text.erase(at, mark.size());
    int line = 1, column = 1;
    for (std::size_t i = 0; i < at; ++i) {
      if (text[i] == '\n') {
        ++line;
        column = 1;
      } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {
        ++column;
      }
    }
    places.emplace_back(line, column);
  }
  return places;
}

inline ExpectedMistake expected_mistake(const std::string& line) {
  ExpectedMistake out;
  const std::size_t bar = line.find('|');
  out.message = line.substr(bar + 2);
  std::istringstream words(line.substr(2, bar - 2));
  for (std::string word; words >> word;)
    (word[0] == '~' ? out.suggestion : out.path) = word[0] == '~' ? word.substr(1) : word;
  return out;
}

/// `complete` may put text in place of abbreviations. Mistakes beyond the last mark have its place: a missing key that
/// of the section that lacks it.
inline std::vector<BadFile> read_bad_files(const std::string& path,
                                           const std::function<void(std::string&)>& complete = {}) {
  std::ifstream file(path);
  std::vector<BadFile> out;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## "))
      out.push_back({line.substr(3), "", {}});
    else if (out.empty() || line.empty())
      continue;
    else if (line.starts_with("!! "))
      out.back().mistakes.push_back(expected_mistake(line));
    else
      out.back().text += line + "\n";
  }
  for (BadFile& one : out) {
    if (complete) complete(one.text);
    const auto places = take_marks(one.text);
    REQUIRE_MESSAGE(!places.empty(), one.name);
    REQUIRE_MESSAGE(places.size() <= one.mistakes.size(), one.name);
    for (std::size_t i = 0; i < one.mistakes.size(); ++i)
      std::tie(one.mistakes[i].line, one.mistakes[i].column) = places[std::min(i, places.size() - 1)];
  }
  return out;
}

/// Holds what was found in the file named `file` to the table.
inline void check_mistakes(const BadFile& bad, const std::string& file, const std::vector<Diagnostic>& found) {
  CAPTURE(bad.name);
  std::string all;
  for (const Diagnostic& mistake : found) all += mistake.str() + "\n";
  CAPTURE(all);
  REQUIRE(found.size() == bad.mistakes.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const ExpectedMistake& expected = bad.mistakes[i];
    CHECK(found[i].file == file);
    CHECK(found[i].line == expected.line);
    CHECK(found[i].column == expected.column);
    CHECK(found[i].path == expected.path);
    CHECK(found[i].suggestion == expected.suggestion);
    CHECK(found[i].message.find(expected.message) != std::string::npos);
  }
}

}  // namespace trainer::tests
