// The language of templates against transformers (tests/goldens/chat_goldens.py), its errors and its bounds.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "engine/chat/chat_template.h"
#include "engine/core/error.h"
#include "tests/temporary.h"

using namespace trainer;
using namespace trainer::chat;
using nlohmann::json;

namespace {

const std::string kFolder = std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/chat/";

RenderOptions options() {
  RenderOptions out;
  out.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  out.now.emplace();
  out.now->tm_year = 124, out.now->tm_mon = 6, out.now->tm_mday = 26;  // 26 July 2024
  return out;
}

Conversation hello() {
  Conversation out;
  out.add("user", "Hello é");
  out.add("assistant", "Hi");
  out.add("user", "x");
  return out;
}

Text render(const std::string& text, const Conversation& conversation = hello()) {
  return ChatTemplate::parse(text, "a.jinja")->render(conversation, options());
}

std::string refused(const std::string& text) {
  return tests::message_of<DataError>([&] { render(text); });
}

/// Each run as "where it came from: text".
std::vector<std::string> runs_of(const Text& text, const Conversation& conversation) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    const Field& field = conversation.fields()[static_cast<std::size_t>(run.origin.field)];
    const std::string where = run.origin.field == 0 ? "template" : std::to_string(field.message) + "." + field.name;
    out.push_back(where + ": " + text.bytes().substr(begin, run.end - begin));
    begin = run.end;
  }
  return out;
}

}  // namespace

TEST_CASE("every construct gives the text that transformers gives, and fails where it fails") {
  int texts = 0;
  for (const json& each : json::parse(tests::contents_of(kFolder + "snippets.json"))) {
    const std::string text = each["template"].get<std::string>();
    CAPTURE(text);
    if (each["text"].is_null()) {
      CHECK_THROWS_AS(render(text), DataError);
      continue;
    }
    ++texts;
    CHECK(render(text).bytes() == each["text"].get<std::string>());
  }
  CHECK(texts >= 100);
}

TEST_CASE("errors name the template, line and column, and what is not supported") {
  CHECK(refused("a\n  {{ missing.x }}") == "a.jinja:2:13: 'missing' is undefined");
  CHECK(refused("{% if true %}\nx").starts_with("a.jinja:1:4: this block has no {% endif %}"));
  CHECK(refused("é{{ 'a' | xmlattr }}") == "a.jinja:1:11: the filter 'xmlattr' is not supported");
  CHECK(refused("{% include 'x' %}") == "a.jinja:1:4: {% include %} is not supported in chat templates");
  CHECK(refused("{{ 'a'.encode() }}") == "a.jinja:1:7: the method 'encode' of texts is not supported");
  CHECK(refused("{{ [].append(1) }}").find("which a chat template cannot do") != std::string::npos);
  CHECK(refused("{{ raise_exception('no \x1b[31m') }}") ==
        "a.jinja:1:19: the template refuses the conversation: no \\x1b[31m");
  CHECK(refused("{{ 'a' }}\n\xFF").find("not UTF-8") != std::string::npos);
}

TEST_CASE("a template cannot run on, write without end or nest without end") {
  const auto has = [](const std::string& message, const char* part) { return message.find(part) != std::string::npos; };
  const auto refused = [](const std::string& text) {
    RenderOptions few = options();
    few.budget = 3'000'000;
    return tests::message_of<DataError>([&] { ChatTemplate::parse(text, "a.jinja")->render(hello(), few); });
  };
  CHECK(has(refused("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"), "too long"));
  CHECK(has(refused("{{ 'a' * 1000000000000 }}"), "too long"));
  CHECK(has(refused("{{ '%999999999d' % 1 }}"), "large"));
  CHECK(has(refused("{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}"), "too long"));
  CHECK(has(
      refused(
          "{% set ns = namespace(x=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"),
      "too"));
  CHECK(has(refused("{% set ns = namespace(x=[]) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}"),
            "too deeply"));
  CHECK(has(refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "too deeply"));
  CHECK(has(refused("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}"), "too deeply"));
  std::string blocks;
  for (int i = 0; i < 1000; ++i) blocks += "{% if true %}";
  CHECK(has(refused(blocks), "too deeply"));
  CHECK(render("{% set ns = namespace() %}{% set ns.self = ns %}{% macro m() %}{% endmacro %}{% set ns.m = m %}x")
            .bytes() == "x");
}

TEST_CASE("text knows where it came from, whatever is done with it") {
  const Conversation conversation = Conversation::parse(
      R"({"messages": [{"role": "user", "content": "  ab,cd "}, {"role": "assistant", "content": "x", "calls": [{"n": 1.5, "k": "v"}]}]})");
  const auto runs = [&](const std::string& text) { return runs_of(render(text, conversation), conversation); };
  using Runs = std::vector<std::string>;
  CHECK(runs("<{{ messages[0].content.strip() }}>") == Runs{"template: <", "0.content: ab,cd", "template: >"});
  CHECK(runs("{{ '<' + messages[0].role ~ messages[0].content.split(',')[1] }}") ==
        Runs{"template: <", "0.role: user", "0.content: cd "});
  CHECK(runs("{{ messages | map(attribute='content') | join('|') }}") ==
        Runs{"0.content:   ab,cd ", "template: |", "1.content: x"});
  CHECK(runs("{{ messages[0].content.replace(',', ';') | trim | upper }}") ==
        Runs{"0.content: AB", "template: ;", "0.content: CD"});
  CHECK(runs("{{ messages[0].content[2:4] ~ messages[1].content * 2 }}") == Runs{"0.content: ab", "1.content: xx"});
  CHECK(runs("{{ messages[1].calls | tojson }}") == Runs{R"(1.calls: [{"n": 1.5, "k": "v"}])"});
  CHECK(runs("{{ {'a': messages[1].calls[0].n} | tojson }}") ==
        Runs{R"(template: {"a": )", "1.calls: 1.5", "template: }"});
  CHECK(runs("{% for k, v in messages[1].calls[0].items() %}{{ k }}={{ v }} {% endfor %}") ==
        Runs{"1.calls: n", "template: =", "1.calls: 1.5", "template:  ", "1.calls: k", "template: =", "1.calls: v",
             "template:  "});
  CHECK(runs("{% set x %}[{{ messages[1].content }}]{% endset %}{{ x }}{{ '%s!' % messages[1].content }}") ==
        Runs{"template: [", "1.content: x", "template: ]", "1.content: x", "template: !"});
}

TEST_CASE("what a message says reaches the template as transformers passes it") {
  const Conversation conversation =
      Conversation::parse(R"({"messages": [{"role": "user", "content": null, "n": 9007199254740993, "f": 1e5},
    {"role": "assistant", "reasoning": "why", "content": "so"}], "tools": [{"b": 1, "a": 2}], "chat_template_kwargs": {"flag": true}})");
  CHECK(render("{{ messages[0].content is defined }} {{ messages[0].n }} {{ messages[0].f }}", conversation).bytes() ==
        "False 9007199254740993 100000.0");
  CHECK(render("{{ messages[1].reasoning_content }} {{ messages[1].thinking }}", conversation).bytes() == "why why");
  CHECK(render("{{ tools | tojson }} {{ flag }} {{ documents is none }}", conversation).bytes() ==
        R"([{"b": 1, "a": 2}] True True)");
  const auto message = [](const std::string& row) {
    return tests::message_of<DataError>([&] { Conversation::parse(row); });
  };
  CHECK(message("{") == "not JSON at byte 2");
  CHECK(message("[]") == R"(a conversation is a JSON object with "messages")");
  CHECK(message(R"({"messages": 1})") == R"("messages" is a list of messages)");
  CHECK(message(R"({"messages": ["a"]})") == R"(a message is an object with "role" and "content")");
  CHECK(message(R"({"messages": [], "tools": {}})") == R"("tools" is a list)");
  CHECK(message(R"({"messages": [{"n": 123456789012345678901}]})") == "a whole number of more than 64 bits");
  CHECK(message(std::string(5000, '[')) == "JSON that is nested too deeply");
}
