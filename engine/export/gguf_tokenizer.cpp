// How a tokenizer becomes GGUF keys: llama.cpp knows split patterns by name, so ours are recognised first.
#include "engine/export/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/tokenizer/scanner.h"
#include "engine/tokenizer/tokenizer_file.h"

namespace trainer::exporting {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 28;
enum TokenType : std::int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };
constexpr float kScoreOfUnused = -10000, kScoreOfAdded = -1000;  // as llama.cpp's converter has them

/// Pre-tokenizers by the name under which llama.cpp knows them.
struct Known {
  std::string_view name;
  tokenizer::Scanner scanner;
  bool digits_apart;    ///< each digit is cut off first
  bool ignores_merges;  ///< a piece that is a token is that token
};
constexpr std::string_view kTekken =
    R"re([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)re";

std::array<Known, 5> known_pre_tokenizers() {
  using tokenizer::pattern_named;
  using tokenizer::scanner_of;
  return {{{"gpt-2", tokenizer::gpt2_scanner(), false, false},
           {"smollm", tokenizer::gpt2_scanner(), true, false},
           {"llama-bpe", scanner_of(pattern_named("llama3")), false, true},
           {"qwen2", scanner_of(pattern_named("qwen2")), false, false},
           {"tekken", scanner_of(kTekken), false, true}}};
}

bool is_digits_apart(const tokenizer::SplitStep& step) {
  return step.kind == tokenizer::SplitStep::Kind::digits && step.behavior == tokenizer::SplitBehavior::isolated;
}

/// The scanner whose matches are the pieces; null: the step is another one.
tokenizer::Scanner scanner_of_matches(const tokenizer::SplitStep& step) {
  using tokenizer::SplitBehavior;
  const bool matches = step.kind == tokenizer::SplitStep::Kind::scanner &&
                       step.behavior == (step.invert ? SplitBehavior::removed : SplitBehavior::isolated);
  return matches ? step.scan : nullptr;
}

Json read_json(const std::string& path) {
  if (!exists(path)) return Json::object();
  Json json = Json::parse(read_text(path, kMostBytes), nullptr, false);
  if (!json.is_object()) throw DataError(path + ": no JSON object");
  return json;
}

const Json& member(const Json& json, const char* key) {
  static const Json none;
  const auto found = json.is_object() ? json.find(key) : json.end();
  return json.is_object() && found != json.end() ? *found : none;
}

std::string word(const Json& json) { return json.is_string() ? json.get<std::string>() : ""; }
bool flag(const Json& json, bool otherwise) { return json.is_boolean() ? json.get<bool>() : otherwise; }

class Tokenizer {
 public:
  Tokenizer(const std::string& folder, std::int64_t vocab, std::vector<std::string>& notes)
      : folder_(folder),
        path_(folder + "/tokenizer.json"),
        file_(tokenizer::read_tokenizer_file(read_text(path_, kMostBytes), path_)),
        options_(read_json(folder + "/tokenizer_config.json")),
        config_(read_json(folder + "/config.json")),
        notes_(notes),
        tokens_(static_cast<std::size_t>(vocab)),
        types_(tokens_.size(), kUnused) {}

  std::vector<GgufKey> keys() {
    const bool pieces = file_.options.byte_fallback;  // SentencePiece's, not of bytes
    take_tokens(pieces);
    add("model", std::string(pieces ? "llama" : "gpt2"));
    add("pre", pieces ? std::string("default") : pre_tokenizer());
    add("tokens", tokens_);
    add("token_type", types_);
    const std::vector<tokenizer::Merge> merges = merges_in_order();
    pieces ? add("scores", scores(merges)) : add("merges", texts_of(merges));
    add_special();
    if (pieces) add("add_space_prefix", puts_space());
    add_templates();
    return std::move(keys_);
  }

 private:
  void add(const std::string& name, GgufValue value) { keys_.push_back({"tokenizer.ggml." + name, std::move(value)}); }

  void take_tokens(bool pieces) {
    for (std::int32_t id = 0; id < file_.vocabulary.num_ids(); ++id) {
      if (!file_.vocabulary.has(id)) continue;
      const std::string_view token = file_.vocabulary[id];
      const bool byte = pieces && token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
      put(id, std::string(token), byte ? kByte : kNormal);
    }
    for (const tokenizer::AddedToken& added : file_.added) {
      std::string content = added.content;
      for (std::size_t at; !added.special && (at = content.find("\u2581")) != std::string::npos;)
        content.replace(at, 3, " ");
      put(added.id, content, added.special ? kControl : kUserDefined);
    }
    if (const std::int32_t unknown = id_of(file_.unk); pieces && unknown != tokenizer::kNoToken)
      types_[static_cast<std::size_t>(unknown)] = kUnknown;
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      if (types_[i] == kUnused) tokens_[i] = fmt::format("[PAD{}]", i);
  }

  void put(std::int32_t id, const std::string& token, TokenType type) {
    if (id >= static_cast<std::int64_t>(tokens_.size()))
      throw DataError(
          fmt::format("{}: the token {} has the id {}; the model has {} rows", path_, token, id, tokens_.size()));
    tokens_[static_cast<std::size_t>(id)] = token;
    types_[static_cast<std::size_t>(id)] = type;
  }

  /// Of a token as tokenizer.json writes it, added or not; or kNoToken.
  std::int32_t id_of(const std::string& token) const {
    const auto added = std::ranges::find(file_.added, token, &tokenizer::AddedToken::content);
    return added != file_.added.end() ? added->id : file_.vocabulary.find(token);
  }

  std::string pre_tokenizer() {
    const std::vector<tokenizer::SplitStep>& steps = file_.pre_tokenizer;
    const bool digits = !steps.empty() && is_digits_apart(steps.front());
    const std::array<Known, 5> all = known_pre_tokenizers();
    const auto known = std::ranges::find_if(all, [&](const Known& each) {
      return file_.options.byte_level && digits == each.digits_apart && steps.size() == (digits ? 2 : 1) &&
             scanner_of_matches(steps.back()) == each.scanner && each.scanner != nullptr;
    });
    if (known == all.end())
      throw DataError(path_ +
                      ": pre_tokenizer: llama.cpp's name for it is not known; it has those of GPT-2, SmolLM, "
                      "Llama 3, Qwen 2 and Tekken");
    if (file_.options.ignore_merges != known->ignores_merges)
      notes_.push_back(fmt::format("llama.cpp {} merges where a piece is a token, unlike tokenizer.json",
                                   known->ignores_merges ? "ignores" : "applies"));
    return std::string(known->name);
  }

  std::vector<tokenizer::Merge> merges_in_order() const {
    std::vector<tokenizer::Merge> merges;
    for (const tokenizer::Merge& merge : file_.merges.slots())
      if (merge.rank != tokenizer::Merge::kNone) merges.push_back(merge);
    std::ranges::sort(merges, {}, &tokenizer::Merge::rank);
    return merges;
  }

  std::vector<std::string> texts_of(const std::vector<tokenizer::Merge>& merges) const {
    std::vector<std::string> texts;
    for (const tokenizer::Merge& merge : merges)
      texts.push_back(fmt::format("{} {}", file_.vocabulary[static_cast<std::int32_t>(merge.pair >> 32)],
                                  file_.vocabulary[static_cast<std::int32_t>(merge.pair & 0xFFFFFFFF)]));
    return texts;
  }

  /// SentencePiece merges what gives the token of the highest score: the earlier its merge, the higher.
  std::vector<float> scores(const std::vector<tokenizer::Merge>& merges) const {
    std::vector<float> scores(tokens_.size(), -static_cast<float>(merges.size()));
    for (std::size_t i = 0; i < scores.size(); ++i)
      if (types_[i] != kNormal)
        scores[i] = types_[i] == kUnused ? kScoreOfUnused : types_[i] == kByte ? 0 : kScoreOfAdded;
    std::vector<bool> seen(tokens_.size());
    float rank = 0;
    for (const tokenizer::Merge& merge : merges) {
      const auto at = static_cast<std::size_t>(merge.id);
      if (!seen[at] && types_[at] == kNormal) scores[at] = -rank;
      seen[at] = true;
      ++rank;
    }
    return scores;
  }

  /// The id that tokenizer_config.json, or else config.json, gives a special token.
  std::optional<std::uint32_t> special(const std::string& name) const {
    const Json& named = member(options_, (name + "_token").c_str());
    const std::string text = named.is_object() ? word(member(named, "content")) : word(named);
    if (const std::int32_t id = text.empty() ? tokenizer::kNoToken : id_of(text); id != tokenizer::kNoToken)
      return static_cast<std::uint32_t>(id);
    const Json& given = member(config_, (name + "_token_id").c_str());
    const Json& id = given.is_array() && !given.empty() ? given.front() : given;
    if (!id.is_number_unsigned() || id >= tokens_.size()) return std::nullopt;
    return id.get<std::uint32_t>();
  }

  void add_special() {
    constexpr std::array<std::pair<const char*, const char*>, 6> kSpecial{
        {{"bos", "bos_token_id"},
         {"eos", "eos_token_id"},
         {"unk", "unknown_token_id"},
         {"sep", "seperator_token_id"},  // as the format spells it
         {"pad", "padding_token_id"},
         {"mask", "mask_token_id"}}};
    for (const auto& [name, key] : kSpecial)
      if (const std::optional<std::uint32_t> id = special(name)) add(key, *id);
    const std::vector<tokenizer::TemplatePart>& parts = file_.with_special;
    add("add_bos_token", flag(member(options_, "add_bos_token"), !parts.front().is_text));
    add("add_eos_token", flag(member(options_, "add_eos_token"), !parts.back().is_text));
  }

  bool puts_space() const {
    return std::ranges::any_of(file_.normalizer,
                               [](const tokenizer::NormalizerStep& step) {
                                 return step.kind == tokenizer::NormalizerStep::Kind::prepend;
                               }) ||
           std::ranges::any_of(file_.pre_tokenizer, [](const tokenizer::SplitStep& step) {
             return step.kind == tokenizer::SplitStep::Kind::metaspace &&
                    step.prepend != tokenizer::SplitStep::Prepend::never;
           });
  }

  void add_templates() {
    const std::string path = folder_ + "/chat_template.jinja";
    const auto put = [&](const std::string& name, const std::string& text) {
      keys_.push_back({"tokenizer.chat_template" + (name == "default" ? "" : "." + name), text});
    };
    const Json& given = member(options_, "chat_template");
    if (exists(path)) return put("default", read_text(path, kMostBytes));
    if (given.is_string()) return put("default", word(given));
    for (const Json& one : given) put(word(member(one, "name")), word(member(one, "template")));
  }

  const std::string folder_, path_;
  const tokenizer::TokenizerFile file_;
  const Json options_, config_;
  std::vector<std::string>& notes_;
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> types_;
  std::vector<GgufKey> keys_;
};

}  // namespace

std::vector<GgufKey> tokenizer_keys(const std::string& folder, std::int64_t vocab, std::vector<std::string>& notes) {
  if (exists(folder + "/tokenizer.json")) return Tokenizer(folder, vocab, notes).keys();
  notes.push_back("no tokenizer.json, so the file has no tokenizer: programs can use it by token ids only");
  return {{"tokenizer.ggml.model", std::string("none")}};
}

}  // namespace trainer::exporting
