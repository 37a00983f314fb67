// Encoding of pieces: the cache first, then the merges.
#include "engine/tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <queue>

#include "engine/core/check.h"
#include "engine/tokenizer/byte_alphabet.h"

namespace trainer::tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
constexpr std::size_t kFew = 48;                         // symbols up to which scanning is quicker than a heap

// A line of cache memory.
struct alignas(64) Cached {
  static constexpr std::size_t kMostBytes = 22, kMostIds = 10;
  std::uint8_t size = 0, count = 0;  // an entry without bytes is empty
  char bytes[kMostBytes];
  std::int32_t ids[kMostIds];
};
static_assert(sizeof(Cached) == 64);

constexpr std::size_t kCached = 1 << 15;

struct Candidate {
  std::uint32_t rank, at;
  std::int32_t id;
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

// A token on its way; `size` of 0: merged into the one before it. Positions are bytes of the piece.
struct Bpe::Symbol {
  std::int32_t id;
  std::uint32_t begin, size;
  std::uint32_t rank = Merge::kNone;  // of its merge with the next one
  std::int32_t merged = kNoToken;     // what that merge makes
  std::int32_t before = -1, after = -1;
};

class Bpe::Scratch {
 public:
  Scratch() : cached(kCached) {}
  std::vector<Cached> cached;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

std::unique_ptr<Bpe::Scratch, void (*)(Bpe::Scratch*)> Bpe::scratch() const {
  return {new Scratch, [](Scratch* scratch) { delete scratch; }};
}

Bpe::Bpe(const Vocabulary& vocabulary, Merges merges, const BpeOptions& options)
    : vocabulary_(vocabulary), merges_(std::move(merges)), options_(options) {
  constexpr char kHex[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<std::size_t>(byte);
    const std::string name = std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">";
    byte_ids_[index] =
        vocabulary_.find(options.byte_level ? token_of_bytes(std::string(1, static_cast<char>(byte))) : name);
    if (byte < 128) ascii_ids_[index] = vocabulary_.find(std::string(1, static_cast<char>(byte)));
  }
  all_bytes_ =
      (options.byte_level || options.byte_fallback) && std::count(byte_ids_.begin(), byte_ids_.end(), kNoToken) == 0;
  if (options.byte_level && options.ignore_merges) {
    pieces_.reserve(vocabulary_.size(), vocabulary_.size() * 8);
    std::string bytes;
    for (std::int32_t id = 0; id < vocabulary_.num_ids(); ++id)
      if (vocabulary_.has(id) && bytes_of_token(vocabulary_[id], bytes)) pieces_.add(bytes, id);
  }
  // Between a character and U+2581 behind it that no merged token has in it, no merge ever joins the two sides.
  cut_at_spaces_ = !options.byte_level && vocabulary_.find(kSpaceMark) != kNoToken && !options.ignore_merges;
  if (!cut_at_spaces_) return;
  for (const Merge& merge : merges_.slots()) {
    if (merge.rank == Merge::kNone) continue;
    const std::string_view token = vocabulary_[merge.id];
    for (std::size_t at = 1; (at = token.find(kSpaceMark, at)) != std::string_view::npos; ++at)
      before_space_.push_back(decode_before(token, at));
  }
  std::sort(before_space_.begin(), before_space_.end());
  before_space_.erase(std::unique(before_space_.begin(), before_space_.end()), before_space_.end());
}

// The first part of the text that is encoded by itself.
std::string_view Bpe::head_of(std::string_view text) const {
  for (std::size_t at = 1; (at = text.find('\xE2', at)) != std::string_view::npos; ++at) {
    if (text.substr(at, 3) != kSpaceMark) continue;
    if (!std::binary_search(before_space_.begin(), before_space_.end(), decode_before(text, at)))
      return text.substr(0, at);
  }
  return text;
}

void Bpe::encode(const Piece& piece, bool track, Scratch& scratch, Tokens& out) const {
  if (!cut_at_spaces_) return encode_part(piece, track, scratch, out);
  for (std::size_t at = 0; at < piece.text.size();) {
    const std::size_t size = head_of(piece.text.substr(at)).size();
    encode_part(piece.part(at, at + size), track, scratch, out);
    at += size;
  }
}

void Bpe::encode_part(const Piece& piece, bool track, Scratch& scratch, Tokens& out) const {
  const std::string_view text = piece.text;
  const bool caches = text.size() <= Cached::kMostBytes && !track;
  Cached* cached = nullptr;
  if (caches) {
    cached = &scratch.cached[hash_of(text) & (kCached - 1)];
    if (cached->size == text.size() && std::memcmp(cached->bytes, text.data(), text.size()) == 0) {
      out.ids.insert(out.ids.end(), cached->ids, cached->ids + cached->count);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  const std::int32_t whole = !options_.ignore_merges ? kNoToken
                             : options_.byte_level   ? pieces_.find(text)
                                                     : vocabulary_.find(text);
  if (whole != kNoToken) {
    symbols.push_back({whole, 0, static_cast<std::uint32_t>(text.size())});
  } else {
    if (options_.byte_level)
      split_bytes(text, symbols);
    else
      split_characters(text, symbols);
    if (symbols.size() <= kFew)
      merge_few(symbols);
    else
      merge_many(scratch);
  }
  const std::size_t first = out.ids.size();
  for (const Symbol& symbol : symbols) {
    if (symbol.size == 0) continue;
    out.ids.push_back(symbol.id);
    if (track) out.ranges.push_back(piece.source(symbol.begin, symbol.begin + symbol.size));
  }
  const std::size_t count = out.ids.size() - first;
  if (!cached || count > Cached::kMostIds) return;
  cached->size = static_cast<std::uint8_t>(text.size());
  cached->count = static_cast<std::uint8_t>(count);
  std::memcpy(cached->bytes, text.data(), text.size());
  std::copy(out.ids.begin() + static_cast<std::ptrdiff_t>(first), out.ids.end(), cached->ids);
}

// A byte without a token is the unknown token where there is one, and else nothing at all, as in Hugging Face's
// `tokenizers`. There a symbol is a character of the byte alphabet.
bool Bpe::split_bytes(std::string_view text, std::vector<Symbol>& out) const {
  bool unknown = false;  // of the last one
  for (std::uint32_t at = 0; at < text.size(); ++at) {
    const std::int32_t id = byte_ids_[static_cast<unsigned char>(text[at])];
    if (id == kNoToken && options_.unk == kNoToken) continue;
    if (id == kNoToken && unknown && options_.fuse_unk) {
      out.back().size = at + 1 - out.back().begin;
      continue;
    }
    unknown = id == kNoToken;
    out.push_back({unknown ? options_.unk : id, at, 1});
  }
  return true;
}

std::int32_t Bpe::character_id(std::string_view text, std::size_t size) const {
  return size == 1 ? ascii_ids_[static_cast<unsigned char>(text[0])] : vocabulary_.find(text.substr(0, size));
}

// An unknown character that waits to be fused with the next one comes behind the bytes of a fallback between the two:
// so the library does.
bool Bpe::split_characters(std::string_view text, std::vector<Symbol>& out) const {
  Symbol waiting{kNoToken, 0, 0};
  const auto flush = [&] {
    if (waiting.size != 0) out.push_back(waiting);
    waiting.size = 0;
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at;
    decode_next(text, end);
    const auto begin = static_cast<std::uint32_t>(at), size = static_cast<std::uint32_t>(end - at);
    const std::string_view character = text.substr(at, size);
    at = end;
    const std::int32_t id = character_id(character, size);
    if (id != kNoToken) {
      flush();
      out.push_back({id, begin, size});
      continue;
    }
    const auto id_of_byte = [&](char byte) { return byte_ids_[static_cast<unsigned char>(byte)]; };
    if (options_.byte_fallback &&
        std::none_of(character.begin(), character.end(), [&](char byte) { return id_of_byte(byte) == kNoToken; })) {
      for (std::uint32_t i = 0; i < size; ++i) out.push_back({id_of_byte(character[i]), begin + i, 1});
      continue;
    }
    if (options_.unk == kNoToken) continue;
    if (waiting.size != 0 && options_.fuse_unk) {
      waiting.size += size;
      continue;
    }
    flush();
    waiting = {options_.unk, begin, size};
  }
  flush();
  return true;
}

void Bpe::merge_few(std::vector<Symbol>& symbols) const {
  const auto look_up = [&](std::size_t i) {
    if (i + 1 >= symbols.size()) {
      symbols[i].rank = Merge::kNone;
      return;
    }
    const Merge& merge = merges_.find(symbols[i].id, symbols[i + 1].id);
    symbols[i].rank = merge.rank, symbols[i].merged = merge.id;
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) look_up(i);
  while (true) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < symbols.size(); ++i)
      if (symbols[i].rank < symbols[best].rank) best = i;
    if (symbols.empty() || symbols[best].rank == Merge::kNone) return;
    symbols[best].id = symbols[best].merged;
    symbols[best].size += symbols[best + 1].size;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
}

void Bpe::merge_many(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  heap.clear();
  const auto push = [&](std::int32_t at) {
    const Symbol& symbol = symbols[static_cast<std::size_t>(at)];
    if (symbol.after < 0) return;
    const Merge& merge = merges_.find(symbol.id, symbols[static_cast<std::size_t>(symbol.after)].id);
    if (merge.rank == Merge::kNone) return;
    heap.push_back({merge.rank, static_cast<std::uint32_t>(at), merge.id});
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  const auto count = static_cast<std::int32_t>(symbols.size());
  for (std::int32_t i = 0; i < count; ++i) {
    symbols[static_cast<std::size_t>(i)].before = i - 1;
    symbols[static_cast<std::size_t>(i)].after = i + 1 < count ? i + 1 : -1;
  }
  for (std::int32_t i = 0; i < count; ++i) push(i);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.at];
    if (left.size == 0 || left.after < 0) continue;
    Symbol& right = symbols[static_cast<std::size_t>(left.after)];
    if (merges_.find(left.id, right.id).id != top.id) continue;  // one of the two has merged since
    left.id = top.id;
    left.size += right.size;
    left.after = right.after;
    right.size = 0;
    if (left.after >= 0) symbols[static_cast<std::size_t>(left.after)].before = static_cast<std::int32_t>(top.at);
    if (left.before >= 0) push(left.before);
    push(static_cast<std::int32_t>(top.at));
  }
}

}  // namespace trainer::tokenizer
