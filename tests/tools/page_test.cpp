// The page of a plan as a file: whole or not at all, the same every time, of bounded size, alone, and with a person's
// words as text. What a browser makes of it is page_test.sh's affair.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/temporary.h"
#include "tests/tools/process.h"

namespace trainer::page_test {

using nlohmann::json;
using namespace trainer::tests;
namespace fs = std::filesystem;

namespace {

constexpr const char* kJob = R"(name: tiny
model:
  graph: models/gpt2.yaml
  with: {layers: 4, heads: 2, dim: 16, vocab: 256, context: 8}
data: {format: text, train: text.txt, seq_len: 8}
train: {steps: 6, batch: {global: 16, micro: 1}, optimizer: {lr: 1.0e-2}}
)";

class Workplace : public TemporaryFolder {
 public:
  Workplace() { write("job.yaml", kJob); }
  Outcome plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"plan", "job.yaml"});
    return trainer::tests::trainer(path(), arguments);
  }
  std::string page(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--html", "page.html"});
    const Outcome outcome = plan(arguments);
    INFO(outcome.err);
    REQUIRE((outcome.code == 0 || outcome.code == 78));
    return contents_of(path("page.html"));
  }
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++number;
  return number;
}

json data_of(const std::string& page) {
  const std::string begin = "id=\"data\">";
  const std::size_t at = page.find(begin), end = page.find("</script>", at);
  REQUIRE(at != std::string::npos);
  return json::parse(page.substr(at + begin.size(), end - at - begin.size()));
}

// Numbers of a row that belong to one block: charts.js.
std::size_t size_of_block(const json& row) { return row["summed"].get<bool>() ? 6 : 4; }

std::size_t blocks_of(const json& timeline) {
  std::size_t number = 0;
  for (const json& stage : timeline["stages"])
    for (const json& row : stage["rows"]) number += row["blocks"].size() / size_of_block(row);
  return number;
}

const std::vector<std::string> kPipeline{"strategy.pipeline.degree=2", "cluster.devices_per_node=2"};

}  // namespace

TEST_CASE("a page is one file that asks for no other, and the same bytes every time") {
  const Workplace in;
  const std::string page = in.page(kPipeline);
  CHECK(page.starts_with("<!doctype html>"));
  CHECK(page == in.page(kPipeline));
  CHECK_FALSE(std::regex_search(page, std::regex("(src|href)\\s*=|@import|url\\(|fetch\\(|XMLHttpRequest")));
  CHECK(count(page, "http") == 1);  // the name of SVG
  CHECK_FALSE(contains(page, "@title@"));
  CHECK_FALSE(contains(page, in.path()));
}

TEST_CASE("a page holds the plan's own numbers") {
  const Workplace in;
  const json data = data_of(in.page(kPipeline)),
             plan = json::parse(in.plan({"strategy.pipeline.degree=2", "cluster.devices_per_node=2", "--json"}).out);
  CHECK(data["hash"] == plan["hash"]);
  CHECK(data["memory"]["limit"] == plan["memory"]["limit_bytes"]);
  for (std::size_t stage = 0; stage < 2; ++stage) {
    const json& memory = data["memory"]["stages"][stage];
    CHECK(memory["peak"] == plan["memory"]["stages"][stage]["peak_bytes"]);
    CHECK(memory["by_category"] == plan["memory"]["stages"][stage]["by_category"]);
    CHECK(memory["curve"]["peak_bytes"].get<std::int64_t>() <= memory["peak"].get<std::int64_t>());
  }
  CHECK(data["job"].size() ==
        count(in.plan({"strategy.pipeline.degree=2", "cluster.devices_per_node=2", "--effective"}).out, "\n"));
}

TEST_CASE("what a person wrote is text, never markup") {
  const Workplace in;
  const std::string name = "</script><script>alert(1)</script><!-- & @data@ \"";
  const std::string plain = in.page({}), page = in.page({"name=" + json(name).dump()});
  for (const char* tag : {"<script", "</script", "<!--", "alert(1)<"}) CHECK(count(page, tag) == count(plain, tag));
  CHECK(data_of(page)["name"] == name);
}

TEST_CASE("a timeline's blocks are in order, cover every instruction, and are bounded however long the step") {
  const Workplace in;
  const json timeline = data_of(in.page(kPipeline))["timeline"];
  const json plan = json::parse(in.plan({"strategy.pipeline.degree=2", "cluster.devices_per_node=2", "--json"}).out);
  std::size_t instructions = 0;
  for (const json& row : timeline["stages"][0]["rows"]) {
    const std::size_t size = size_of_block(row);
    REQUIRE(row["blocks"].size() % size == 0);
    std::int64_t clock = 0;
    for (std::size_t i = 0; i < row["blocks"].size(); i += size) {
      CHECK(row["blocks"][i].get<std::int64_t>() >= 0);      // gap to the block before
      CHECK(row["blocks"][i + 1].get<std::int64_t>() >= 0);  // duration
      clock += row["blocks"][i].get<std::int64_t>() + row["blocks"][i + 1].get<std::int64_t>();
    }
    CHECK(clock <= timeline["step_ns"].get<std::int64_t>() + 1);
    if (row["stream"] != "actions") instructions += row["blocks"].size() / size;
  }
  CHECK(instructions == plan["instructions"]["step"].get<std::size_t>());
  // 4 stages of 512 micro-batches: far more instructions than blocks.
  const std::string page = in.page({"strategy.pipeline={degree: 4, schedule: interleaved, virtual_stages: 1}",
                                    "cluster.devices_per_node=4", "train.batch.global=512"});
  CHECK(blocks_of(data_of(page)["timeline"]) <= 20'000);
  CHECK(page.size() < 2'000'000);
}

TEST_CASE("folders of a page are made; where it cannot be written the command says so, exits 74 and leaves nothing") {
  const Workplace in;
  CHECK(in.plan({"--html", "a/b/page.html"}).code == 0);
  CHECK(fs::file_size(in.path("a/b/page.html")) > 10'000);
  in.write("file", "x");
  for (const std::string place : {"file/page.html", "a/", "/proc/none/page.html"}) {
    CAPTURE(place);
    const Outcome outcome = in.plan({"--html", place});
    CHECK(outcome.code == 74);
    CHECK(contains(outcome.err, place.substr(0, place.rfind('/'))));
  }
  CHECK(contents_of(in.path("file")) == "x");
  CHECK(std::distance(fs::directory_iterator(in.path("a/b")), {}) == 1);
}

TEST_CASE("a page takes the place of the one before it, behind a link too") {
  const Workplace in;
  const std::string old = in.page({"name=old"});
  fs::remove(in.path("page.html"));
  in.write("real/old.html", old);
  fs::create_symlink("real/old.html", in.path("page.html"));
  const std::string page = in.page({});
  CHECK(page != old);
  CHECK(fs::is_symlink(in.path("page.html")));
  CHECK(contents_of(in.path("real/old.html")) == page);
}

TEST_CASE("a file that is no page of trainer is never replaced by one") {
  const Workplace in;
  in.write("notes.txt", "of a person");
  in.write("other.html", "<!doctype html><title>another</title>");
  for (const std::string file : {"notes.txt", "other.html", "job.yaml"}) {
    CAPTURE(file);
    const std::string before = contents_of(in.path(file));
    const Outcome outcome = in.plan({"--html", file});
    CHECK(outcome.code == 64);
    CHECK(contains(outcome.err, file + ": --html replaces only pages that trainer wrote"));
    CHECK(contents_of(in.path(file)) == before);
  }
  in.write("empty.html", "");
  CHECK(in.plan({"--html", "empty.html"}).code == 0);
}

TEST_CASE("a job that does not fit has its page, which says so") {
  const Workplace in;
  const Outcome outcome = in.plan({"cluster.memory_limit=300KiB", "--html", "page.html"});
  CHECK(outcome.code == 78);
  const json data = data_of(contents_of(in.path("page.html")));
  CHECK(contains(data["notice"].get<std::string>(), "the plan needs"));
}

}  // namespace trainer::page_test
