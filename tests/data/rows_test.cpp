// Rows of files: the objects of JSONL and of JSON arrays as they were written, and what is said of files that are
// neither, cut off or damaged.
#include "engine/data/rows.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/data/read_rows.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::mistake_of_rows;
using tests::read_rows;
using tests::TemporaryFolder;
using Strings = std::vector<std::string>;

TEST_CASE("rows of JSONL are its lines, without blank ones, a byte order mark and line ends") {
  TemporaryFolder folder;
  const std::string text = "\xEF\xBB\xBF{\"a\": 1}\r\n\r\n  {\"a\": \"\\n\"} \t\n \n{\"a\": [{}]}";
  const std::string path = folder.write("a.jsonl", text);
  const auto read = read_rows(path);
  CHECK(read.rows == Strings{"{\"a\": 1}", "{\"a\": \"\\n\"}", "{\"a\": [{}]}"});
  CHECK(read.places == Strings{path + ":1", path + ":3", path + ":5"});
  CHECK(read.bytes == static_cast<std::int64_t>(text.size()));
}

TEST_CASE("a file without rows has none") {
  TemporaryFolder folder;
  for (const char* text : {"", "\n", " \r\n\t", "\xEF\xBB\xBF", "[]", " [ \n] \n"})
    CHECK(read_rows(folder.write("a", text)).rows.empty());
}

TEST_CASE("rows are whole wherever blocks end") {
  TemporaryFolder folder;
  std::string lines, array = "[";
  Strings rows;
  for (std::size_t i = 0; i < 400; ++i) {  // of 0 to 20 KB and one of 5 MB, over blocks of 1 MiB
    const std::size_t length = i == 250 ? 5'000'000 : i * i * 131 % 20'011;
    rows.push_back("{\"t\": \"" + std::string(length, static_cast<char>('a' + i % 26)) + "}]\\\\\"}");
    lines += rows.back() + "\n";
    array += (i > 0 ? ",\n" : "") + rows.back();
  }
  CHECK(read_rows(folder.write("a.jsonl", lines)).rows == rows);
  CHECK(read_rows(folder.write("a.json", array + "]\n")).rows == rows);
}

TEST_CASE("rows of a JSON array are its objects") {
  TemporaryFolder folder;
  const std::string path =
      folder.write("a.json", "\xEF\xBB\xBF\n[ {\"a\": \"]}\\\"\"}\n,{\n\"b\": [{\"c\": {}}]\n} ]\n");
  const auto read = read_rows(path);
  CHECK(read.rows == Strings{"{\"a\": \"]}\\\"\"}", "{\n\"b\": [{\"c\": {}}]\n}"});
  CHECK(read.places == Strings{path + ": row 1", path + ": row 2"});
}

TEST_CASE("what is wrong with rows of text is told with the line or row") {
  TemporaryFolder folder;
  const auto lines = [&](const std::string& text) { return mistake_of_rows(folder.write("a.jsonl", text)); };
  const std::string path = folder.path("a.jsonl");
  CHECK(lines("{}\nplain text\n") ==
        path + ":2: each line of JSONL is a JSON object, and this one begins with \"plain text\"");
  CHECK(contains(lines("{}\n\n\"" + std::string(39, 'x') + "é\"\n"), path + ":3: each line"));
  CHECK(lines("{}\n{\"a\": \"b") == path + ":2: the object does not end: the file was cut off; copy it again");
  CHECK(contains(lines("{\n  \"a\": 1\n}\n"), path + ":1: the object goes on in the next line"));
  CHECK(contains(lines("{\"a\":\n1}\n"), path + ":1: each line of JSONL is a JSON object, and this one ends before"));
  CHECK(contains(lines("{} \n[{}]\n"), path + ":2: "));
  CHECK(contains(lines("BZh"), path + ":1: "));
  CHECK(contains(lines("[{}, 3]"), path + ": row 2: an object {…} is expected here, and \"3]\" stands there"));
  CHECK(contains(lines("[{},]"), path + ": row 2: "));
  CHECK(contains(lines("[{} {}]"), path + ": row 1: `,` or `]` is expected after it"));
  CHECK(contains(lines("[{}, {\"a\": \"]}"), path + ": row 2: the object does not end: the file was cut off"));
  CHECK(contains(lines("[{\"a\": 1]"), path + ": row 1: a `]` stands where"));
  CHECK(contains(lines("[{}"), path + ": row 1: the array does not end: the file was cut off"));
  CHECK(contains(lines("[{}]\n{}"), path + ": row 1: text follows"));
  CHECK(contains(lines(std::string("[{}]\0", 5)), path + ": row 1: text follows"));
}

TEST_CASE("files of other kinds are refused by their names") {
  TemporaryFolder folder;
  const std::string path = folder.path("a.jsonl");
  CHECK(contains(mistake_of_rows(folder.write("a.jsonl", std::string("\xFD\x37zXZ\0", 6) + "x")),
                 path + ": is an xz file; unpack it"));
  CHECK(
      contains(mistake_of_rows(folder.write("a.jsonl", std::string("\xFF\xFE{\0}\0", 6))), path + ": is UTF-16 text"));
  CHECK(contains(mistake_of_rows(folder.write("a.jsonl", std::string("\x89HDF\r\n\x1A\n") + "x")),
                 "rows are read from JSONL"));
  CHECK(contains(mistake_of_rows(folder.path("none")), "no such file"));
  CHECK(contains(mistake_of_rows(folder.path()), "is a directory"));
}

TEST_CASE("no text of rows looks like a file of another kind") {
  TemporaryFolder folder;
  CHECK(read_rows(folder.write("a", "{\"a\":1}\n{\"b\":2}\n")).rows == Strings{"{\"a\":1}", "{\"b\":2}"});
  CHECK(read_rows(folder.write("a", "        {\"b\":2}")).rows == Strings{"{\"b\":2}"});
}

}  // namespace
}  // namespace trainer::data
