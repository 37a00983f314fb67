// A recursive descent parser that evaluates as it reads.
#include "engine/job/expression.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
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

class Parser {
 public:
  /// Reads text[begin, end).
  Parser(std::string_view text, std::size_t begin, std::size_t end, const Variables& variables)
      : text_(text.substr(0, end)), at_(begin), variables_(variables) {}

  double whole() {
    const std::size_t begin = (skip_blanks(), at_);
    const double value = expression();
    skip_blanks();
    if (at_ != text_.size()) fail(at_, "unexpected \"" + std::string(text_.substr(at_, 1)) + "\" in an expression");
    if (!std::isfinite(value)) fail(begin, "the expression has no finite value");
    return value;
  }

 private:
  double expression() {
    if (++depth_ > kMaxNesting) fail(at_, "an expression nested too deep");
    const double left = sum();
    skip_blanks();
    double value = left;
    if (take("<="))
      value = left <= sum();
    else if (take(">="))
      value = left >= sum();
    else if (take("=="))
      value = left == sum();
    else if (take("!="))
      value = left != sum();
    else if (take("<"))
      value = left < sum();
    else if (take(">"))
      value = left > sum();
    --depth_;
    return value;
  }

  double sum() {
    double value = product();
    for (;;) {
      if (take("+"))
        value += product();
      else if (take("-"))
        value -= product();
      else
        return value;
    }
  }

  double product() {
    double value = unary();
    for (;;) {
      const std::size_t at = (skip_blanks(), at_);
      if (take("//"))
        value = std::floor(value / divisor(at));
      else if (take("/"))
        value /= divisor(at);
      else if (take("%"))
        value = modulo(value, divisor(at));
      else if (!text_.substr(at_).starts_with("**") && take("*"))
        value *= unary();
      else
        return value;
    }
  }

  double divisor(std::size_t at) {
    const double value = unary();
    if (value == 0) fail(at, "division by zero");
    return value;
  }

  static double modulo(double a, double b) { return a - b * std::floor(a / b); }

  double unary() {
    if (++depth_ > kMaxNesting) fail(at_, "an expression nested too deep");
    const double value = take("-") ? -unary() : take("+") ? unary() : power();
    --depth_;
    return value;
  }

  double power() {
    const double base = atom();
    return take("**") ? std::pow(base, unary()) : base;
  }

  double atom() {
    skip_blanks();
    if (at_ == text_.size()) fail(at_, "an expression that ends too early");
    const char c = text_[at_];
    if (is_digit(c) || c == '.') return number();
    if (is_letter(c)) return name();
    const std::size_t begin = at_;
    if (!take("(")) fail(at_, "unexpected \"" + std::string(1, c) + "\" in an expression");
    const double value = expression();
    if (!take(")")) fail(begin, "\"(\" without \")\"");
    return value;
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

  double name() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || is_digit(text_[at_]))) ++at_;
    const std::string word(text_.substr(begin, at_ - begin));
    if (take("(")) return call(word, begin);
    const auto found = variables_.find(word);
    if (found != variables_.end()) return found->second;
    std::vector<std::string_view> known;
    for (const auto& [variable, value] : variables_) known.push_back(variable);
    throw ExpressionError("unknown name \"" + word + "\"", begin, nearest(word, known));
  }

  double call(const std::string& word, std::size_t begin) {
    const auto* found =
        std::find_if(kFunctions.begin(), kFunctions.end(), [&](const Function& f) { return f.name == word; });
    if (found == kFunctions.end()) {
      std::vector<std::string_view> known;
      for (const Function& function : kFunctions) known.push_back(function.name);
      throw ExpressionError("unknown function \"" + word + "\"", begin, nearest(word, known));
    }
    std::array<double, 2> arguments{};
    for (int i = 0; i < found->num_arguments; ++i) {
      if (i > 0 && !take(",")) fail(at_, wants(*found));
      arguments[static_cast<std::size_t>(i)] = expression();
    }
    if (!take(")")) fail(at_, wants(*found));
    return found->apply(arguments.data());
  }

  static std::string wants(const Function& function) {
    return std::string(function.name) + "() takes " + (function.num_arguments == 1 ? "one argument" : "two arguments");
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

  [[noreturn]] static void fail(std::size_t at, const std::string& message) { throw ExpressionError(message, at); }

  std::string_view text_;
  std::size_t at_;
  const Variables& variables_;
  int depth_ = 0;
};

/// The position of the `}` that ends the `${` at `begin`.
std::size_t closing(std::string_view text, std::size_t begin) {
  const std::size_t end = text.find('}', begin);
  if (end == std::string_view::npos) throw ExpressionError("\"${\" without \"}\"", begin);
  return end;
}

std::string printed(double value) {
  std::array<char, 32> buffer;
  const std::optional<std::int64_t> integer = whole(value);
  const auto [end, error] = integer ? std::to_chars(buffer.data(), buffer.data() + buffer.size(), *integer)
                                    : std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return std::string(buffer.data(), end);
}

}  // namespace

double evaluate(std::string_view expression, const Variables& variables) {
  return Parser(expression, 0, expression.size(), variables).whole();
}

std::optional<double> evaluate_template(std::string_view text, const Variables& variables) {
  const std::size_t begin = text.find("${");
  if (begin == std::string_view::npos) return std::nullopt;
  if (begin != 0) throw ExpressionError("text around \"${…}\" where a number is wanted", 0);
  const std::size_t end = closing(text, begin);
  if (end + 1 != text.size()) throw ExpressionError("text around \"${…}\" where a number is wanted", end + 1);
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
    out += printed(Parser(text, begin, end, variables).whole());
    at = end + 1;
  }
  return out;
}

std::vector<std::string> names_in(std::string_view text) {
  const auto letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  const auto of_name = [&](char c) { return letter(c) || std::isdigit(static_cast<unsigned char>(c)) != 0; };
  std::vector<std::string> names;
  bool inside = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '{' || text[i] == '}') inside = text[i] == '{';
    if (!inside || !letter(text[i])) continue;
    std::size_t end = i;
    while (end < text.size() && of_name(text[end])) ++end;
    const bool exponent = i > 0 && (std::isdigit(static_cast<unsigned char>(text[i - 1])) != 0 || text[i - 1] == '.');
    const bool function =
        text.find_first_not_of(' ', end) < text.size() && text[text.find_first_not_of(' ', end)] == '(';
    if (!exponent && !function) names.emplace_back(text.substr(i, end - i));
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
