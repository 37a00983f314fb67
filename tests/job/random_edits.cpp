// A job's tree says where its keys and values stand; the edit is made in the text.
#include "tests/job/random_edits.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <random>

namespace trainer::tests {
namespace {

struct Place {
  std::string path, text;
  int line = 0, column = 0;
  int section_line = 0;              ///< of the key of the section around it; of the whole file's, its first key
  const yaml::Node* node = nullptr;  ///< of a value
};

struct Places {
  std::vector<Place> keys, values;
};

void collect(const yaml::Node& mapping, const std::string& path, int section_line, Places& out) {
  for (std::size_t i = 0; i < mapping.keys.size(); ++i) {
    const yaml::Node &key = mapping.keys[i], &value = mapping.items[i];
    const std::string here = path.empty() ? key.text : path + "." + key.text;
    out.keys.push_back({here, key.text, key.line, key.column, section_line, nullptr});
    if (value.is_mapping()) collect(value, here, key.line, out);
    if (!value.is_mapping() && value.line == key.line)
      out.values.push_back({here, value.flow(), value.line, value.column, section_line, &value});
  }
}

class Editor {
 public:
  explicit Editor(std::uint64_t seed) : random_(seed) {}

  std::optional<Edit> edit(const std::string& job, Edit::Kind kind) {
    const yaml::Node tree = yaml::parse(job, "job.yaml");
    Places places;
    collect(tree, "", tree.line, places);
    lines_ = lines_of(job);
    Edit out{.kind = kind, .job = job, .text = {}, .path = {}, .was = {}, .is = {}};
    const bool done = kind == Edit::Kind::key_misspelt ? misspell(places, out)
                      : kind == Edit::Kind::other_type ? change_type(places, out)
                      : kind == Edit::Kind::line_cut   ? cut_line(places, out)
                                                       : lose_indent(out);
    if (!done) return std::nullopt;
    for (const std::string& line : lines_) out.text += line + "\n";
    return out;
  }

 private:
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }
  template <typename T>
  const T& one_of(const std::vector<T>& all) {
    return all[below(all.size())];
  }

  static std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      out.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return out;
  }

  std::string misspelt(std::string word) {
    const std::size_t at = below(word.size());
    switch (below(5)) {
      case 0:
        if (at + 1 < word.size()) std::swap(word[at], word[at + 1]);
        break;
      case 1:
        if (word.size() > 1) word.erase(at, 1);
        break;
      case 2:
        word.insert(at, 1, word[at]);
        break;
      case 3:
        word[at] = static_cast<char>('a' + below(26));
        break;
      default:
        word[at] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[at])));
    }
    return word;
  }

  void replace(const Place& place, std::size_t length, const std::string& text, Edit& out) {
    std::string& line = lines_[static_cast<std::size_t>(place.line) - 1];
    const auto at = static_cast<std::size_t>(place.column) - 1;
    out.was = line.substr(at, length);
    out.is = text;
    out.path = place.path;
    out.line = place.line;
    out.lines = {place.line};
    line.replace(at, length, text);
  }

  bool misspell(const Places& places, Edit& out) {
    const Place& key = one_of(places.keys);
    const std::string word = misspelt(key.text);
    if (word == key.text) return false;
    replace(key, key.text.size(), word, out);
    return true;
  }

  /// The length of a value as the line writes it; 0 where it is not simple.
  std::size_t written_length(const Place& place) const {
    const std::string& line = lines_[static_cast<std::size_t>(place.line) - 1];
    const auto at = static_cast<std::size_t>(place.column) - 1;
    if (place.node->is_sequence()) return line[at] == '[' ? line.find(']', at) + 1 - at : 0;
    return place.node->text.size() + (place.node->quoted ? 2 : 0);
  }

  bool change_type(const Places& places, Edit& out) {
    static const std::vector<std::string> others{"7", "many", "true", "null", "[1]", "{a: 1}", "\"12\""};
    const Place& value = one_of(places.values);
    const std::string& other = one_of(others);
    const yaml::Node node = yaml::parse(other, "");
    const yaml::Node& is = *value.node;
    const bool same = node.is_scalar() == is.is_scalar() && node.is_sequence() == is.is_sequence() &&
                      node.as_bool().has_value() == is.as_bool().has_value() && node.is_null() == is.is_null() &&
                      node.as_number().has_value() == is.as_number().has_value();
    const std::size_t length = written_length(value);
    if (same || length == 0) return false;
    replace(value, length, other, out);
    return true;
  }

  /// A line that says something.
  std::size_t any_line(bool indented) {
    std::vector<std::size_t> all;
    for (std::size_t i = 0; i < lines_.size(); ++i) {
      const std::size_t begin = lines_[i].find_first_not_of(' ');
      if (begin != std::string::npos && lines_[i][begin] != '#' && (!indented || begin > 0)) all.push_back(i);
    }
    return one_of(all);
  }

  bool cut_line(const Places& places, Edit& out) {
    const std::size_t at = any_line(false);
    out.line = static_cast<int>(at) + 1;
    out.was = lines_[at];
    out.lines = {out.line, out.line - 1};
    for (const Place& key : places.keys) {
      if (key.line != out.line) continue;
      out.path = key.path;
      out.lines.push_back(key.section_line - (key.section_line > out.line));
      break;
    }
    if (out.path.find('.') == std::string::npos) out.lines.push_back(1);  // a section that the whole file lacks
    lines_.erase(lines_.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  }

  bool lose_indent(Edit& out) {
    const std::size_t at = any_line(true);
    const std::size_t indent = lines_[at].find_first_not_of(' ');
    out.line = static_cast<int>(at) + 1;
    out.lines = {out.line};
    out.was = lines_[at];
    lines_[at].erase(0, 1 + below(indent));
    out.is = lines_[at];
    return true;
  }

  std::mt19937_64 random_;
  std::vector<std::string> lines_;
};

}  // namespace

std::string_view name_of(Edit::Kind kind) {
  switch (kind) {
    case Edit::Kind::key_misspelt:
      return "a key misspelt";
    case Edit::Kind::other_type:
      return "a value of another type";
    case Edit::Kind::line_cut:
      return "a line cut";
    case Edit::Kind::indent_lost:
      return "an indent lost";
  }
  return "";
}

std::vector<Edit> random_edits(const std::vector<std::string>& jobs, std::size_t count, std::uint64_t seed) {
  using enum Edit::Kind;
  Editor editor(seed);
  std::vector<Edit> out;
  for (std::size_t next = 0; out.size() < count;) {
    const Edit::Kind kind = std::vector{key_misspelt, other_type, line_cut, indent_lost}[out.size() % 4];
    if (std::optional<Edit> edit = editor.edit(jobs[next++ % jobs.size()], kind)) out.push_back(std::move(*edit));
  }
  return out;
}

}  // namespace trainer::tests
