// sample and chat of model folders, as users and scripts see them.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>

#include "tests/chat/tiny_chat.h"
#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::generation_test {

using namespace trainer::tests;
using nlohmann::json;

namespace {

/// A model folder "m" of 61 tokens whose tokenizer knows seven texts, and a template "u:…<>a:…<>".
class Folder : public TemporaryFolder {
 public:
  Folder() {
    std::filesystem::copy(std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/folders/llama3", path("m"));
    write_tiny_chat(*this, "m");
  }

  Outcome chat(const std::string& input, const std::string& options = "") const {
    write("input.txt", input);
    return Process(path(),
                   {"-c", std::string(TRAINER_COMMAND) + " chat m precision.compute=f32 " + options + " < input.txt"},
                   "/bin/sh")
        .wait();
  }
  std::vector<std::int32_t> greedy(const std::string& prompt, int tokens) const {
    const Outcome outcome = trainer::tests::trainer(
        path(), {"sample", "m", "--prompt", prompt, "--tokens", std::to_string(tokens), "--json", "--temperature", "0",
                 "data.format=tokens", "precision.compute=f32"});
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return json::parse(outcome.out)["ids"].get<std::vector<std::int32_t>>();
  }
};

std::vector<json> lines(const std::string& text) {
  std::vector<json> out;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) out.push_back(json::parse(line));
  return out;
}

/// Ids of the tokens that the folder's tokenizer has, as text.
std::string text_of(const std::vector<std::int32_t>& ids, std::size_t from) {
  static const std::vector<std::string> kTexts{"a", "b", "<", ">", "u", ":", "s", ""};
  std::string text;
  for (std::size_t i = from; i < ids.size(); ++i)
    if (ids[i] < 8) text += kTexts[static_cast<std::size_t>(ids[i])];
  return text;
}

}  // namespace

TEST_CASE("chat answers as the template's prompt goes on, message after message") {
  const Folder folder;
  const Outcome outcome = folder.chat("ab\n\nb\n", "--system a --json --temperature 0 --max-tokens 5");
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const std::vector<json> answers = lines(outcome.out);
  REQUIRE(answers.size() == 2);                        // an empty line is none
  std::string conversation = "6 5 0 7 4 5 0 1 7 0 5";  // s:a<>u:ab<>a:
  std::size_t known = 11;
  for (const json& answer : answers) {
    CHECK(answer["role"] == "assistant");
    // What the tokenizer has no text for is never drawn: up to there both are the same.
    std::vector<std::int32_t> ids = folder.greedy(conversation, 5);
    std::size_t end = known;
    while (end < ids.size() && ids[end] < 8 && ids[end] != 7 && ids[end] != 2) ++end;
    ids.resize(end);
    const std::string begins = text_of(ids, known), content = answer["content"];
    CHECK(content.starts_with(begins));
    for (const char c : content) {
      const std::string names = "ab<>u:s";
      const std::size_t id = names.find(c);
      REQUIRE(id != std::string::npos);
      conversation += " " + std::to_string(id);
      ++known;
    }
    conversation += " 7 4 5 1 7 0 5";  // <>u:b<>a:
    known += 7;
  }
}

TEST_CASE("chat without --json puts out answers alone, and /new forgets") {
  const Folder folder;
  const Outcome twice = folder.chat("ab\n/new\nab\n", "--temperature 0 --max-tokens 4");
  REQUIRE_MESSAGE(twice.code == 0, twice.err);
  const std::size_t half = twice.out.size() / 2;
  CHECK(twice.out.substr(0, half) == twice.out.substr(half));
}

TEST_CASE("what chat cannot do says why") {
  const Folder folder;
  const Outcome full = folder.chat("ab\nab\n", "--temperature 0 --context 12 --max-tokens 3");
  CHECK(full.code == 65);
  CHECK(full.err.find("and there is room for 12: --context N makes more") != std::string::npos);
  const Outcome large = folder.chat("ab\n", "--context 1000");
  CHECK(large.code == 64);
  CHECK(large.err.find("the model's sequences have at most") != std::string::npos);
  std::filesystem::remove(folder.path("m/chat_template.jinja"));
  const Outcome bare = folder.chat("ab\n");
  CHECK(bare.code == 65);
  CHECK(bare.err.find("m: has no chat template") != std::string::npos);
}

TEST_CASE("sample of a folder ends where the folder's texts end, or at --stop") {
  const Folder folder;
  const auto sampled = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"sample",        "m", "--prompt", "ab", "--tokens", "30",
                                       "--temperature", "2", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = trainer::tests::trainer(folder.path(), arguments);
    REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
    return json::parse(outcome.out)["ids"].get<std::vector<std::int32_t>>();
  };
  const std::vector<std::int32_t> usual = sampled({});
  CHECK(std::ranges::find(usual, 7) == usual.end());  // eos_token of tokenizer_config.json
  CHECK(std::ranges::find(usual, 2) == usual.end());  // eos_token_id of config.json
  CHECK(usual.size() < 32);
  const std::vector<std::int32_t> other = sampled({"--stop", "60"});
  CHECK(std::ranges::equal(usual, std::span(other).first(usual.size())));
  CHECK(other.size() == 32);
}

}  // namespace trainer::generation_test
