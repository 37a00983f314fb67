// From bytes to a tree: the bytes are checked, yaml-cpp's parser turns them into events, and the tree is built from
// the recorded events, where an alias repeats the events of its anchor. Limits hold while events come in, so that a
// hostile file ends early: yaml-cpp's parser calls itself once a level of depth, and its handler stops it at kMaxDepth.
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <unordered_set>

#include "engine/job/yaml.h"
#include "engine/job/yaml_mistakes.h"

namespace trainer::yaml {
namespace {

/// Places in a text. Columns count code points, yaml-cpp's marks count bytes.
class Places {
 public:
  explicit Places(std::shared_ptr<const Source> source) : source_(std::move(source)) {
    const std::string& text = source_->text;
    continuations_.reserve(text.size() + 1);
    std::uint32_t count = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
      continuations_.push_back(count);
      if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) ++count;
    }
    continuations_.push_back(count);
  }

  const std::shared_ptr<const Source>& source() const { return source_; }

  /// Places `node` at the 0-based line and byte column of a mark.
  void put(Node& node, int line, int byte_column) const {
    const std::size_t row = std::min(static_cast<std::size_t>(std::max(line, 0)), source_->starts.size() - 1);
    const std::size_t start = source_->starts[row];
    const std::size_t at = std::min(start + static_cast<std::size_t>(std::max(byte_column, 0)), source_->text.size());
    node.line = static_cast<int>(row) + 1;
    node.column = static_cast<int>(at - start - (continuations_[at] - continuations_[start])) + 1;
    node.source = source_;
  }

  [[noreturn]] void fail(int line, int byte_column, std::string message) const {
    Node node;
    put(node, line, byte_column);
    throw JobError({node.at("", std::move(message))});
  }

  [[noreturn]] void fail_at(std::size_t offset, std::string message) const {
    const auto row =
        std::upper_bound(source_->starts.begin(), source_->starts.end(), offset) - source_->starts.begin() - 1;
    fail(static_cast<int>(row), static_cast<int>(offset - source_->starts[static_cast<std::size_t>(row)]),
         std::move(message));
  }

  /// The text from a mark on.
  std::string_view from(const YAML::Mark& mark) const {
    const std::size_t row = std::min(static_cast<std::size_t>(std::max(mark.line, 0)), source_->starts.size() - 1);
    const std::size_t at = source_->starts[row] + static_cast<std::size_t>(std::max(mark.column, 0));
    return at <= source_->text.size() ? std::string_view(source_->text).substr(at) : std::string_view();
  }

 private:
  std::shared_ptr<const Source> source_;
  std::vector<std::uint32_t> continuations_;  ///< continuation bytes before each byte
};

/// The length of the UTF-8 code point at `at` and its value; length 0 if there is none.
std::pair<std::size_t, std::uint32_t> code_point(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(at);
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4) return {0, 0};
  std::uint32_t value = first & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0) != 0x80) return {0, 0};
    value = (value << 6) | (byte(at + i) & 0x3F);
  }
  const std::uint32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  if (value < least || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return {0, 0};
  return {length, value};
}

/// YAML's printable characters (specification 1.2.2, rule 1), in UTF-8.
void check_characters(const Places& places) {
  const std::string& text = places.source()->text;
  for (std::size_t at = 0; at < text.size();) {
    const auto [length, value] = code_point(text, at);
    if (length == 0) places.fail_at(at, "bytes that are not UTF-8");
    const bool control = (value < 0x20 && value != '\t' && value != '\n' && value != '\r') ||
                         (value >= 0x7F && value < 0xA0 && value != 0x85) || value == 0xFFFE || value == 0xFFFF;
    if (control) places.fail_at(at, "a control character, which YAML does not allow");
    if (value == '\r' && (at + 1 == text.size() || text[at + 1] != '\n'))
      places.fail_at(at, "a carriage return without a line feed");
    at += length;
  }
}

struct Event {
  enum class Type : std::uint8_t { scalar, sequence, mapping, end, alias } type;
  bool quoted = false;
  bool implied = false;  ///< a null that is not written out
  int line = 0, column = 0;
  std::size_t target = 0;  ///< alias: index of the first event of its anchor
  std::string text;
};

/// Whether a quoted scalar at the start of `text` ends: yaml-cpp lets the end of the file end it.
bool closes(std::string_view text) {
  const char quote = text.empty() ? ' ' : text.front();
  if (quote != '"' && quote != '\'') return true;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\')
      ++i;
    else if (text[i] == quote && quote == '\'' && i + 1 < text.size() && text[i + 1] == '\'')
      ++i;
    else if (text[i] == quote)
      return true;
  }
  return false;
}

/// Records the events of one document.
class Recorder : public YAML::EventHandler {
 public:
  explicit Recorder(const Places& places) : places_(places) {}

  std::vector<Event> events;

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Event& event = add(Event::Type::scalar, mark, anchor);
    const std::string_view text = places_.from(mark);
    const std::string_view word = text.substr(0, text.find_first_of(" \t\r\n,]}:#"));
    const bool written = word == "~" || word == "null" || word == "Null" || word == "NULL";
    event.implied = !written;
    if (written) event.text = word;
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (++num_aliases_ > kMaxAliases)
      places_.fail(mark.line, mark.column, "more than " + std::to_string(kMaxAliases) + " aliases");
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) places_.fail(mark.line, mark.column, "an alias without an anchor");
    for (const std::size_t open : open_) {
      if (open == found->second) places_.fail(mark.line, mark.column, "an alias inside of its own anchor");
    }
    add(Event::Type::alias, mark, 0).target = found->second;
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const bool is_string = tag == "!" || tag == "tag:yaml.org,2002:str";
    if (is_string && !closes(places_.from(mark)))
      places_.fail(
          mark.line, mark.column,
          std::string("not YAML: this quote is not closed in its line: ") + places_.from(mark).front() + " is missing");
    if (!is_string) check_tag(mark, tag);
    Event& event = add(Event::Type::scalar, mark, anchor);
    event.quoted = is_string;
    event.text = value;
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Event::Type::sequence, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Event::Type::mapping, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

 private:
  Event& add(Event::Type type, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (events.size() >= 2 * static_cast<std::size_t>(kMaxNodes)) {
      places_.fail(mark.line, mark.column, "more than " + std::to_string(kMaxNodes) + " values");
    }
    if (anchor != 0) anchors_[anchor] = events.size();
    Event event{};
    event.type = type;
    event.line = mark.line;
    event.column = mark.column;
    events.push_back(std::move(event));
    return events.back();
  }

  void open(Event::Type type, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (tag != "!") check_tag(mark, tag);
    if (open_.size() >= static_cast<std::size_t>(kMaxDepth)) {
      places_.fail(mark.line, mark.column, "nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    add(type, mark, anchor);
    open_.push_back(events.size() - 1);
  }

  void close() {
    events.push_back(Event{.type = Event::Type::end, .text = {}});
    open_.pop_back();
  }

  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?") places_.fail(mark.line, mark.column, "a tag (" + tag + "); only !!str is taken");
  }

  const Places& places_;
  std::map<YAML::anchor_t, std::size_t> anchors_;
  std::vector<std::size_t> open_;  ///< first events of the collections around the current one
  int num_aliases_ = 0;
};

/// Builds the tree from recorded events. Depth is bounded by kMaxDepth, also through aliases.
class Builder {
 public:
  Builder(const Places& places, const std::vector<Event>& events) : places_(places), events_(events) {}

  /// The node whose events begin at `at`; leaves `at` behind its last.
  Node build(std::size_t& at, int depth) {
    const Event& event = events_[at++];
    if (++num_nodes_ > kMaxNodes)
      fail(event, "more than " + std::to_string(kMaxNodes) + " values once aliases are expanded");
    const bool collection = event.type == Event::Type::sequence || event.type == Event::Type::mapping;
    if (collection && depth > kMaxDepth)
      fail(event, "nested more than " + std::to_string(kMaxDepth) + " deep once aliases are expanded");
    if (event.type == Event::Type::alias) {
      std::size_t target = event.target;
      return build(target, depth);
    }
    Node node;
    places_.put(node, event.line, event.column);
    if (event.type == Event::Type::scalar) {
      node.quoted = event.quoted;
      node.text = event.text;
    } else if (event.type == Event::Type::sequence) {
      node.kind = Kind::sequence;
      while (events_[at].type != Event::Type::end) node.items.push_back(build(at, depth + 1));
      ++at;
    } else {
      node.kind = Kind::mapping;
      build_mapping(node, at, depth);
    }
    return node;
  }

 private:
  void build_mapping(Node& node, std::size_t& at, int depth) {
    std::unordered_set<std::string> seen;
    while (events_[at].type != Event::Type::end) {
      const Event& first = events_[at];
      Node key = build(at, depth + 1);
      if (!key.is_scalar()) fail(first, "a key must be a word, not a list or a mapping");
      if (key.is_null()) fail(first, "a key is missing");
      if (!key.quoted && key.text == "<<") fail(first, "merge keys (<<) are not taken; write the keys out");
      if (!seen.insert(key.text).second) {
        throw JobError({key.at("", "duplicate key \"" + key.text + "\"; the first is in line " +
                                       std::to_string(node.find_key(key.text)->line))});
      }
      const bool implied = events_[at].implied;
      Node value = build(at, depth + 1);
      if (implied) {
        // A value that is not there has no place of its own.
        value.line = key.line;
        value.column = key.column;
      }
      node.keys.push_back(std::move(key));
      node.items.push_back(std::move(value));
    }
    ++at;
  }

  [[noreturn]] void fail(const Event& event, const std::string& message) const {
    places_.fail(event.line, event.column, message);
  }

  const Places& places_;
  const std::vector<Event>& events_;
  int num_nodes_ = 0;
};

std::vector<Event> read_events(const Places& places) {
  std::istringstream stream(places.source()->text);
  Recorder recorder(places);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(recorder)) return {};
    Recorder more(places);
    const YAML::Mark start{};
    if (parser.HandleNextDocument(more)) {
      const Event* second = more.events.empty() ? nullptr : &more.events.front();
      places.fail(second ? second->line : start.line, second ? second->column : start.column,
                  "more after the end of the first document; a file holds one");
    }
  } catch (const YAML::Exception& error) {
    const std::string& text = places.source()->text;
    if (const auto cause = cause_of_failure(text, static_cast<std::size_t>(std::max(0, error.mark.line))))
      places.fail_at(cause->offset, "not YAML: " + cause->message);
    places.fail(error.mark.line, error.mark.column, "not YAML: " + error.msg);
  }
  return std::move(recorder.events);
}

}  // namespace

Node parse(std::string text, std::string name) {
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  auto source = std::make_shared<Source>(std::move(name), std::move(text));
  if (source->text.size() > kMaxBytes) {
    Diagnostic mistake;
    mistake.file = source->name;
    mistake.line = mistake.column = 1;
    mistake.message = "the file is larger than 1 MiB (" + std::to_string(source->text.size()) +
                      " bytes or more), and a job is a text of some lines";
    throw JobError({std::move(mistake)});
  }
  const Places places(source);
  if (const auto cause = misread(source->text)) places.fail_at(cause->offset, cause->message);
  check_characters(places);
  const std::vector<Event> events = read_events(places);
  Node root;
  places.put(root, 0, 0);
  if (events.empty()) return root;
  std::size_t at = 0;
  return Builder(places, events).build(at, 1);
}

namespace {

/// One byte more than allowed is enough to tell; a device or pipe may have no end.
std::string bytes_of(const std::string& path) {
  constexpr std::size_t kBlock = std::size_t{1} << 16;
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(path + ": cannot be read: " + std::strerror(errno));
  std::string text;
  while (file && text.size() <= kMaxBytes) {
    const std::size_t had = text.size();
    text.resize(had + kBlock);
    file.read(text.data() + had, kBlock);
    text.resize(had + static_cast<std::size_t>(file.gcount()));
  }
  if (file.bad() || (text.empty() && !file.eof())) throw IoError(path + ": cannot be read: " + std::strerror(errno));
  return text;
}

/// The trees of the files that were read last. Each stage of planning reads the graph file, and to parse it takes far
/// longer than to read it. A file that has changed is parsed again.
class KeptTrees {
 public:
  Node tree(const std::string& path, std::string text) {
    const std::lock_guard lock(mutex_);
    const auto same = [&](const Kept& one) { return one.path == path && one.text == text; };
    if (const auto found = std::ranges::find_if(kept_, same); found != kept_.end()) return found->tree;
    if (kept_.size() == kMost) kept_.erase(kept_.begin());
    Node tree = parse(text, path);
    return kept_.emplace_back(Kept{path, std::move(text), std::move(tree)}).tree;
  }

 private:
  static constexpr std::size_t kMost = 8;
  struct Kept {
    std::string path, text;
    Node tree;
  };
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

}  // namespace

Node read_file(const std::string& path) {
  static KeptTrees kept;
  return kept.tree(path, bytes_of(path));
}

}  // namespace trainer::yaml
