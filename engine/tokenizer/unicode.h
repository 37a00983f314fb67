// What the tokenizers know of characters: categories of Unicode 16 and the sets that pre-tokenizers ask for. Sources
// and versions: tools/unicode/make_tables.py, which writes the tables.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace trainer::tokenizer {

/// General categories. White space among the control characters (U+0009 to U+000D, U+0085) has a value of its own, so
/// that every class that patterns ask for is a union of categories.
enum class Category : std::uint8_t {
  Cn,
  Cc,
  Cf,
  Co,
  Cs,
  Ll,
  Lm,
  Lo,
  Lt,
  Lu,
  Mc,
  Me,
  Mn,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Pe,
  Pf,
  Pi,
  Po,
  Ps,
  Sc,
  Sk,
  Sm,
  So,
  Zl,
  Zp,
  Zs,
  space_control
};

/// A set of categories, a bit each.
using CategorySet = std::uint32_t;

template <typename... Categories>
constexpr CategorySet categories(Categories... each) {
  return ((CategorySet{1} << static_cast<int>(each)) | ...);
}

inline constexpr CategorySet kLetter = categories(Category::Ll, Category::Lm, Category::Lo, Category::Lt, Category::Lu);
inline constexpr CategorySet kMark = categories(Category::Mc, Category::Me, Category::Mn);
inline constexpr CategorySet kNumber = categories(Category::Nd, Category::Nl, Category::No);
inline constexpr CategorySet kPunctuationSet =
    categories(Category::Pc, Category::Pd, Category::Pe, Category::Pf, Category::Pi, Category::Po, Category::Ps);
inline constexpr CategorySet kSymbol = categories(Category::Sc, Category::Sk, Category::Sm, Category::So);
inline constexpr CategorySet kSpace = categories(Category::Zl, Category::Zp, Category::Zs, Category::space_control);
inline constexpr CategorySet kOther =
    categories(Category::Cn, Category::Cc, Category::Cf, Category::Co, Category::Cs, Category::space_control);

/// The category of every code point, a byte each: 1.1 MB that is filled when first asked for.
class Categories {
 public:
  static const Categories& get();

  Category operator[](char32_t code_point) const { return static_cast<Category>(table_[code_point]); }
  bool is(char32_t code_point, CategorySet set) const { return (set >> table_[code_point]) & 1; }

  /// Neighbours of one category, in ascending order, all code points.
  struct Run {
    char32_t first, last;
    Category category;
  };
  std::span<const Run> runs() const { return runs_; }

 private:
  Categories();
  std::vector<std::uint8_t> table_;
  std::vector<Run> runs_;
};

/// The categories that a name of \p{…} stands for, as "L", "Lu", "Letter"; 0 if there is none of that name.
CategorySet category_named(std::string_view name);

struct CodePointRange {
  char32_t first, last;
};

bool contains(std::span<const CodePointRange> ranges, char32_t code_point);

/// The sets of the pre-tokenizers Digits and Punctuation, and the word characters of added tokens.
bool is_numeric(char32_t code_point);
bool is_punctuation(char32_t code_point);
bool is_word(char32_t code_point);
/// What \w of a pattern has besides L, M, Nd, Nl and Pc.
std::span<const CodePointRange> more_word_of_patterns();
inline constexpr CategorySet kWordSet = kLetter | kMark | categories(Category::Nd, Category::Nl, Category::Pc);

inline bool is_space(char32_t code_point) {
  return code_point < 0x80 ? code_point == ' ' || (code_point >= 9 && code_point <= 13)
                           : Categories::get().is(code_point, kSpace);
}

}  // namespace trainer::tokenizer
