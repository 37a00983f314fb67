// The safetensors reader against hostile files, the writer against bytes that Python's library wrote and read.
#include "engine/checkpoint/safetensors.h"

#include <doctest/doctest.h>

#include <cstring>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "tests/temporary.h"

namespace trainer::checkpoint {
namespace {

using tests::contains;
using tests::contents_of;
using tests::message_of;
using tests::TemporaryFolder;

std::string file_of(const std::string& header, const std::string& data = "") {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string error_of(const std::string& file) {
  return message_of<DataError>([&] { parse_safetensors(bytes_of(file), "f"); });
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":[)" + shape + R"(],"data_offsets":[)" + offsets + "]}";
}

TEST_CASE("a written file is, byte for byte, the format") {
  TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  SafetensorsWriter writer(path,
                           {{"b", DType::bf16, Shape{3}},
                            {"a", DType::f32, Shape{1, 2}},
                            {"none", DType::f32, Shape{0}},
                            {"s", DType::f32, Shape{}}},
                           {{"format", "pt"}});
  CHECK(writer.order().front().name == "a");
  const float a[] = {1.0f, -2.0f}, s = 0.5f;
  writer.write("a", a, 4);
  writer.write("a", a + 1, 4);
  writer.write("none", nullptr, 0);
  writer.write("s", &s, 4);
  writer.write("b", "\x80\x3f\x00\x40\x40\x40", 6);
  const SafetensorsWriter::Written written = writer.finish();

  std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("none":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},"s":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
      R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string expected =
      file_of(header, std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0\x00\x00\x00\x3f\x80\x3f\x00\x40\x40\x40", 18));
  CHECK(contents_of(path) == expected);
  CHECK(written.bytes == static_cast<std::int64_t>(expected.size()));
  CHECK(written.checksum == checksum_of(expected));
  CHECK(written.checksum == checksum_of_file(path));
}

TEST_CASE("checksums are XXH3-128 in canonical form") {
  CHECK(checksum_of("") == "99aa06d3014798d86001c324468d497f");  // the published value of the empty input
}

TEST_CASE("a file written by Python's safetensors is read") {
  // save({"w": np.array([[1, 2, 3]], np.float32), "i": np.array([7, -1], np.int64)}, {"k": "v"}) of safetensors 0.8.0.
  const std::string file = file_of(
      R"({"__metadata__":{"k":"v"},"i":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"w":{"dtype":"F32","shape":[1,3],"data_offsets":[16,28]}} )",
      std::string("\7\0\0\0\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\x80?\0\0\0@\0\0@@", 28));
  TemporaryFolder folder;
  const SafetensorsFile opened(folder.write("p.safetensors", file));
  REQUIRE(opened.tensors().size() == 2);
  CHECK(opened.metadata() == Metadata{{"k", "v"}});
  const TensorEntry* w = opened.find("w");
  REQUIRE(w != nullptr);
  CHECK(w->dtype == DType::f32);
  CHECK(w->shape == std::vector<std::int64_t>{1, 3});
  float values[3];
  std::memcpy(values, opened.bytes(*w).data(), sizeof values);
  CHECK(values[2] == 3.0f);
  CHECK(!opened.find("i")->dtype.has_value());
  CHECK(opened.find("i")->dtype_name == "I64");
  CHECK(opened.find("x") == nullptr);
}

TEST_CASE("a truncated file names its offset, wherever it is cut") {
  const std::string file = file_of("{" + tensor("a", "F32", "2", "0,8") + "}", "12345678");
  REQUIRE(error_of(file) == "");
  for (std::size_t length = 0; length < file.size(); ++length) {
    const std::string error = error_of(file.substr(0, length));
    CHECK(contains(error, "f: offset "));
    if (length < file.size() - 8) CHECK(contains(error, "offset " + std::to_string(length) + ":"));
  }
  CHECK(contains(error_of(file + "9"), "1 bytes belong to no tensor"));
}

TEST_CASE("hostile headers are errors that name the place") {
  const auto bad = [](const std::string& entries, const std::string& data = "") {
    return error_of(file_of("{" + entries + "}", data));
  };
  CHECK(contains(error_of(std::string("\xff\xff\xff\xff\xff\xff\xff\xff", 8) + "{}"), "is too long"));
  CHECK(contains(error_of(file_of("")), "does not begin with {"));
  CHECK(contains(error_of(file_of("[]")), "does not begin with {"));
  CHECK(contains(error_of(file_of(" {}")), "does not begin with {"));
  CHECK(contains(error_of(file_of("{")), "not valid JSON"));
  CHECK(contains(error_of(file_of("{}x")), "not valid JSON"));
  CHECK(contains(error_of(file_of("{\"\xff\":1}")), "not valid JSON"));
  CHECK(contains(error_of(file_of("{\"a\":" + std::string(100000, '[') + "}")), "a list where none belongs"));
  CHECK(contains(error_of(file_of("{\"a\":" + std::string(100000, '{') + "}")), "not valid JSON"));
  CHECK(contains(error_of(file_of(R"({"a":{"dtype":{"a":1}}})")), "an object where none belongs"));
  CHECK(contains(bad("\"a\":1"), "a number where none belongs"));
  CHECK(contains(bad("\"a\":null"), "null where none belongs"));
  CHECK(contains(bad("\"a\":true"), "a boolean where none belongs"));
  CHECK(contains(bad("\"a\":\"F32\""), "a string where none belongs"));
  CHECK(contains(bad("\"a\":{}"), "is missing"));
  CHECK(contains(bad(R"("a":{"dtype":"F32","dtype":"F32","shape":[],"data_offsets":[0,4]})", "1234"),
                 "tensor \"a\": a second dtype"));
  CHECK(contains(bad(R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"x":1})", "1234"), "unknown key \"x\""));
  CHECK(contains(bad(tensor("a", "F31", "", "0,4"), "1234"), "unknown dtype \"F31\""));
  CHECK(contains(bad(tensor("a", "F32", "", "0"), "1234"), "has not two numbers"));
  CHECK(contains(bad(tensor("a", "F32", "", "0,4,4"), "1234"), "more than two"));
  CHECK(contains(bad(tensor("a", "F32", "", "4,0"), "1234"), "run backwards"));
  CHECK(contains(bad(tensor("a", "F32", "", "-4,0"), "1234"), "a negative number"));
  CHECK(contains(bad(tensor("a", "F32", "", "0,4.0"), "1234"), "not a whole number"));
  CHECK(contains(bad(tensor("a", "F32", "", "0,18446744073709551620"), "1234"), "not a whole number"));
  CHECK(contains(bad(tensor("a", "F32", "", "0,18446744073709551615"), "1234"), "is too large"));
  CHECK(contains(bad(tensor("a", "F32", "2", "0,8"), "1234"), "ends at byte 8 of data, of which the file has 4"));
  CHECK(contains(bad(tensor("a", "F32", "2", "0,4"), "1234"), "its shape and dtype take 8 bytes, its data_offsets 4"));
  CHECK(contains(bad(tensor("a", "F32", "4294967296,4294967296", "0,4"), "1234"), "more elements than fit any file"));
  CHECK(contains(bad(tensor("a", "U8", "4611686018427387904,4", "0,0")), "more elements than fit any file"));
  CHECK(contains(bad(tensor("a", "U8", "2", "0,2") + "," + tensor("a", "U8", "2", "2,4"), "1234"),
                 "a second entry named \"a\""));
  CHECK(contains(bad(tensor("a", "U8", "2", "0,2") + "," + tensor("b", "U8", "3", "1,4"), "1234"),
                 "overlaps the one before it"));
  CHECK(contains(bad(tensor("a", "U8", "1", "0,1") + "," + tensor("b", "U8", "2", "2,4"), "1234"),
                 "leaves a hole before it"));
  CHECK(contains(bad(tensor("a", "U8", "3", "1,4"), "1234"), "leaves a hole before it"));
  CHECK(contains(bad(R"("__metadata__":{"a":1})"), "a number where none belongs"));
  CHECK(contains(bad(R"("__metadata__":{"a":{}})"), "an object where none belongs"));
  CHECK(contains(bad(R"("__metadata__":{"a":"","a":""})"), "a second metadata key \"a\""));
  CHECK(contains(bad(R"("__metadata__":{},"__metadata__":{})"), "a second entry"));
}

TEST_CASE("files without tensors, with empty tensors and with names of any kind are read") {
  CHECK(error_of(file_of("{}")) == "");
  CHECK(error_of(file_of("{}   ")) == "");
  CHECK(error_of(file_of("{" + tensor("a", "F32", "0,3", "0,0") + "," + tensor("b", "U8", "1", "0,1") + "}", "x")) ==
        "");
  const auto header =
      parse_safetensors(bytes_of(file_of("{" + tensor("\\u00e9\\n\\\"", "U8", "1", "0,1") + "}", "x")), "f");
  CHECK(header.tensors[0].name == "\u00e9\n\"");
}

TEST_CASE("every changed byte of a header is refused or changes only what it says") {
  const std::string file = file_of("{" + tensor("a", "F32", "2", "0,8") + "}", "12345678");
  for (std::size_t at = 0; at < file.size() - 8; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = file;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      try {
        const SafetensorsHeader header = parse_safetensors(bytes_of(changed), "f");
        for (const TensorEntry& entry : header.tensors) CHECK(entry.last <= static_cast<std::int64_t>(file.size()));
      } catch (const DataError& error) {
        CHECK(contains(error.what(), "f: offset "));
      }
    }
  }
}

TEST_CASE("the writer holds its caller to the order, lengths and names") {
  TemporaryFolder folder;
  const auto fresh = [&] {
    return SafetensorsWriter(folder.path("w"), {{"a", DType::f32, Shape{2}}, {"b", DType::u8, Shape{1}}}, {});
  };
  const float values[3] = {};
  CHECK_THROWS_AS(fresh().write("b", values, 1), Bug);
  CHECK_THROWS_AS(fresh().write("a", values, 12), Bug);
  CHECK_THROWS_AS(fresh().finish(), Bug);
  CHECK_THROWS_AS(SafetensorsWriter(folder.path("w"), {{"a", DType::f32, Shape{}}, {"a", DType::f32, Shape{}}}, {}),
                  Bug);
  CHECK_THROWS_AS(SafetensorsWriter(folder.path("no/folder"), {}, {}), IoError);
}

}  // namespace
}  // namespace trainer::checkpoint
