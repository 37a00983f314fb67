// Tables and images, against numbers worked out by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;
using Floats = std::vector<float>;

template <typename Target>
struct Row {
  Floats features;
  Target target;
};

template <typename Target>
Row<Target> row(const Dataset& dataset, std::int64_t sample) {
  Row<Target> row{Floats(static_cast<std::size_t>(dataset.fields()[0].shape.elements())), {}};
  std::byte* out[] = {reinterpret_cast<std::byte*>(row.features.data()), reinterpret_cast<std::byte*>(&row.target)};
  dataset.read(sample, out);
  return row;
}

DataJob table_spec(const std::string& path, std::variant<std::int64_t, std::string> target = std::int64_t{-1}) {
  DataJob spec;
  spec.format = DataFormat::table;
  spec.train.paths = {path};
  spec.target = std::move(target);
  return spec;
}

std::string error_of(const DataJob& spec, const GraphInputs& inputs = {}) {
  return message_of<DataError>([&] { open_data(spec, inputs); });
}

TEST_CASE("a table's target is a column by number from either end, or by the header's name") {
  TemporaryFolder folder;
  const std::string plain = folder.write("t.csv", "1,2.5,3\n4,-5e1,6\n");
  const std::string named = folder.write("h.csv", "a, \"b c\" ,c\r\n1,2.5,3\r\n\r\n 4 ,\"-5e1\",+6");
  for (const DataJob& spec : {table_spec(plain), table_spec(plain, std::int64_t{2}), table_spec(named, "c")}) {
    const Data data = open_data(spec, {});
    REQUIRE(data.train->num_samples() == 2);
    CHECK(row<std::int32_t>(*data.train, 1).features == Floats{4, -50});
    CHECK(row<std::int32_t>(*data.train, 1).target == 6);
  }
  const DataJob middle = table_spec(named, "b c");
  const Data data = open_data(middle, {DType::f32, 0});
  CHECK(row<float>(*data.train, 0).features == Floats{1, 3});
  CHECK(row<float>(*data.train, 0).target == 2.5f);
}

TEST_CASE("what is wrong in a table is named by file, line and column") {
  TemporaryFolder folder;
  const auto bad = [&](std::string_view text, std::variant<std::int64_t, std::string> target = std::int64_t{-1}) {
    return error_of(table_spec(folder.write("t.csv", text), std::move(target)));
  };
  const std::string path = folder.path("t.csv");
  CHECK(contains(bad("1,2\n1,x\n"), path + ":2: column 1: \"x\" is not a finite number"));
  CHECK(contains(bad("1,2\n\n,1\n"), path + ":3: column 0: \"\" is not"));
  CHECK(contains(bad("nan,2\n"), path + ":1: column 0"));
  CHECK(contains(bad("a,b\n1,2\n"), "a header is read where the target is a column's name"));
  CHECK(contains(bad("1,2\n1,2,3\n"), path + ":2: has more than the 2 cells"));
  CHECK(contains(bad("1,2\n1\n"), path + ":2: has 1 cells"));
  CHECK(contains(bad("1,2\n", std::int64_t{2}), path + ":1: has 2 columns, and none is number 2"));
  CHECK(contains(bad("1,2\n", std::int64_t{-3}), "none is number -3"));
  CHECK(contains(bad("a,b\n1,2\n", "c"), path + ":1: no column is named \"c\""));
  CHECK(contains(bad("1\n"), "leaves no features"));
  CHECK(contains(bad("1,0.5\n"), path + ":1: column 1: \"0.5\" is not a class id"));
  CHECK(contains(bad("1,-1\n"), "is not a class id"));
  CHECK(contains(bad(""), path + ": the training part has no sample"));
}

TEST_CASE("numbers too small for f32 are subnormal or 0, numbers too large are not finite") {
  TemporaryFolder folder;
  const Data data = open_data(table_spec(folder.write("t.csv", "1e-46,-1e-400,1e-40,+1e-46,0\n")), {});
  CHECK(row<std::int32_t>(*data.train, 0).features == Floats{0, 0, 1e-40f, 0});
  for (const char* large : {"1e39", "-1e39", "1e400"})
    CHECK(contains(error_of(table_spec(folder.write("t.csv", large + std::string(",0\n")))), "is not a finite number"));
}

TEST_CASE("lines longer than a block and files of many blocks are read like short ones") {
  TemporaryFolder folder;
  std::string text, wide = "1";
  for (int i = 0; i < 600'000; ++i) text += std::to_string(i) + ",1\n";
  for (int i = 0; i < 1'500'000; ++i) wide += ",2";
  const Data data = open_data(table_spec(folder.write("t.csv", text.substr(0, text.size() - 1))), {});
  REQUIRE(data.train->num_samples() == 600'000);
  bool same = true;
  for (std::int64_t i = 0; i < 600'000; ++i)
    same = same && row<std::int32_t>(*data.train, i).features == Floats{static_cast<float>(i)};
  CHECK(same);
  const Data two = open_data(table_spec(folder.write("w.csv", "\xEF\xBB\xBF" + wide + "\n" + wide)), {});
  CHECK(two.train->num_samples() == 2);
  CHECK(two.train->fields()[0].shape == Shape{1'500'000});
}

TEST_CASE("a class beyond the model's is an error where it stands") {
  TemporaryFolder folder;
  const DataJob spec = table_spec(folder.write("t.csv", "0,1\n0,2\n"));
  CHECK(contains(error_of(spec, {DType::i32, 2}), ":2: column 1: \"2\" is not a class id from 0 to 1"));
}

TEST_CASE("standard normalisation scales by the training part alone") {
  TemporaryFolder folder;
  DataJob spec = table_spec(folder.write("t.csv", "1,7,0\n3,7,1\n100,9,0\n200,9,1\n"));
  spec.normalize = Normalize::standard;
  spec.val = 0.5;
  const Data data = open_data(spec, {});  // training features: mean 2, deviation 1; the other column is constant
  CHECK(row<std::int32_t>(*data.train, 0).features == Floats{-1, 0});
  CHECK(row<std::int32_t>(*data.train, 1).features == Floats{1, 0});
  CHECK(row<std::int32_t>(*data.val, 1).features == Floats{198, 2});
  CHECK(row<std::int32_t>(*data.val, 1).target == 1);

  spec.val = DataFiles{{folder.write("v.csv", "102,8,0\n")}, {}, {}};
  spec.train.paths = {folder.write("u.csv", "1,7,0\n3,7,1\n")};
  CHECK(row<std::int32_t>(*open_data(spec, {}).val, 0).features == Floats{100, 1});
  spec.val = DataFiles{{folder.write("v.csv", "102,8,0,0\n")}, {}, {}};
  CHECK(contains(error_of(spec), "has 3 features, the training table has 2"));
}

TEST_CASE("handwritten digits are read" * doctest::skip(std::getenv("TRAINER_TEST_DATA") == nullptr)) {
  DataJob spec = table_spec(std::string(std::getenv("TRAINER_TEST_DATA")) + "/digits.csv");
  spec.val = 0.2;
  const Data data = open_data(spec, {});
  CHECK(data.train->num_samples() == 1437);
  CHECK(data.val->num_samples() == 360);
  CHECK(data.train->fields()[0].shape == Shape{64});
}

std::string word(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

TEST_CASE("idx images are scaled bytes, labels class ids") {
  TemporaryFolder folder;
  DataJob spec;
  spec.format = DataFormat::idx;
  spec.train.images =
      folder.write("images", word(0x803) + word(2) + word(1) + word(3) + std::string("\x00\x33\xFF\x01\x02\x03", 6));
  spec.train.labels = folder.write("labels", word(0x801) + word(2) + "\x07\x09");
  spec.val = 0.5;
  const Data data = open_data(spec, {});
  CHECK(data.train->fields()[0].shape == Shape{1, 1, 3});
  CHECK(row<std::int32_t>(*data.train, 0).features == Floats{0.0f, 0.2f, 1.0f});
  CHECK(row<std::int32_t>(*data.train, 0).target == 7);
  CHECK(row<std::int32_t>(*data.val, 0).target == 9);
  CHECK(error_of(spec, {DType::i32, 10}) == "");
  CHECK(contains(error_of(spec, {DType::i32, 9}), spec.train.labels + ": offset 9: label 9"));
}

TEST_CASE("idx files that lie about themselves are named with the offset") {
  TemporaryFolder folder;
  DataJob spec;
  spec.format = DataFormat::idx;
  const std::string good = word(0x803) + word(1) + word(1) + word(2) + "ab", labels = word(0x801) + word(1) + "\x01";
  const auto bad = [&](const std::string& images, const std::string& with) {
    spec.train.images = folder.write("images", images);
    spec.train.labels = folder.write("labels", with);
    return error_of(spec);
  };
  const std::string path = folder.path("images") + ": offset ";
  CHECK(bad(good, labels) == "");
  CHECK(contains(bad(good.substr(0, 17), labels), path + "17: ends before the data"));
  CHECK(contains(bad(good + "c", labels), path + "18: has bytes after its data"));
  CHECK(contains(bad(good.substr(0, 10), labels), path + "10: ends inside the header"));
  CHECK(contains(bad(labels, labels), path + "0: is not an IDX file"));
  CHECK(contains(bad("\x1f\x8b\x08" + std::string(6, '\0') + "\x03" + good, labels),
                 folder.path("images") + ": is a gzip file; unpack it"));
  CHECK(contains(bad(word(0x803) + std::string(12, '\xFF'), labels), path + "16: ends before the data"));
  CHECK(contains(bad(good, word(0x801) + word(2) + "\x01\x01"), "2 labels for the 1 images"));
  CHECK(contains(bad(good, ""), folder.path("labels") + ": offset 0: ends inside the header"));
}

}  // namespace
}  // namespace trainer::data
