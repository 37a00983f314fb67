// How JSON becomes values: built from the parser's SAX events, so that keys keep their order.
#include "engine/chat/json_values.h"

#include <nlohmann/json.hpp>

#include "engine/core/error.h"

namespace trainer::chat {
namespace {

using Json = nlohmann::json;

/// Puts values together as the parser meets them.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Value take() { return std::move(whole_); }

  bool null() override { return put(Value(None{})); }
  bool boolean(bool value) override { return put(Value(value)); }
  bool number_integer(number_integer_t value) override { return put(Value(std::int64_t{value})); }
  bool number_unsigned(number_unsigned_t value) override {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) fail_number();
    return put(Value(static_cast<std::int64_t>(value)));
  }
  bool number_float(number_float_t value, const string_t& digits) override {
    if (digits.find_first_of(".eE") == std::string::npos) fail_number();
    return put(Value(double{value}));
  }
  bool string(string_t& value) override { return put(Value(Text(std::move(value)))); }
  bool binary(binary_t&) override { return false; }

  bool start_object(std::size_t) override { return open(Value(std::make_shared<Dict>())); }
  bool key(string_t& name) override {
    keys_.back() = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Value(make_list({}))); }
  bool end_array() override { return close(); }

  bool parse_error(std::size_t position, const std::string&, const Json::exception&) override {
    throw DataError("not JSON at byte " + std::to_string(position));
  }

 private:
  [[noreturn]] static void fail_number() { throw DataError("a whole number of more than 64 bits"); }

  bool open(Value container) {
    if (open_.size() + 2 >= Value::kMaxDepth) throw DataError("JSON that is nested too deeply");
    open_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    Value done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    if (done.list()) done = Value(make_list(std::move(done.list()->items)));  // which knows how deep it is
    return put(std::move(done));
  }

  bool put(Value value) {
    if (open_.empty())
      whole_ = std::move(value);
    else if (open_.back().list())
      open_.back().list()->items.push_back(std::move(value));
    else
      open_.back().dict()->set(Value(Text(keys_.back())), std::move(value), budget_);
    return true;
  }

  Budget budget_{INT64_MAX};
  std::vector<Value> open_;
  std::vector<std::string> keys_;  // of each open object: the key that a value is to come for
  Value whole_;
};

}  // namespace

Value parse_json(std::string_view text) {
  Builder builder;
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

}  // namespace trainer::chat
