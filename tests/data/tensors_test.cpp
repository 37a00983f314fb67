// Samples of safetensors files, against numbers written by hand.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

struct Written {
  std::string name, dtype, shape, bytes;
};

/// A safetensors file.
std::string file_of(const std::vector<Written>& tensors) {
  std::string header = "{", data;
  for (const Written& tensor : tensors) {
    header += (header.size() > 1 ? "," : "") + ("\"" + tensor.name + "\":{\"dtype\":\"" + tensor.dtype) +
              "\",\"shape\":" + tensor.shape + ",\"data_offsets\":[" + std::to_string(data.size()) + ",";
    data += tensor.bytes;
    header += std::to_string(data.size()) + "]}";
  }
  header += "}";
  std::string length(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return length + header + data;
}

const GraphInputs kInputs{
    DType::i32, 0, {{"features", DType::f32, Shape{2}}, {"tokens", DType::i32, Shape{3}}, {"targets", DType::i32, {}}}};

DataJob job_of(std::vector<std::string> paths) {
  DataJob job;
  job.format = DataFormat::tensors;
  job.train.paths = std::move(paths);
  return job;
}

struct TensorSample {
  std::vector<float> features = std::vector<float>(2);
  std::vector<std::int32_t> tokens = std::vector<std::int32_t>(3);
  std::int32_t target = 0;
};
TensorSample tensors_of(const Dataset& dataset, std::int64_t index) {
  TensorSample sample;
  std::byte* out[] = {reinterpret_cast<std::byte*>(sample.features.data()),
                      reinterpret_cast<std::byte*>(sample.tokens.data()), reinterpret_cast<std::byte*>(&sample.target)};
  dataset.read(index, out);
  return sample;
}

const Written kFeatures{"features", "F32", "[2,2]", raw<float>({0.5F, -1, 2, 3})},
    kTokens{"tokens", "I64", "[2,3]", raw<std::int64_t>({1, 2, 3, -100, 5, 2147483647})},
    kTargets{"targets", "U8", "[2]", raw<std::uint8_t>({200, 7})};

TEST_CASE("tensors of several files are the samples, whatever numbers they hold them as") {
  TemporaryFolder folder;
  folder.write("a.safetensors", file_of({kFeatures, kTokens, kTargets}));
  folder.write("b.safetensors", file_of({{"targets", "I16", "[1]", raw<std::int16_t>({-3})},
                                         {"tokens", "I8", "[1,3]", raw<std::int8_t>({-1, 0, 1})},
                                         {"features", "BF16", "[1,2]", raw<std::uint16_t>({0x3FC0, 0xC000})}}));
  DataJob job = job_of({folder.path("*.safetensors")});
  job.val = 0.4;
  const Data data = open_data(job, kInputs);
  REQUIRE(data.train->num_samples() == 1);
  REQUIRE(data.val->num_samples() == 2);
  const TensorSample first = tensors_of(*data.train, 0), second = tensors_of(*data.val, 0),
                     third = tensors_of(*data.val, 1);
  CHECK(first.features == std::vector<float>{0.5F, -1});
  CHECK(first.tokens == std::vector<std::int32_t>{1, 2, 3});
  CHECK(first.target == 200);
  CHECK(second.tokens == std::vector<std::int32_t>{-100, 5, 2147483647});
  CHECK(second.target == 7);
  CHECK(third.features == std::vector<float>{1.5F, -2});
  CHECK(third.tokens == std::vector<std::int32_t>{-1, 0, 1});
  CHECK(third.target == -3);
}

TEST_CASE("fields name the tensors to read, and others may be beside them") {
  TemporaryFolder folder;
  DataJob job = job_of({folder.write(
      "a.safetensors",
      file_of(
          {{"mel", "F32", "[2,2]", kFeatures.bytes}, kTokens, kTargets, {"notes", "F64", "[1]", raw<double>({0})}}))});
  job.fields = {{"features", "mel"}, {"tokens", "tokens"}, {"targets", "targets"}};
  CHECK(tensors_of(*open_data(job, kInputs).train, 1).features == std::vector<float>{2, 3});
}

TEST_CASE("what is wrong with files of tensors is told with the file and the tensor") {
  TemporaryFolder folder;
  const std::string path = folder.path("a.safetensors");
  const auto bad = [&](const std::string& text) {
    folder.write("a.safetensors", text);
    return message_of<DataError>([&] { open_data(job_of({path}), kInputs); });
  };
  CHECK(bad(file_of({kFeatures, kTokens, kTargets})) == "");
  CHECK(contains(bad(file_of({kFeatures, kTargets})),
                 path + ": has no tensor tokens, the graph's input tokens; it has features, targets"));
  CHECK(contains(bad(file_of({kFeatures, kTokens, kTargets, {"lengths", "I32", "[2]", raw<std::int32_t>({1, 2})}})),
                 "has a tensor lengths, which is no input that the graph needs; `data.fields` names"));
  CHECK(contains(bad(file_of({{"features", "F32", "[2,3]", std::string(24, '\0')}, kTokens, kTargets})),
                 "features is [2, 3], where samples of [2] are needed"));
  CHECK(contains(bad(file_of({{"features", "F32", "[4]", std::string(16, '\0')}, kTokens, kTargets})),
                 "features is [4], where samples of [2] are needed"));
  CHECK(contains(bad(file_of({kFeatures, kTokens, {"targets", "U8", "[3]", "abc"}})),
                 "features has 2 samples, targets has 3"));
  CHECK(contains(bad(file_of({{"features", "I32", "[2,2]", std::string(16, '\0')}, kTokens, kTargets})),
                 "features holds I32, where floats are needed"));
  CHECK(contains(bad(file_of({kFeatures, {"tokens", "F32", "[2,3]", std::string(24, '\0')}, kTargets})),
                 "tokens holds F32, where integers are needed"));
  CHECK(contains(bad("\x1f\x8b\x08" + std::string(6, '\0') + "\x03" + std::string(20, 'x')), "is a gzip file"));
  CHECK(contains(bad("1,2,3\n4,5,6\n7,8,9\n10,11,12\n13,14,15\n"), path));
  CHECK(contains(bad(file_of({kFeatures, kTokens, kTargets}).substr(0, 200)), path));
}

TEST_CASE("an integer that does not fit is an error where it stands") {
  TemporaryFolder folder;
  const std::string path = folder.write(
      "a.safetensors",
      file_of({kFeatures, {"tokens", "I64", "[2,3]", raw<std::int64_t>({0, 0, 0, 0, 1LL << 31, 0})}, kTargets}));
  const Data data = open_data(job_of({path}), kInputs);
  CHECK(tensors_of(*data.train, 0).tokens == std::vector<std::int32_t>{0, 0, 0});
  const std::string said = message_of<DataError>([&] { tensors_of(*data.train, 1); });
  CHECK(contains(said, path + ": offset "));
  CHECK(contains(said, "tokens holds 2147483648, which is no 32-bit integer"));
}

}  // namespace
}  // namespace trainer::data
