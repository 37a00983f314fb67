// A recursive descent parser that evaluates as it reads.
#include "engine/job/expression.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "engine/job/nearest.h"

namespace trainer {
namespace {

/// Deeper nesting than any person writes; it bounds the recursion on hostile input.
constexpr int kMaxNesting = 100;

struct Function {
  std::string_view name;
  int num_arguments;
  double (*apply)(const double* arguments);
};

constexpr std::array<Function, 11> kFunctions{{
    {"sqrt", 1, [](const double* x) { return std::sqrt(x[0]); }},
    {"min", 2, [](const double* x) { return std::min(x[0], x[1]); }},
    {"max", 2, [](const double* x) { return std::max(x[0], x[1]); }},
    {"ceil", 1, [](const double* x) { return std::ceil(x[0]); }},
    {"floor", 1, [](const double* x) { return std::floor(x[0]); }},
    {"round", 1, [](const double* x) { return std::round(x[0]); }},
    {"abs", 1, [](const double* x) { return std::abs(x[0]); }},
    {"pow", 2, [](const double* x) { return std::pow(x[0], x[1]); }},
    {"exp", 1, [](const double* x) { return std::exp(x[0]); }},
    {"log", 1, [](const double* x) { return std::log(x[0]); }},
    {"log2", 1, [](const double* x) { return std::log2(x[0]); }},
}};

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

constexpr std::array<std::string_view, 9> kWords{"if", "then", "else", "and", "or", "not", "null", "true", "false"};
constexpr int kMostItems = 100'000;    // of a list
constexpr int kMostAtoms = 1'000'000;  // that one expression reads; each() reads its own many times

class Parser {
 public:
  /// Reads text[begin, end).
  Parser(std::string_view text, std::size_t begin, std::size_t end, const Variables& variables)
      : text_(text.substr(0, end)), at_(begin), variables_(variables) {}

  ParamValue whole() {
    const std::size_t begin = (skip_blanks(), at_);
    ParamValue value = expression();
    skip_blanks();
    if (at_ != text_.size()) fail(at_, "unexpected \"" + std::string(text_.substr(at_, 1)) + "\" in an expression");
    if (value.number() != nullptr && !std::isfinite(*value.number())) fail(begin, "the expression has no finite value");
    return value;
  }

 private:
  // ---- What is not taken is read all the same, with live_ false: it must parse, and has no value.

  template <typename Read>
  ParamValue read_if(bool taken, Read&& read) {
    const bool before = live_;
    live_ = live_ && taken;
    ParamValue value = read();
    live_ = before;
    return value;
  }

  ParamValue expression() {
    if (++depth_ > kMaxNesting) fail(at_, "an expression nested too deep");
    ParamValue value;
    if (take_word("if")) {
      const bool condition = expression().truth();
      if (!take_word("then")) fail(at_, "\"if\" without \"then\"");
      value = read_if(condition, [&] { return expression(); });
      if (!take_word("else")) fail(at_, "\"if\" without \"else\"");
      ParamValue otherwise = read_if(!condition, [&] { return expression(); });
      if (!condition) value = std::move(otherwise);
    } else {
      value = coalesced();
    }
    --depth_;
    return value;
  }

  ParamValue coalesced() {
    ParamValue value = either();
    while (take("??")) {
      ParamValue next = read_if(value.is_null(), [&] { return either(); });
      if (value.is_null()) value = std::move(next);
    }
    return value;
  }

  ParamValue either() {
    ParamValue value = both();
    while (take_word("or")) {
      const ParamValue next = read_if(!value.truth(), [&] { return both(); });
      value = ParamValue(value.truth() || next.truth() ? 1.0 : 0.0);
    }
    return value;
  }

  ParamValue both() {
    ParamValue value = negation();
    while (take_word("and")) {
      const ParamValue next = read_if(value.truth(), [&] { return negation(); });
      value = ParamValue(value.truth() && next.truth() ? 1.0 : 0.0);
    }
    return value;
  }

  ParamValue negation() {
    if (++depth_ > kMaxNesting) fail(at_, "an expression nested too deep");
    ParamValue value = take_word("not") ? ParamValue(negation().truth() ? 0.0 : 1.0) : comparison();
    --depth_;
    return value;
  }

  ParamValue comparison() {
    const std::size_t begin = (skip_blanks(), at_);
    ParamValue left = sum();
    const auto compare = [&](auto holds) {
      const std::size_t at = (skip_blanks(), at_);
      const ParamValue right = sum();
      return ParamValue(holds(number_of(left, begin), number_of(right, at)) ? 1.0 : 0.0);
    };
    if (take("<=")) return compare(std::less_equal<>());
    if (take(">=")) return compare(std::greater_equal<>());
    if (take("==")) return ParamValue(left == sum() ? 1.0 : 0.0);
    if (take("!=")) return ParamValue(left != sum() ? 1.0 : 0.0);
    if (take("<")) return compare(std::less<>());
    if (take(">")) return compare(std::greater<>());
    return left;
  }

  ParamValue sum() {
    const std::size_t begin = (skip_blanks(), at_);
    ParamValue value = product();
    for (;;) {
      const bool plus = take("+");
      if (!plus && !take("-")) return value;
      const std::size_t at = (skip_blanks(), at_);
      const ParamValue right = product();
      const double a = number_of(value, begin), b = number_of(right, at);
      value = ParamValue(plus ? a + b : a - b);
    }
  }

  ParamValue product() {
    const std::size_t begin = (skip_blanks(), at_);
    ParamValue value = unary();
    for (;;) {
      const std::size_t at = (skip_blanks(), at_);
      if (take("//"))
        value = ParamValue(std::floor(number_of(value, begin) / divisor(at)));
      else if (take("/"))
        value = ParamValue(number_of(value, begin) / divisor(at));
      else if (take("%"))
        value = ParamValue(modulo(number_of(value, begin), divisor(at)));
      else if (!text_.substr(at_).starts_with("**") && take("*"))
        value = ParamValue(number_of(value, begin) * number_of(unary(), at));
      else
        return value;
    }
  }

  double divisor(std::size_t at) {
    const double value = number_of(unary(), at);
    if (value == 0 && live_) fail(at, "division by zero");
    return value;
  }

  static double modulo(double a, double b) { return a - b * std::floor(a / b); }

  ParamValue unary() {
    if (++depth_ > kMaxNesting) fail(at_, "an expression nested too deep");
    const std::size_t begin = (skip_blanks(), at_);
    ParamValue value;
    if (take("-"))
      value = ParamValue(-number_of(unary(), begin));
    else if (take("+"))
      value = ParamValue(number_of(unary(), begin));
    else
      value = power();
    --depth_;
    return value;
  }

  ParamValue power() {
    const std::size_t begin = (skip_blanks(), at_);
    ParamValue base = element();
    const std::size_t at = at_;
    return take("**") ? ParamValue(std::pow(number_of(base, begin), number_of(unary(), at))) : base;
  }

  ParamValue element() {
    ParamValue value = atom();
    while (take("[")) {
      const std::size_t at = (skip_blanks(), at_);
      const ParamValue index = expression();
      if (!take("]")) fail(at, "\"[\" without \"]\"");
      if (live_) value = element_of(std::move(value), index, at);
    }
    return value;
  }

  static ParamValue element_of(ParamValue value, const ParamValue& index, std::size_t at) {
    const double* number = index.number();
    const std::optional<std::int64_t> place = number == nullptr ? std::nullopt : trainer::whole(*number);
    if (!place) fail(at, "an element is named by a whole number");
    if (value.list() == nullptr) return value;
    const ParamValue::List& list = *value.list();
    if (*place < 0 || *place >= static_cast<std::int64_t>(list.size()))
      fail(at, "a list of " + std::to_string(list.size()) + " has no element " + std::to_string(*place));
    return list[static_cast<std::size_t>(*place)];
  }

  ParamValue atom() {
    skip_blanks();
    if (++atoms_ > kMostAtoms) fail(at_, "an expression that takes too long");
    if (at_ == text_.size()) fail(at_, "an expression that ends too early");
    const char c = text_[at_];
    if (is_digit(c) || c == '.') return ParamValue(number());
    if (is_letter(c)) return name();
    if (c == '\'') return quoted();
    const std::size_t begin = at_;
    if (take("[")) return list(begin);
    if (!take("(")) fail(at_, "unexpected \"" + std::string(1, c) + "\" in an expression");
    ParamValue value = expression();
    if (!take(")")) fail(begin, "\"(\" without \")\"");
    return value;
  }

  ParamValue quoted() {
    const std::size_t end = text_.find('\'', at_ + 1);
    if (end == std::string_view::npos) fail(at_, "a word without its second \"'\"");
    const std::string word(text_.substr(at_ + 1, end - at_ - 1));
    at_ = end + 1;
    return ParamValue(word);
  }

  ParamValue list(std::size_t begin) {
    ParamValue::List items;
    if (take("]")) return ParamValue(std::move(items));
    do {
      items.push_back(expression());
    } while (take(","));
    if (!take("]")) fail(begin, "\"[\" without \"]\"");
    return ParamValue(std::move(items));
  }

  /// What follows `each(`: the expression is read once for each value of the name.
  ParamValue each() {
    skip_blanks();
    const std::size_t begin = at_;
    const std::string name = identifier();
    if (name.empty() || !take(",")) fail(begin, "each() takes a name, a number and an expression");
    const std::size_t at = (skip_blanks(), at_);
    const double count = number_of(expression(), at);
    if (!trainer::whole(count) || count < 0 || count > kMostItems)
      fail(at, "a list has 0 to " + std::to_string(kMostItems) + " elements");
    if (!take(",")) fail(at_, "each() takes a name, a number and an expression");
    const std::size_t first = at_;
    const bool none = !live_ || count == 0;
    ParamValue::List items;
    locals_.emplace_back(name, ParamValue(0.0));
    for (std::int64_t i = 0; i < (none ? 1 : static_cast<std::int64_t>(count)); ++i) {
      locals_.back().second = ParamValue(static_cast<double>(i));
      at_ = first;
      ParamValue item = read_if(!none, [&] { return expression(); });
      if (!none) items.push_back(std::move(item));
    }
    locals_.pop_back();
    if (!take(")")) fail(at_, "each() takes a name, a number and an expression");
    return ParamValue(std::move(items));
  }

  double number() {
    std::string digits;
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.' || text_[at_] == '_')) {
      if (text_[at_] != '_') digits += text_[at_];
      ++at_;
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      digits += text_[at_++];
      if (at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+')) digits += text_[at_++];
      while (at_ < text_.size() && is_digit(text_[at_])) digits += text_[at_++];
    }
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      fail(begin, "\"" + std::string(text_.substr(begin, at_ - begin)) + "\" is not a number");
    }
    return value;
  }

  /// Letters, digits and, between letters, dots.
  std::string identifier() {
    const std::size_t begin = at_;
    const auto dot = [&] { return text_[at_] == '.' && at_ + 1 < text_.size() && is_letter(text_[at_ + 1]); };
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > begin && (is_digit(text_[at_]) || dot())))) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  ParamValue name() {
    const std::size_t begin = at_;
    const std::string word = identifier();
    if (word == "null") return {};
    if (word == "true" || word == "false") return ParamValue(word == "true" ? 1.0 : 0.0);
    if (std::find(kWords.begin(), kWords.end(), word) != kWords.end())
      fail(begin, "unexpected \"" + word + "\" in an expression");
    if (take("(")) return word == "each" ? each() : ParamValue(is_of_list(word) ? of_list(word) : call(word, begin));
    for (auto local = locals_.rbegin(); local != locals_.rend(); ++local)
      if (local->first == word) return local->second;
    if (const auto found = variables_.find(word); found != variables_.end()) return found->second;
    std::vector<std::string_view> known;
    for (const auto& [variable, value] : variables_) known.push_back(variable);
    throw ExpressionError("unknown name \"" + word + "\"", begin, nearest(word, known));
  }

  static bool is_of_list(std::string_view word) { return word == "len" || word == "sum"; }

  /// What follows `len(` or `sum(`.
  double of_list(const std::string& word) {
    const std::size_t at = (skip_blanks(), at_);
    const ParamValue value = expression();
    if (!take(")")) fail(at_, word + "() takes one argument");
    if (!live_) return 1;
    if (value.list() == nullptr) fail(at, "a list is needed, and this is " + text_of(value));
    if (word == "len") return static_cast<double>(value.list()->size());
    double sum = 0;
    for (const ParamValue& item : *value.list()) sum += number_of(item, at);
    return sum;
  }

  double call(const std::string& word, std::size_t begin) {
    const auto* found =
        std::find_if(kFunctions.begin(), kFunctions.end(), [&](const Function& f) { return f.name == word; });
    if (found == kFunctions.end()) {
      std::vector<std::string_view> known{"each", "len", "sum"};
      for (const Function& function : kFunctions) known.push_back(function.name);
      throw ExpressionError("unknown function \"" + word + "\"", begin, nearest(word, known));
    }
    std::array<double, 2> arguments{};
    for (int i = 0; i < found->num_arguments; ++i) {
      if (i > 0 && !take(",")) fail(at_, wants(*found));
      const std::size_t at = (skip_blanks(), at_);
      arguments[static_cast<std::size_t>(i)] = number_of(expression(), at);
    }
    if (!take(")")) fail(at_, wants(*found));
    return found->apply(arguments.data());
  }

  static std::string wants(const Function& function) {
    return std::string(function.name) + "() takes " + (function.num_arguments == 1 ? "one argument" : "two arguments");
  }

  /// Of what is not taken: 1.
  double number_of(const ParamValue& value, std::size_t at) const {
    if (value.number() != nullptr) return *value.number();
    if (live_) fail(at, "a number is needed, and this is " + text_of(value));
    return 1;
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
  }

  bool take(std::string_view token) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }

  bool take_word(std::string_view word) {
    skip_blanks();
    const std::size_t end = at_ + word.size();
    if (!text_.substr(at_).starts_with(word)) return false;
    if (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) return false;
    at_ = end;
    return true;
  }

  [[noreturn]] static void fail(std::size_t at, const std::string& message) { throw ExpressionError(message, at); }

  std::string_view text_;
  std::size_t at_;
  const Variables& variables_;
  std::vector<std::pair<std::string, ParamValue>> locals_;  // the names of each(), outermost first
  bool live_ = true;                                        // what is read counts
  int depth_ = 0;
  int atoms_ = 0;
};

/// The position of the `}` that ends the `${` at `begin`.
std::size_t closing(std::string_view text, std::size_t begin) {
  const std::size_t end = text.find('}', begin);
  if (end == std::string_view::npos) throw ExpressionError("\"${\" without \"}\"", begin);
  return end;
}

}  // namespace

ParamValue evaluate(std::string_view expression, const Variables& variables) {
  return Parser(expression, 0, expression.size(), variables).whole();
}

std::optional<ParamValue> evaluate_template(std::string_view text, const Variables& variables) {
  const std::size_t begin = text.find("${");
  if (begin == std::string_view::npos) return std::nullopt;
  if (begin != 0) throw ExpressionError("text around \"${…}\" where a value is wanted", 0);
  const std::size_t end = closing(text, begin);
  if (end + 1 != text.size()) throw ExpressionError("text around \"${…}\" where a value is wanted", end + 1);
  return Parser(text, begin + 2, end, variables).whole();
}

std::string substitute(std::string_view text, const Variables& variables) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool dollar = text.substr(at).starts_with("${");
    if (!dollar && text[at] != '{') {
      out += text[at++];
      continue;
    }
    const std::size_t begin = at + (dollar ? 2 : 1);
    const std::size_t end = text.find('}', begin);
    if (end == std::string_view::npos)
      throw ExpressionError(dollar ? "\"${\" without \"}\"" : "\"{\" without \"}\"", at);
    const ParamValue value = Parser(text, begin, end, variables).whole();
    if (value.number() == nullptr && value.word() == nullptr)
      throw ExpressionError("this is " + text_of(value) + ", which has no place in a text", begin);
    out += value.word() != nullptr ? *value.word() : text_of(value);
    at = end + 1;
  }
  return out;
}

std::vector<std::string> names_in(std::string_view text) {
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  const auto of_name = [&](char c) { return letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; };
  const auto is_word = [](std::string_view name) {
    return std::find(kWords.begin(), kWords.end(), name) != kWords.end();
  };
  std::vector<std::string> names;
  bool inside = false, quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '}') inside = text[i] == '{', quoted = false;
    if (inside && text[i] == '\'') quoted = !quoted;
    if (!inside || quoted || !letter(text[i])) continue;
    std::size_t end = i;
    while (end < text.size() &&
           (of_name(text[end]) || (text[end] == '.' && end + 1 < text.size() && letter(text[end + 1]))))
      ++end;
    const bool exponent = i > 0 && (std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0 || text[i - 1] == '.');
    const bool function =
        text.find_first_not_of(' ', end) < text.size() && text[text.find_first_not_of(' ', end)] == '(';
    if (!exponent && !function && !is_word(text.substr(i, end - i))) names.emplace_back(text.substr(i, end - i));
    i = end - 1;
  }
  return names;
}

std::optional<std::int64_t> whole(double value) {
  constexpr double kExact = 9007199254740992.0;
  if (!(std::abs(value) <= kExact) || value != std::floor(value)) return std::nullopt;
  return static_cast<std::int64_t>(value);
}

}  // namespace trainer
