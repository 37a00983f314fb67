// Counts of pairs are kept up to date as words change; a heap gives the next pair, and an entry whose count has changed
// goes back into it.
#include "engine/tokenizer/train.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <queue>
#include <set>

#include "engine/core/error.h"
#include "engine/tokenizer/byte_alphabet.h"
#include "engine/tokenizer/merges.h"

namespace trainer::tokenizer {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<std::int32_t>;
using Pair = std::uint64_t;

std::int32_t left_of(Pair pair) { return static_cast<std::int32_t>(pair >> 32); }
std::int32_t right_of(Pair pair) { return static_cast<std::int32_t>(pair & 0xFFFFFFFF); }

struct Candidate {
  std::int64_t count;
  Pair pair;
  std::vector<std::int32_t> words;  // that may have it

  bool operator<(const Candidate& other) const {
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Learner {
 public:
  Learner(std::vector<std::string>& tokens, const std::unordered_map<std::string, std::int64_t>& counts)
      : tokens_(tokens) {
    for (std::size_t id = 0; id < tokens.size(); ++id) ids_.emplace(tokens[id], static_cast<std::int32_t>(id));
    std::array<std::int32_t, 256> byte_ids;
    for (int byte = 0; byte < 256; ++byte)
      byte_ids[static_cast<std::size_t>(byte)] = ids_.at(token_of_bytes(std::string(1, static_cast<char>(byte))));
    words_.reserve(counts.size());
    for (const auto& [piece, count] : counts) {
      Ids word;
      for (const char byte : piece) word.push_back(byte_ids[static_cast<unsigned char>(byte)]);
      words_.push_back(std::move(word));
      word_counts_.push_back(count);
    }
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::size_t at = 0; at + 1 < words_[i].size(); ++at) {
        const Pair pair = Merges::pair_of(words_[i][at], words_[i][at + 1]);
        pair_counts_[pair] += word_counts_[i];
        note(pair, static_cast<std::int32_t>(i));
      }
    }
    queue_noted();
  }

  /// The next pair to merge, most frequent first; false: none occurs at least `least` times.
  bool next(std::int64_t least, Candidate& top) {
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      top = std::move(heap_.back());
      heap_.pop_back();
      const std::int64_t count = pair_counts_.at(top.pair);
      if (top.count == count) return count >= std::max<std::int64_t>(1, least);
      top.count = count;
      push(std::move(top));
    }
    return false;
  }

  /// Makes a token of the pair, unless it is one, and merges it in the words that the candidate names.
  void merge(const Candidate& top) {
    const std::int32_t left = left_of(top.pair), right = right_of(top.pair);
    const std::string token = tokens_[static_cast<std::size_t>(left)] + tokens_[static_cast<std::size_t>(right)];
    const auto [found, is_new] = ids_.emplace(token, static_cast<std::int32_t>(tokens_.size()));
    if (is_new) tokens_.push_back(token);
    for (const std::int32_t word : top.words) merge_in(word, left, right, found->second);
    queue_noted();
  }

 private:
  void push(Candidate candidate) {
    heap_.push_back(std::move(candidate));
    std::push_heap(heap_.begin(), heap_.end());
  }

  // The word may have the pair.
  void note(Pair pair, std::int32_t word) {
    std::vector<std::int32_t>& words = noted_[pair];
    if (words.empty() || words.back() != word) words.push_back(word);
  }

  void queue_noted() {
    for (auto& [pair, words] : noted_) {
      const std::int64_t count = pair_counts_.at(pair);
      if (count > 0) push({count, pair, std::move(words)});
    }
    noted_.clear();
  }

  void merge_in(std::int32_t index, std::int32_t left, std::int32_t right, std::int32_t merged) {
    Ids& word = words_[static_cast<std::size_t>(index)];
    const std::int64_t count = word_counts_[static_cast<std::size_t>(index)];
    const auto change = [&](std::int32_t a, std::int32_t b, std::int64_t by) {
      const Pair pair = Merges::pair_of(a, b);
      pair_counts_[pair] += by;
      if (by > 0) note(pair, index);
    };
    std::size_t kept = 0;
    for (std::size_t at = 0; at < word.size(); ++at) {
      if (word[at] != left || at + 1 == word.size() || word[at + 1] != right) {
        word[kept++] = word[at];
        continue;
      }
      if (kept > 0) change(word[kept - 1], left, -count), change(word[kept - 1], merged, count);
      word[kept++] = merged;
      ++at;
      if (at + 1 < word.size()) change(right, word[at + 1], -count), change(merged, word[at + 1], count);
    }
    word.resize(kept);
  }

  std::vector<std::string>& tokens_;
  std::unordered_map<std::string, std::int32_t> ids_;
  std::vector<Ids> words_;
  std::vector<std::int64_t> word_counts_;
  std::unordered_map<Pair, std::int64_t> pair_counts_;
  std::unordered_map<Pair, std::vector<std::int32_t>> noted_;
  std::vector<Candidate> heap_;
};

Json added_token(std::size_t id, const std::string& content) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

Json byte_level(bool trim_offsets) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", trim_offsets}, {"use_regex", false}};
}

}  // namespace

BpeTraining::BpeTraining(TrainingOptions options) : options_(std::move(options)) {
  const std::string_view pattern = pattern_named(options_.pattern);
  if (pattern.empty()) throw UsageError("there is no split pattern \"" + options_.pattern + "\"");
  scan_ = scanner_of(pattern);
  std::set<std::string> special;
  for (const std::string& token : options_.special) {
    if (token.empty()) throw UsageError("a special token is empty");
    if (special.insert(token).second) tokens_.push_back(token);
  }
  const auto least = static_cast<std::int64_t>(tokens_.size()) + 256;
  if (options_.vocab < least)
    throw UsageError("a vocabulary of " + std::to_string(options_.vocab) +
                     " tokens is too small: the 256 bytes and the special tokens are " + std::to_string(least));
  std::vector<char32_t> letters;
  for (int byte = 0; byte < 256; ++byte) letters.push_back(letter_of_byte(static_cast<std::uint8_t>(byte)));
  std::sort(letters.begin(), letters.end());
  for (const char32_t letter : letters) {
    std::string token = token_of_bytes(std::string(1, static_cast<char>(byte_of_letter(letter))));
    if (special.contains(token))
      throw UsageError("a special token must not be a single character of the alphabet of bytes: " + token);
    tokens_.push_back(std::move(token));
  }
}

void BpeTraining::add(std::string_view text) {
  std::string piece;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t line_end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string_view line = text.substr(begin, line_end - begin);
    for (std::size_t at = 0; at < line.size();) {
      const std::size_t end = scan_(line, at).end;
      ++counts_[piece.assign(line.substr(at, end - at))];
      at = end;
    }
    begin = line_end;
  }
}

void BpeTraining::learn(const std::function<void(std::int64_t)>& progress) {
  Learner learner(tokens_, counts_);
  std::vector<Pair> pairs;
  Candidate top;
  while (static_cast<std::int64_t>(tokens_.size()) < options_.vocab && learner.next(options_.min_frequency, top)) {
    pairs.push_back(top.pair);
    learner.merge(top);
    if (progress && tokens_.size() % 256 == 0) progress(static_cast<std::int64_t>(tokens_.size()));
  }
  // A pair that came twice counts where it came last.
  std::set<Pair> seen;
  for (std::size_t i = pairs.size(); i-- > 0;)
    if (seen.insert(pairs[i]).second)
      merges_.emplace_back(tokens_[static_cast<std::size_t>(left_of(pairs[i]))],
                           tokens_[static_cast<std::size_t>(right_of(pairs[i]))]);
  std::reverse(merges_.begin(), merges_.end());
}

// Vocabulary and merges are written line by line: as a document they would take many times their size.
std::string BpeTraining::tokenizer_json() const {
  Json added = Json::array();
  std::string vocabulary, merges;
  const auto line = [](std::string& text, const std::string& entry) {
    text += (text.empty() ? "\n   " : ",\n   ") + entry;
  };
  const auto quoted = [](const std::string& token) { return Json(token).dump(); };
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (id + 256 < tokens_.size() &&
        std::find(options_.special.begin(), options_.special.end(), tokens_[id]) != options_.special.end())
      added.push_back(added_token(id, tokens_[id]));
    line(vocabulary, quoted(tokens_[id]) + ": " + std::to_string(id));
  }
  for (const auto& [left, right] : merges_) line(merges, "[" + quoted(left) + ", " + quoted(right) + "]");
  const Json split{{"type", "Split"},
                   {"pattern", {{"Regex", std::string(pattern_named(options_.pattern))}}},
                   {"behavior", "Isolated"},
                   {"invert", false}};
  const Json json{{"version", "1.0"},
                  {"truncation", nullptr},
                  {"padding", nullptr},
                  {"added_tokens", added},
                  {"normalizer", nullptr},
                  {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({split, byte_level(false)})}}},
                  {"post_processor", byte_level(false)},
                  {"decoder", byte_level(true)},
                  {"model",
                   {{"type", "BPE"},
                    {"dropout", nullptr},
                    {"unk_token", nullptr},
                    {"continuing_subword_prefix", nullptr},
                    {"end_of_word_suffix", nullptr},
                    {"fuse_unk", false},
                    {"byte_fallback", false},
                    {"ignore_merges", false}}}};
  std::string text = json.dump(1);
  text.resize(text.rfind("\n }"));
  return text + ",\n  \"vocab\": {" + vocabulary + "\n  },\n  \"merges\": [" + merges + (merges.empty() ? "" : "\n  ") +
         "]\n }\n}\n";
}

std::string BpeTraining::config_json() const {
  Json decoder = Json::object(),
       json{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (std::size_t id = 0; id < options_.special.size(); ++id) {
    Json token = added_token(id, tokens_[id]);
    token.erase("id");
    decoder[std::to_string(id)] = token;
  }
  json["added_tokens_decoder"] = decoder;
  if (!options_.special.empty()) json["eos_token"] = options_.special.front();
  return json.dump(2) + "\n";
}

}  // namespace trainer::tokenizer
