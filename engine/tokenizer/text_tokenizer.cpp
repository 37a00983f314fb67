// The stages in order: added tokens of the raw text, normalizer, added tokens of the normalized text, pre-tokenizer,
// merges, post-processor.
#include "engine/tokenizer/text_tokenizer.h"

#include <algorithm>
#include <limits>
#include <set>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/core/printable.h"
#include "engine/core/utf8.h"
#include "engine/tokenizer/tokenizer_file.h"
#include "engine/tokenizer/unicode.h"

namespace trainer::tokenizer {
namespace {

constexpr std::string_view kSpacePiece = "\u2581";  // what stands for a space in tokens of SentencePiece's kind

/// Whether the character before `at` is neither white space nor what stands for it.
bool ends_word(std::string_view text, std::size_t at) {
  return !is_space(decode_before(text, at)) && !text.substr(0, at).ends_with(kSpacePiece);
}

/// Whether `space` is behind a word in the text.
bool holds_a_cut(std::string_view text, std::string_view space) {
  for (std::size_t at = 1; at < text.size(); ++at)
    if (text.substr(at).starts_with(space) && ends_word(text, at)) return true;
  return false;
}

bool replaces_spaces(const NormalizerStep& step) {
  return step.kind == NormalizerStep::Kind::replace && !step.regex && step.pattern == " " &&
         step.content == kSpacePiece;
}

/// Whether spaces become pieces of their own, or begin one: every space is replaced, and no merge joins a word to what
/// is behind it.
bool keeps_words_apart(const TokenizerFile& file) {
  const auto keeps =
      [](const SplitStep& step) {  // no space is left to be found, or the step replaces it and cuts there
        return (step.kind == SplitStep::Kind::text && step.text == " ") ||
               (step.kind == SplitStep::Kind::metaspace && step.text == kSpacePiece);
      };
  const bool by_normalizer = std::any_of(file.normalizer.begin(), file.normalizer.end(), replaces_spaces);
  const bool replaced = by_normalizer || (file.pre_tokenizer.size() == 1 &&
                                          file.pre_tokenizer.front().kind == SplitStep::Kind::metaspace);
  const std::vector<Merge>& merges = file.merges.slots();
  return replaced && !file.options.byte_level && !file.options.ignore_merges &&
         file.vocabulary.find(kSpacePiece) != kNoToken &&
         std::all_of(file.pre_tokenizer.begin(), file.pre_tokenizer.end(), keeps) &&
         std::none_of(merges.begin(), merges.end(), [&](const Merge& merge) {
           return merge.rank != Merge::kNone && holds_a_cut(file.vocabulary[merge.id], kSpacePiece);
         });
}

void require_utf8(std::string_view text) {
  const std::size_t offset = first_not_utf8(text);
  if (offset != text.size()) throw DataError("offset " + std::to_string(offset) + ": the text is not UTF-8");
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

// What one call of encode has.
struct TextTokenizer::Encoding {
  const EncodeOptions& options;
  bool track;  // ranges of new text are needed
  Bpe::Scratch& scratch;
  Tokens& out;
  TextStore store = {};
  std::vector<TokenFinder::Found> found = {};
  std::vector<Piece> pieces = {};
};

std::shared_ptr<const TextTokenizer> TextTokenizer::read(const std::string& path) {
  const std::string file = tokenizer_file_in(path);
  const MappedFile map(file);
  return parse(map.text(), file);
}

std::string tokenizer_file_in(const std::string& path) {
  if (!is_directory(path)) return path;
  const std::string file = path + "/tokenizer.json";
  if (exists(file)) return file;
  throw DataError(path + ": has no tokenizer.json" +
                  (exists(path + "/tokenizer.model") ? "; transformers makes one of its tokenizer.model: "
                                                       "AutoTokenizer.from_pretrained(…).save_pretrained(…)"
                                                     : ""));
}

std::shared_ptr<const TextTokenizer> TextTokenizer::parse(std::string_view text, const std::string& name) {
  return std::shared_ptr<const TextTokenizer>(
      new TextTokenizer(std::make_unique<TokenizerFile>(read_tokenizer_file(text, name)), name));
}

TextTokenizer::~TextTokenizer() = default;

TextTokenizer::TextTokenizer(std::unique_ptr<TokenizerFile> file, const std::string& name) : file_(std::move(file)) {
  const bool words_apart = keeps_words_apart(*file_);
  bpe_ = std::make_unique<Bpe>(file_->vocabulary, std::move(file_->merges), file_->options);
  if (file_->options.byte_level && file_->options.byte_fallback && !bpe_->has_all_bytes())
    throw DataError(name + ": model.byte_fallback: is not supported beside ByteLevel where the vocabulary lacks bytes");
  if (!file_->unk.empty() && file_->options.unk == kNoToken && !bpe_->has_all_bytes())
    throw DataError(name + ": model.unk_token: \"" + printable(file_->unk) + "\" is not in the vocabulary");
  normalize_added(name);
  std::int64_t count = file_->vocabulary.num_ids();
  for (const AddedToken& token : file_->added) count = std::max<std::int64_t>(count, token.id + 1);
  texts_.resize(static_cast<std::size_t>(count));
  special_.resize(texts_.size());
  for (std::int32_t id = 0; id < file_->vocabulary.num_ids(); ++id)
    if (file_->vocabulary.has(id)) texts_[static_cast<std::size_t>(id)] = file_->vocabulary[id];
  for (const AddedToken& token : file_->added) texts_[static_cast<std::size_t>(token.id)] = token.searched;
  // A token counts as special by what it is written as: so the library skips it.
  std::set<std::string_view> special;
  for (const AddedToken& token : file_->added)
    if (token.special) special.insert(token.content);
  for (const std::string_view content : special)
    if (const std::int32_t id = file_->vocabulary.find(content); id != kNoToken)
      special_[static_cast<std::size_t>(id)] = true;
  for (const AddedToken& token : file_->added)
    special_[static_cast<std::size_t>(token.id)] = special.contains(token.searched);
  can_cut_ = can_cut(words_apart);
}

void TextTokenizer::normalize_added(const std::string& name) {
  std::vector<std::size_t> raw, normalized;
  for (std::size_t i = 0; i < file_->added.size(); ++i) {
    AddedToken& token = file_->added[i];
    TextStore store;
    token.searched = token.normalized ? std::string(normalize(file_->normalizer, {token.content}, false, store).text)
                                      : token.content;
    if (token.searched.empty())
      throw DataError(name + ": added_tokens: the normalizer leaves nothing of \"" + printable(token.content) + "\"");
    (token.normalized ? normalized : raw).push_back(i);
  }
  try {
    raw_ = std::make_unique<TokenFinder>(file_->added, raw);
    normalized_ = std::make_unique<TokenFinder>(file_->added, normalized);
  } catch (const DataError& error) {
    throw DataError(name + ": added_tokens: " + error.what());
  }
}

bool TextTokenizer::has(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && texts_[static_cast<std::size_t>(id)].data() != nullptr;
}

bool TextTokenizer::is_special(std::int32_t id) const { return has(id) && special_[static_cast<std::size_t>(id)]; }

std::int32_t TextTokenizer::find(std::string_view token) const {
  for (const AddedToken& added : file_->added)
    if (added.content == token) return added.id;
  return file_->vocabulary.find(token);
}

Tokens TextTokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  require_utf8(text);
  if (text.size() >= std::numeric_limits<std::uint32_t>::max() / 4)
    throw DataError("a text of more than 1 GiB; cut it into several");
  ScratchHandle scratch(nullptr, nullptr);
  {
    const std::lock_guard lock(mutex_);
    if (!scratches_.empty()) {
      scratch = std::move(scratches_.back());
      scratches_.pop_back();
    }
  }
  if (!scratch) scratch = bpe_->scratch();
  Tokens out;
  const bool first_counts =
      std::any_of(file_->pre_tokenizer.begin(), file_->pre_tokenizer.end(),
                  [](const SplitStep& step) { return step.prepend == SplitStep::Prepend::first; });
  Encoding encoding{options, options.ranges || first_counts || !options.plain.parts.empty(), *scratch, out};
  for (const TemplatePart& part : file_->with_special) {
    if (!part.is_text) {
      if (!options.special) continue;
      out.ids.insert(out.ids.end(), part.ids.begin(), part.ids.end());
      if (options.ranges) out.ranges.resize(out.ids.size());
      continue;
    }
    if (text.empty()) continue;
    std::vector<TokenFinder::Found> found;
    raw_->split({text}, options.plain, found);
    for (const TokenFinder::Found& each : found) {
      const Piece piece = Piece{text}.part(each.begin, each.end);
      if (each.token)
        put_added(piece, *each.token, encoding);
      else
        encode_found(normalize(file_->normalizer, piece, encoding.track, encoding.store), encoding);
      encoding.store.clear();
    }
  }
  const std::lock_guard lock(mutex_);
  scratches_.push_back(std::move(scratch));
  return out;
}

void TextTokenizer::put_added(const Piece& piece, const AddedToken& token, Encoding& encoding) const {
  encoding.out.ids.push_back(token.id);
  if (encoding.options.ranges) encoding.out.ranges.push_back(piece.source(0, piece.text.size()));
}

// A normalized piece.
void TextTokenizer::encode_found(const Piece& piece, Encoding& encoding) const {
  if (normalized_->empty()) return encode_piece(piece, encoding);
  encoding.found.clear();
  normalized_->split(piece, encoding.options.plain, encoding.found);
  for (const TokenFinder::Found& each : encoding.found) {
    const Piece part = piece.part(each.begin, each.end);
    if (each.token)
      put_added(part, *each.token, encoding);
    else
      encode_piece(part, encoding);
  }
}

void TextTokenizer::encode_piece(const Piece& piece, Encoding& encoding) const {
  if (piece.text.empty()) return;
  const bool ranges = encoding.options.ranges;
  const std::vector<SplitStep>& steps = file_->pre_tokenizer;
  if (steps.empty()) return bpe_->encode(piece, ranges, encoding.scratch, encoding.out);
  const SplitStep& only = steps.front();
  if (steps.size() == 1 && only.kind == SplitStep::Kind::scanner && only.behavior == SplitBehavior::isolated) {
    for (std::size_t at = 0; at < piece.text.size();) {
      const std::size_t end = only.scan(piece.text, at).end;
      bpe_->encode(piece.part(at, end), ranges, encoding.scratch, encoding.out);
      at = end;
    }
    return;
  }
  encoding.pieces.clear();
  split(steps, piece, encoding.track, encoding.store, encoding.pieces);
  for (const Piece& each : encoding.pieces)
    if (!each.text.empty()) bpe_->encode(each, ranges, encoding.scratch, encoding.out);
}

std::string TextTokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids)
    if (has(id) && !(skip_special && is_special(id))) tokens.emplace_back(token(id));
  return tokenizer::decode(file_->decoder, std::move(tokens));
}

// Text is cut before a space behind another character, if nothing reaches over that place: no added token, no step of
// the normalizer, and either the split patterns always begin a piece there, or spaces become \u2581 and no merge joins
// it to what is before it. A tokenizer that puts \u2581 before every text does so in place of the space, which is left
// out.
bool TextTokenizer::can_cut(bool words_apart) {
  int prepended = 0;
  const auto keeps_spaces = [&](const NormalizerStep& step) {
    const bool prepends = step.kind == NormalizerStep::Kind::prepend && step.content == kSpacePiece;
    prepended += prepends ? 1 : 0;
    return step.kind == NormalizerStep::Kind::lowercase || (words_apart && (replaces_spaces(step) || prepends)) ||
           (step.kind == NormalizerStep::Kind::form &&
            (step.form == NormalForm::Kind::nfc || step.form == NormalForm::Kind::nfd));
  };
  for (const SplitStep& step : file_->pre_tokenizer)
    prepended += step.kind == SplitStep::Kind::metaspace && step.prepend != SplitStep::Prepend::never ? 1 : 0;
  const bool kept = std::all_of(file_->normalizer.begin(), file_->normalizer.end(), keeps_spaces);
  prepends_ = prepended > 0;
  const auto spans_a_cut = [&](const AddedToken& token) {
    return token.rstrip || holds_a_cut(token.searched, " ") || holds_a_cut(token.content, " ") ||
           (words_apart && token.normalized && holds_a_cut(token.searched, kSpacePiece)) ||
           (prepends_ && (token.normalized || token.single_word));
  };
  return kept && prepended <= 1 && std::none_of(file_->added.begin(), file_->added.end(), spans_a_cut) &&
         (words_apart || cuts_before_spaces(file_->pre_tokenizer));
}

std::size_t TextTokenizer::last_cut(std::string_view text) const {
  if (!can_cut_) return 0;
  for (std::size_t at = text.size(); at-- > 1;)
    if (text[at] == ' ' && ends_word(text, at) && (!prepends_ || is_between_words(text, at))) return at;
  return 0;
}

// Whether the space at `at` is all that a tokenizer puts before a text: white space behind it would be text too, and of
// a text behind an added token the space comes on top.
bool TextTokenizer::is_between_words(std::string_view text, std::size_t at) const {
  if (at + 1 >= text.size()) return false;
  std::size_t next = at + 1;
  const char32_t character = next_code_point(text, next);
  return character != kNotUtf8 && !is_space(character) && !text.substr(at + 1).starts_with(kSpacePiece) &&
         std::none_of(file_->added.begin(), file_->added.end(), [&](const AddedToken& token) {
           return token.content.front() == text[at + 1] || token.content.back() == text[at - 1];
         });
}

std::string StreamDecoder::add(std::int32_t id) {
  ids_.push_back(id);
  return rest(false);
}

std::string StreamDecoder::finish() { return rest(true); }

// The text of all ids without that of those given before. What ends in U+FFFD waits for the rest of a character, which
// has at most four bytes.
std::string StreamDecoder::rest(bool all) {
  const auto now_of = [&](std::size_t from) {
    return tokenizer_->decode(std::span(ids_).subspan(from), skip_special_);
  };
  const std::string before = tokenizer_->decode(std::span(ids_).first(given_ids_), skip_special_);
  std::string now = now_of(0);
  const bool broken = now.ends_with(kReplacement);
  if (broken) ++broken_;
  if (!all && (broken ? broken_ < 4 : now.size() <= before.size())) return {};
  if (now.starts_with(before))
    now.erase(0, before.size());
  else
    now = now_of(given_ids_);  // bytes that are no character took those before them along
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(given_ids_));
  given_ids_ = ids_.size();
  broken_ = 0;
  return now;
}

}  // namespace trainer::tokenizer
