// The tokenizers for bytes, characters and tokenizer.json, and how each is saved as JSON.
#include "engine/data/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/text_tokenizer.h"

namespace trainer::data {
namespace {

void check_id(std::int32_t id, std::int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return;
  throw DataError("token id " + std::to_string(id) + " is outside of the vocabulary of " + std::to_string(vocab_size));
}

}  // namespace

std::vector<std::int32_t> BytesTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  for (char byte : text) ids.push_back(static_cast<std::uint8_t>(byte));
  return ids;
}

std::string BytesTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::int32_t id : ids) {
    check_id(id, vocab_size());
    if (id != kEnd) text += static_cast<char>(id);
  }
  return text;
}

std::string BytesTokenizer::json() const {
  nlohmann::ordered_json state{{"tokenizer", "bytes"}};
  if (has_end_) state["end"] = kEnd;
  return state.dump();
}

CharsTokenizer::CharsTokenizer(std::vector<char32_t> alphabet) : alphabet_(std::move(alphabet)) {
  if (!alphabet_.empty()) ids_.assign(alphabet_.back() + 1, -1);
  for (std::size_t i = 0; i < alphabet_.size(); ++i) {
    CHECK(i == 0 || alphabet_[i - 1] < alphabet_[i], "an alphabet ascends");
    ids_[alphabet_[i]] = static_cast<std::int32_t>(i);
  }
}

std::vector<std::int32_t> CharsTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t offset = at;
    const char32_t character = next_code_point(text, at);
    if (character == kNotUtf8) throw DataError("offset " + std::to_string(offset) + ": the text is not UTF-8");
    const std::int32_t id = id_of(character);
    if (id < 0) {
      throw DataError("offset " + std::to_string(offset) + ": the character " + name_of_code_point(character) +
                      " is not in the alphabet of the training text");
    }
    ids.push_back(id);
  }
  return ids;
}

std::string CharsTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::int32_t id : ids) {
    check_id(id, vocab_size());
    append_utf8(text, alphabet_[static_cast<std::size_t>(id)]);
  }
  return text;
}

std::string CharsTokenizer::json() const {
  std::string alphabet;
  for (char32_t character : alphabet_) append_utf8(alphabet, character);
  return nlohmann::ordered_json{{"tokenizer", "chars"}, {"alphabet", alphabet}}.dump();
}

FileTokenizer::FileTokenizer(const std::string& path) {
  const std::string file = tokenizer::tokenizer_file_in(path);
  const MappedFile map(file);
  tokenizer_ = tokenizer::TextTokenizer::parse(map.text(), file);
  const XXH128_hash_t hash = XXH3_128bits(map.text().data(), map.text().size());
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  hash_ = text;
}

std::int64_t FileTokenizer::vocab_size() const { return tokenizer_->vocab_size(); }

std::vector<std::int32_t> FileTokenizer::encode(std::string_view text) const {
  tokenizer::EncodeOptions options;
  options.plain.all = true;
  return tokenizer_->encode(text, options).ids;
}

std::string FileTokenizer::decode(std::span<const std::int32_t> ids) const { return tokenizer_->decode(ids); }

std::string FileTokenizer::json() const {
  return nlohmann::ordered_json{{"tokenizer", "file"}, {"hash", hash_}}.dump();
}

std::vector<std::int32_t> NumbersTokenizer::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  for (std::size_t at = 0; (at = text.find_first_not_of(" ,\t\n", at)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(" ,\t\n", at), text.size());
    std::int32_t id = 0;
    const auto [last, error] = std::from_chars(text.data() + at, text.data() + end, id);
    if (error != std::errc() || last != text.data() + end)
      throw DataError("offset " + std::to_string(at) + ": \"" + std::string(text.substr(at, end - at)) +
                      "\" is no token id: this data has no text, only ids, as 12 44 5");
    check_id(id, vocab_size_);
    ids.push_back(id);
    at = end;
  }
  return ids;
}

std::string NumbersTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (std::int32_t id : ids) {
    check_id(id, vocab_size_);
    text += " " + std::to_string(id);
  }
  return text;
}

std::string NumbersTokenizer::json() const {
  return nlohmann::ordered_json{{"tokenizer", "numbers"}, {"vocab_size", vocab_size_}}.dump();
}

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view json, const std::string& path) {
  const auto state = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  const std::string name = state.is_object() ? state.value("tokenizer", nlohmann::json()).dump() : "";
  if (name == "\"bytes\"" && (!state.contains("end") || state["end"] == BytesTokenizer::kEnd))
    return std::make_unique<BytesTokenizer>(state.contains("end"));
  if (name == "\"numbers\"" && state.contains("vocab_size") && state["vocab_size"].is_number_unsigned() &&
      state["vocab_size"] > 0)
    return std::make_unique<NumbersTokenizer>(state["vocab_size"].get<std::int64_t>());
  if (name == "\"file\"" && !path.empty()) {
    auto tokenizer = std::make_unique<FileTokenizer>(path);
    if (nlohmann::json::parse(tokenizer->json()) == state) return tokenizer;
    throw DataError(path + ": is another tokenizer than the one that the checkpoint was trained with");
  }
  if (name != "\"chars\"" || !state.contains("alphabet") || !state["alphabet"].is_string()) {
    throw DataError("not a tokenizer's state: " + std::string(json.substr(0, 80)));
  }
  const std::string text = state["alphabet"].get<std::string>();
  std::vector<char32_t> alphabet;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t character = next_code_point(text, at);
    if (character == kNotUtf8 || (!alphabet.empty() && alphabet.back() >= character))
      throw DataError("a tokenizer's alphabet is malformed");
    alphabet.push_back(character);
  }
  return std::make_unique<CharsTokenizer>(std::move(alphabet));
}

}  // namespace trainer::data
