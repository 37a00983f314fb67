// Classes of characters.
#include "engine/tokenizer/unicode.h"

#include <algorithm>
#include <iterator>

#include "engine/core/utf8.h"
#include "engine/tokenizer/unicode_data.h"

namespace trainer::tokenizer {
namespace {

struct Name {
  std::string_view name;
  CategorySet set;
};

constexpr CategorySet one(Category category) { return categories(category); }

constexpr Name kNames[] = {
    {"L", kLetter},
    {"Letter", kLetter},
    {"M", kMark},
    {"Mark", kMark},
    {"N", kNumber},
    {"Number", kNumber},
    {"P", kPunctuationSet},
    {"Punctuation", kPunctuationSet},
    {"S", kSymbol},
    {"Symbol", kSymbol},
    {"Z", categories(Category::Zl, Category::Zp, Category::Zs)},
    {"Separator", categories(Category::Zl, Category::Zp, Category::Zs)},
    {"C", kOther},
    {"Other", kOther},
    {"Cc", categories(Category::Cc, Category::space_control)},
    {"Cf", one(Category::Cf)},
    {"Cn", one(Category::Cn)},
    {"Co", one(Category::Co)},
    {"Cs", one(Category::Cs)},
    {"Ll", one(Category::Ll)},
    {"Lm", one(Category::Lm)},
    {"Lo", one(Category::Lo)},
    {"Lt", one(Category::Lt)},
    {"Lu", one(Category::Lu)},
    {"Mc", one(Category::Mc)},
    {"Me", one(Category::Me)},
    {"Mn", one(Category::Mn)},
    {"Nd", one(Category::Nd)},
    {"Nl", one(Category::Nl)},
    {"No", one(Category::No)},
    {"Pc", one(Category::Pc)},
    {"Pd", one(Category::Pd)},
    {"Pe", one(Category::Pe)},
    {"Pf", one(Category::Pf)},
    {"Pi", one(Category::Pi)},
    {"Po", one(Category::Po)},
    {"Ps", one(Category::Ps)},
    {"Sc", one(Category::Sc)},
    {"Sk", one(Category::Sk)},
    {"Sm", one(Category::Sm)},
    {"So", one(Category::So)},
    {"Zl", one(Category::Zl)},
    {"Zp", one(Category::Zp)},
    {"Zs", one(Category::Zs)},
};

}  // namespace

const Categories& Categories::get() {
  static const Categories all;
  return all;
}

Categories::Categories() : table_(kNumCodePoints) {
  for (std::size_t i = 0; i < std::size(tables::kCategoryRuns); ++i) {
    const char32_t end = i + 1 < std::size(tables::kCategoryRuns) ? tables::kCategoryRuns[i + 1].first : kNumCodePoints;
    std::fill(table_.begin() + tables::kCategoryRuns[i].first, table_.begin() + end, tables::kCategoryRuns[i].value);
  }
  for (const int space : {9, 10, 11, 12, 13, 0x85})
    table_[static_cast<std::size_t>(space)] = static_cast<std::uint8_t>(Category::space_control);
  for (char32_t c = 0; c < kNumCodePoints; ++c) {
    if (c == 0 || table_[c] != table_[c - 1]) runs_.push_back({c, c, (*this)[c]});
    runs_.back().last = c;
  }
}

CategorySet category_named(std::string_view name) {
  const Name* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& each) { return each.name == name; });
  return found == std::end(kNames) ? 0 : found->set;
}

bool contains(std::span<const CodePointRange> ranges, char32_t code_point) {
  const auto after = std::upper_bound(ranges.begin(), ranges.end(), code_point,
                                      [](char32_t at, const CodePointRange& each) { return at < each.first; });
  return after != ranges.begin() && code_point <= std::prev(after)->last;
}

bool is_numeric(char32_t code_point) {
  return Categories::get().is(code_point, kNumber) || contains(tables::kMoreNumbers, code_point);
}

bool is_punctuation(char32_t code_point) { return contains(tables::kPunctuation, code_point); }

bool is_word(char32_t code_point) {
  return Categories::get().is(code_point, kWordSet) || contains(tables::kMoreWord, code_point);
}

std::span<const CodePointRange> more_word_of_patterns() { return tables::kRegexWord; }

}  // namespace trainer::tokenizer
