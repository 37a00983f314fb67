// Rows of Parquet files against those that pyarrow reads of them (tests/goldens/parquet_goldens.py), and what is said
// of files that are damaged.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/rows.h"
#include "tests/data/read_rows.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using nlohmann::json;
using tests::contains;
using tests::contents_of;
using tests::mistake_of_rows;
using tests::read_rows;
using tests::TemporaryFolder;
using Strings = std::vector<std::string>;

const std::string kGoldens = std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/parquet";

// The files of the goldens, and of a folder with more of them, if the environment names one.
Strings parquet_files() {
  Strings files;
  const char* more = std::getenv("TRAINER_PARQUET_FOLDER");
  for (const std::string& folder : {kGoldens, std::string(more == nullptr ? "" : more)})
    if (!folder.empty())
      for (const auto& entry : std::filesystem::directory_iterator(folder))
        if (entry.path().extension() == ".parquet") files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

std::string jsonl_of(const std::string& path) { return path.substr(0, path.size() - 7) + "jsonl"; }

TEST_CASE("rows of Parquet are those that pyarrow reads") {
  for (const std::string& path : parquet_files()) {
    CAPTURE(path);
    const auto read = read_rows(path);
    const Strings expected = read_rows(jsonl_of(path)).rows;
    REQUIRE(read.rows.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      CAPTURE(i);
      REQUIRE(json::parse(read.rows[i]) == json::parse(expected[i]));
    }
    CHECK(read.bytes == static_cast<std::int64_t>(std::filesystem::file_size(path)));
    if (!expected.empty()) CHECK(read.places.back() == path + ": row " + std::to_string(expected.size()));
  }
}

TEST_CASE("values of Parquet are written as JSON digit by digit as they should be") {
  CHECK(read_rows(kGoldens + "/values.parquet").rows == read_rows(kGoldens + "/values.jsonl").rows);
}

TEST_CASE("of Parquet only the columns that are asked for are given") {
  const std::string path = kGoldens + "/chat.parquet";
  const auto first = [&](const RowColumns& columns) {
    std::string row;
    const auto rows = open_rows(path, columns);
    rows->next(row);
    rows->next(row);
    return row;
  };
  const std::string tags = R"("tags": [])", id = R"("id": 1)";
  const std::string messages = R"("messages": [{"role": "user", "content": "What is 1 + 1?"}, )"
                               R"({"role": "assistant", "content": "It is 2.\n\"1\""}])";
  CHECK(first({}) == "{" + id + ", " + messages + ", " + tags + "}");
  CHECK(first({{"messages"}, {}}) == "{" + messages + "}");
  CHECK(first({{"tags"}, {"id", "nothing"}}) == "{" + id + ", " + tags + "}");
  CHECK(first({{"tags", "nothing"}, {}}) == "{" + id + ", " + messages + ", " + tags + "}");  // to say what is there
}

TEST_CASE("a Parquet file that is cut off is an error that says so") {
  TemporaryFolder folder;
  const std::string whole = contents_of(kGoldens + "/chat.parquet");
  for (std::size_t bytes = 4; bytes < whole.size(); bytes += 61) {
    const std::string said = mistake_of_rows(folder.write("a", whole.substr(0, bytes)));
    CHECK(contains(said, folder.path("a") + ": "));
    CHECK(contains(said, "; the file is damaged: copy or download it again"));
  }
}

TEST_CASE("a page of Parquet whose checksum does not match is an error with row and column") {
  TemporaryFolder folder;
  std::string text = contents_of(kGoldens + "/chat.parquet");
  const std::size_t at = text.find("What is 6 + 6?");  // in the second row group, of rows 6 to 10
  REQUIRE(at != std::string::npos);
  text[at] ^= 0x20;
  CHECK(mistake_of_rows(folder.write("a", text)) ==
        folder.path("a") +
            ": row 6: column messages.list.element.content: a page's checksum does not match; the file is "
            "damaged: copy or download it again");
}

TEST_CASE("any byte of a Parquet file may be wrong: it is an error, or rows that are JSON") {
  TemporaryFolder folder;
  std::size_t errors = 0, attempts = 0;
  for (const char* name : {"/chat.parquet", "/values.parquet"}) {
    const std::string whole = contents_of(kGoldens + name);
    for (std::size_t at = 0; at < whole.size(); at += 13, ++attempts) {
      std::string damaged = whole;
      damaged[at] ^= static_cast<char>(1 + at % 255);
      try {
        for (const std::string& row : read_rows(folder.write("a", damaged)).rows) CHECK(json::parse(row).is_object());
      } catch (const DataError&) {
        ++errors;
      }
    }
  }
  CHECK(errors > attempts / 3);
}

}  // namespace
}  // namespace trainer::data
