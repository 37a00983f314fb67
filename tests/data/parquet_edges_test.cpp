// Parquet files that no writer at hand makes, put together by hand: lists of older files, and files whose parts
// contradict each other or ask for what is not read.
#include <doctest/doctest.h>
#include <lz4.h>

#include <string>
#include <vector>

#include "tests/data/parquet_file.h"
#include "tests/data/read_rows.h"
#include "tests/temporary.h"

namespace trainer::tests {
namespace {

using Strings = std::vector<std::string>;

constexpr int kRequired = 0, kOptional = 1, kRepeated = 2;
constexpr int kInt32 = 1, kByteArray = 6, kFixed = 7;
constexpr int kList = 3;
constexpr int kPlain = 0, kRleDictionary = 8;

// Rows [1, 2], [], [3] of a list whose items are there at `there` of the levels' maximum, in two bits.
HandColumn one_two_none_three(int there) {
  const std::string body = levels({0, 1, 0, 0}, 1) + levels({there, there, 0, there}, there > 1 ? 2 : 1);
  return {kInt32, 4, data_page(4, kPlain, body + i32s({1, 2, 3}))};
}

TEST_CASE("lists of older Parquet files are read by the rules of the format") {
  TemporaryFolder folder;
  const auto rows = [&](const std::vector<Thrift>& schema, int there) {
    return read_rows(folder.write("a", parquet_file(1, schema, {one_two_none_three(there)}, 3))).rows;
  };
  const Strings numbers = {R"({"x": [1, 2]})", R"({"x": []})", R"({"x": [3]})"};
  const Strings objects = {R"({"x": [{"a": 1}, {"a": 2}]})", R"({"x": []})", R"({"x": [{"a": 3}]})"};
  const auto list = [](const Thrift& repeated) {
    return std::vector<Thrift>{group("x", kRequired, 1, kList), repeated, leaf("a", kRequired, kInt32)};
  };
  CHECK(rows({leaf("x", kRepeated, kInt32)}, 1) == numbers);
  CHECK(rows({group("x", kRepeated, 1), leaf("a", kRequired, kInt32)}, 1) == objects);
  CHECK(rows({group("x", kRequired, 1, kList), leaf("element", kRepeated, kInt32)}, 1) == numbers);
  CHECK(rows(list(group("array", kRepeated, 1)), 1) == objects);
  CHECK(rows(list(group("x_tuple", kRepeated, 1)), 1) == objects);
  CHECK(rows(list(group("list", kRepeated, 1)), 1) == numbers);
  CHECK(rows({group("x", kRequired, 1, kList), group("bag", kRepeated, 1), leaf("item", kOptional, kInt32)}, 2) ==
        numbers);
  CHECK(rows({group("x", kRequired, 1, kList), group("g", kRepeated, 1), leaf("a", kRequired, kInt32)}, 1) == numbers);
}

TEST_CASE("a group of a list whose one field is repeated is an item of the list") {
  TemporaryFolder folder;
  const std::string body = levels({0, 2, 1, 0}, 2) + levels({2, 2, 1, 0}, 2) + i32s({1, 2});
  const std::vector<Thrift> schema = {group("x", kRequired, 1, kList), group("g", kRepeated, 1),
                                      leaf("a", kRepeated, kInt32)};
  const std::string path = folder.write("a", parquet_file(1, schema, {{kInt32, 4, data_page(4, kPlain, body)}}, 2));
  CHECK(read_rows(path).rows == Strings{R"({"x": [{"a": [1, 2]}, {"a": []}]})", R"({"x": []})"});
}

TEST_CASE("a null in a list, a list that is null and an empty one are told apart") {
  TemporaryFolder folder;
  const std::string body = levels({0, 1, 0, 0, 0}, 1) + levels({3, 2, 0, 1, 3}, 2) + i32s({7, 8});
  const std::string path = folder.write(
      "a", parquet_file(
               1, {group("x", kOptional, 1, kList), group("list", kRepeated, 1), leaf("element", kOptional, kInt32)},
               {{kInt32, 5, data_page(5, kPlain, body)}}, 4));
  CHECK(read_rows(path).rows == Strings{R"({"x": [7, null]})", R"({"x": null})", R"({"x": []})", R"({"x": [8]})"});
}

// What is said of a file of one required column of 32-bit integers, and `rows` rows.
std::string said_of(const HandColumn& column, const Thrift& field, std::int64_t rows = 2) {
  TemporaryFolder folder;
  const std::string path = folder.write("a", parquet_file(1, {field}, {column}, rows));
  const std::string said = mistake_of_rows(path);
  CHECK(said.starts_with(path + ": "));
  return said.empty() ? said : said.substr(path.size() + 2);
}

constexpr const char* kDamaged = "; the file is damaged: copy or download it again";

TEST_CASE("Parquet files that contradict themselves are errors that name row and column") {
  const Thrift number = leaf("n", kRequired, kInt32), text = leaf("t", kRequired, kByteArray);
  const std::string two = data_page(2, kPlain, i32s({1, 2}));
  const auto damaged = [](const std::string& what) { return what + kDamaged; };
  CHECK(said_of({kInt32, 2, two}, number, 3) == damaged("row 3: column n: has fewer rows than its row group"));
  CHECK(said_of({kInt32, 2, two}, number, 1) == damaged("row 1: column n: has more rows than its row group"));
  CHECK(said_of({kInt32, 3, two}, number, 3) == damaged("row 2: column n: the metadata ends too early"));
  CHECK(said_of({kInt32, 1, two}, number, 1) == damaged("row 1: column n: its pages have more values than it should"));
  CHECK(said_of({kInt32, 2, data_page(2, kPlain, i32s({1}))}, number) ==
        damaged("row 2: column n: a page's values end too early"));
  CHECK(said_of({2, 2, two}, number) == damaged("row 1: column n: its type in a row group is not that of the schema"));
  CHECK(said_of({kInt32, 2, two, 0, false, 1 << 20}, number) ==
        damaged("row 1: column n: its pages do not lie in the file"));
  CHECK(said_of({kInt32, 2, data_page(2, kPlain, i32s({1, 2}), 9)}, number) ==
        damaged("row 1: column n: a page that is not compressed has two sizes"));
  CHECK(said_of({kInt32, 2, data_page(2, kPlain, "12345678", 1 << 20), 6}, number) ==
        damaged("row 1: column n: a page cannot be decompressed by zstd"));
  CHECK(said_of({kByteArray, 2, data_page(2, kPlain, u32(1000) + "abc")}, text) ==
        damaged("row 1: column t: a page's values end too early"));
  CHECK(said_of({kByteArray, 2, data_page(2, kRleDictionary, "\x01\x03\x01")}, text) ==
        damaged("row 1: column t: a page needs a dictionary, and there is none before it"));
  CHECK(said_of({kByteArray, 2, dictionary_page(1, u32(1) + "a") + data_page(2, kRleDictionary, "\x01\x03\x02")},
                text) == damaged("row 2: column t: a page names value 1 of a dictionary of 1"));
  CHECK(said_of({kByteArray, 2, dictionary_page(2, u32(1) + "a") + data_page(2, kRleDictionary, "\x01\x03\x02")},
                text) == damaged("row 1: column t: a dictionary ends too early"));
  CHECK(said_of({kInt32, 2, data_page(2, 6, "")}, number) ==
        damaged("row 1: column n: a page is in the encoding DELTA_LENGTH_BYTE_ARRAY, which its type does not have"));
  const std::string high = data_page(2, kPlain, levels({2, 3}, 2) + i32s({1, 2}));
  TemporaryFolder folder;
  CHECK(mistake_of_rows(folder.write(
            "a", parquet_file(1, {group("g", kOptional, 1), leaf("n", kOptional, kInt32)}, {{kInt32, 2, high}}, 2))) ==
        damaged(folder.path("a") + ": row 1: column g.n: a page has a level of 3, above 2"));
  std::vector<Thrift> deep(50'000, group("x", kRepeated, 1, kList));
  folder.write("a", parquet_file(1, deep, {}, 0));
  CHECK(mistake_of_rows(folder.path("a")) == damaged(folder.path("a") + ": the schema nests too deep"));
  CHECK(contains(said_of({kInt32, 2, two}, group("n", kRequired, 1)), "the schema ends too early"));
  CHECK(contains(said_of({kInt32, 2, two}, leaf("n", kRequired, kFixed)), "a column of fixed size has no size"));
}

TEST_CASE("what of Parquet is not read is an error that says what to do") {
  const Thrift number = leaf("n", kRequired, kInt32), text = leaf("t", kRequired, kByteArray);
  const std::string two = data_page(2, kPlain, i32s({1, 2}));
  CHECK(said_of({kInt32, 2, two, 3}, number) ==
        "row 1: column n: is compressed by LZO, which is not read; write it with zstd or snappy");
  CHECK(said_of({kInt32, 2, two, 0, true}, number) == "row 1: column n: is encrypted");
  CHECK(contains(said_of({kInt32, 2, data_page(2, 42, "")}, number), "row 1: column n: a page is in encoding 42"));
  CHECK(said_of({kInt32, 2, data_page(2, kPlain, "12345678", 0x7FFFFFFF), 6}, number) ==
        "row 1: column n: has a page of more than 1024 MiB; write it in smaller pages");
  CHECK(said_of({kByteArray, 2, data_page(2, kPlain, u32(1) + "a" + u32(1) + "\xFF")}, text) ==
        "row 2: column t: holds bytes that are not UTF-8 text");
  CHECK(said_of({kByteArray, 2, two}, leaf("t", kRequired, kByteArray, 20)) ==
        "column t: holds BSON, which is not read; write the file without it, or with text in its place");
  TemporaryFolder folder;
  CHECK(contains(mistake_of_rows(folder.write("a", "PARE" + std::string(100, 'x') + "PARE")),
                 "is an encrypted Parquet file"));
}

std::string lz4(const std::string& text) {
  std::string compressed(static_cast<std::size_t>(LZ4_compressBound(static_cast<int>(text.size()))), '\0');
  compressed.resize(static_cast<std::size_t>(LZ4_compress_default(
      text.data(), compressed.data(), static_cast<int>(text.size()), static_cast<int>(compressed.size()))));
  return compressed;
}

std::string big_endian(std::size_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

TEST_CASE("LZ4 is read in Hadoop's framing, in several blocks too, and without one") {
  TemporaryFolder folder;
  const std::string numbers = i32s({1, 2, 3, 4}), first = lz4(numbers.substr(0, 12)), second = lz4(numbers.substr(12));
  const std::string framed =
      big_endian(12) + big_endian(first.size()) + first + big_endian(4) + big_endian(second.size()) + second;
  const auto read = [&](const std::string& page, int codec) {
    const HandColumn column{kInt32, 4, data_page(4, kPlain, page, 16), codec};
    folder.write("a", parquet_file(1, {leaf("n", kRequired, kInt32)}, {column}, 4));
    return folder.path("a");
  };
  const Strings rows = {R"({"n": 1})", R"({"n": 2})", R"({"n": 3})", R"({"n": 4})"};
  CHECK(read_rows(read(framed, 5)).rows == rows);
  CHECK(read_rows(read(lz4(numbers), 5)).rows == rows);
  CHECK(read_rows(read(lz4(numbers), 7)).rows == rows);
  CHECK(contains(mistake_of_rows(read(framed, 7)), "a page cannot be decompressed by lz4"));
  CHECK(contains(mistake_of_rows(read(framed + "x", 5)), "a page cannot be decompressed by lz4"));
  CHECK(
      contains(mistake_of_rows(read(framed.substr(0, framed.size() - 1), 5)), "a page cannot be decompressed by lz4"));
}

TEST_CASE("columns of one list that disagree about it are an error") {
  TemporaryFolder folder;
  const auto file = [&](const std::vector<int>& repetitions, const std::vector<int>& definitions) {
    const HandColumn ones{kInt32, 3, data_page(3, kPlain, levels({0, 1, 0}, 1) + levels({1, 1, 0}, 1) + i32s({1, 2}))};
    const HandColumn twos{kInt32, 3,
                          data_page(3, kPlain, levels(repetitions, 1) + levels(definitions, 1) + i32s({1, 2, 3}))};
    const std::vector<Thrift> schema = {group("x", kRepeated, 2), leaf("a", kRequired, kInt32),
                                        leaf("b", kRequired, kInt32)};
    return mistake_of_rows(folder.write("a", parquet_file(1, schema, {ones, twos}, 2)));
  };
  CHECK(file({0, 1, 0}, {1, 1, 0}) == "");
  CHECK(
      contains(file({0, 0, 1}, {1, 1, 1}), "row 1: column x.b: has lists of other lengths than the columns beside it"));
  CHECK(contains(file({0, 1, 0}, {1, 1, 1}), "row 2: column x.b: has a value where the columns beside it have none"));
  CHECK(contains(file({1, 1, 0}, {1, 1, 0}), "row 1: column x.b: has a list that belongs to no row"));
  CHECK(contains(file({0, 1, 0}, {0, 1, 0}), "row 1: column x.b: has no value where one must be"));
}

TEST_CASE("a few bytes of Parquet cannot make a row of more than 64 MiB") {
  TemporaryFolder folder;
  // A hundred times the one value, of a MiB, of a dictionary.
  std::vector<int> first(100, 1), there(100, 1);
  first[0] = 0;
  const std::string body = levels(first, 1) + levels(there, 1) + std::string("\x01\xC8\x01\x00", 4);
  const std::string pages =
      dictionary_page(1, u32(1 << 20) + std::string(1 << 20, 'x')) + data_page(100, kRleDictionary, body);
  const std::string path =
      folder.write("a", parquet_file(1, {leaf("x", kRepeated, kByteArray)}, {{kByteArray, 100, pages}}, 1));
  CHECK(mistake_of_rows(path) == path + ": row 1: column x: the row is longer than 64 MiB");
  // A billion nulls.
  const std::string nulls = level_runs({{1, 0}, {999'999'999, 1}}) + level_runs({{1'000'000'000, 1}});
  const std::vector<Thrift> schema = {group("x", kRequired, 1, kList), group("list", kRepeated, 1),
                                      leaf("element", kOptional, kInt32)};
  folder.write("a", parquet_file(1, schema, {{kInt32, 1'000'000'000, data_page(1'000'000'000, kPlain, nulls)}}, 1));
  CHECK(mistake_of_rows(path) == path + ": row 1: column x.list.element: the row is longer than 64 MiB");
}

}  // namespace
}  // namespace trainer::tests
