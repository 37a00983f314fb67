// Expressions of graph files and model families: `${layers * 3}`, `${0.02 / sqrt(2 * layers)}`. Numbers are doubles; a
// whole number is an integer however it came about (`dim / heads` is one where it divides), exact to 2^53.
//   expression  := 'if' expression 'then' expression 'else' expression | coalesced
//   coalesced   := either {'??' either}                                     // the first that is not null
//   either      := both {'or' both}
//   both        := negation {'and' negation}
//   negation    := 'not' negation | comparison                              // 1 or 0, as the two above
//   comparison  := sum [('<' | '<=' | '>' | '>=' | '==' | '!=') sum]        // 1 or 0; == and != of any values
//   sum         := product {('+' | '-') product}
//   product     := unary {('*' | '/' | '//' | '%') unary}                   // and % round towards minus infinity
//   unary       := ('+' | '-') unary | power
//   power       := element ['**' unary]
//   element     := atom {'[' expression ']'}                                // from 0; of what is no list: itself
//   atom        := number | 'word' | name | name '(' expression {',' expression} ')' | '(' expression ')' | null
//                | true | false | '[' [expression {',' expression}] ']'
//                | 'each' '(' name ',' expression ',' expression ')'        // a list: each(i, 3, 2 * i) is [0, 2, 4]
// Names may have dots (`rope_scaling.factor`). Functions: sqrt min max ceil floor round abs pow exp log log2, and of
// lists len and sum. What is not taken of `if`, `??`, `and` and `or` is not evaluated.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/job/param_value.h"

namespace trainer {

/// A mistake in an expression. `offset` is the 0-based position of the first wrong character in the text that was
/// given; `suggestion` the nearest known name, if one is near.
struct ExpressionError : std::runtime_error {
  ExpressionError(const std::string& message, std::size_t offset, std::string suggestion = {})
      : std::runtime_error(message), offset(offset), suggestion(std::move(suggestion)) {}
  std::size_t offset;
  std::string suggestion;
};

using Variables = std::map<std::string, ParamValue>;

/// The value of a bare expression, `3 * layers`. Throws ExpressionError; a number that is not finite is one.
ParamValue evaluate(std::string_view expression, const Variables& variables);

/// The value of a text that is one `${…}` and nothing else; nothing if the text has no `${`. Offsets count in `text`.
std::optional<ParamValue> evaluate_template(std::string_view text, const Variables& variables);

/// `text` with every `${…}` or `{…}` replaced by its value ("h.{index}", "${2 * index}"). Whole numbers print without a
/// point; null and lists have no place in a text.
std::string substitute(std::string_view text, const Variables& variables);

/// The names that the `${…}` and `{…}` of `text` read, functions and words of the language left out, in their order.
std::vector<std::string> names_in(std::string_view text);

/// `value` as an integer where it is whole and within ±2^53.
std::optional<std::int64_t> whole(double value);

}  // namespace trainer
