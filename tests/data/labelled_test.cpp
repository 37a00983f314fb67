// Labelled rows as samples: where texts, labels and padding lie.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

DataJob job_of(const std::vector<std::string>& train, std::int64_t seq_len) {
  DataJob job;
  job.format = DataFormat::labelled;
  job.train.paths = train;
  job.seq_len = seq_len;
  return job;
}

GraphInputs reads(const char* padding, DType targets, std::int64_t classes) {
  return {.target_dtype = targets, .id_limit = 0, .fields = {{padding, DType::i32, {}}}, .classes = classes};
}

template <typename Target>
struct Sample {
  Ids tokens, padding;
  Target target{};
};

template <typename Target>
Sample<Target> sample_of(const Dataset& dataset, std::int64_t sample) {
  Sample<Target> out{Ids(static_cast<std::size_t>(dataset.fields()[0].shape[0])),
                     Ids(static_cast<std::size_t>(dataset.fields()[2].shape.elements())), Target()};
  std::byte* fields[] = {reinterpret_cast<std::byte*>(out.tokens.data()), reinterpret_cast<std::byte*>(&out.target),
                         reinterpret_cast<std::byte*>(out.padding.data())};
  dataset.read(sample, fields);
  return out;
}

constexpr const char* kRows = R"({"text": "ab", "label": 2}
{"text": "cdef", "label": 0}
{"text": "g", "label": 1, "id": 7}
)";

TEST_CASE("a text begins its row and has a length, or ends it as a document of its own") {
  const TemporaryFolder folder;
  const DataJob job = job_of({folder.write("a.jsonl", kRows)}, 4);
  const Data begins = open_data(job, reads("lengths", DType::i32, 3));
  REQUIRE(begins.train->num_samples() == 3);
  const auto first = sample_of<std::int32_t>(*begins.train, 0), second = sample_of<std::int32_t>(*begins.train, 1);
  CHECK(first.tokens == Ids{97, 98, 0, 0});
  CHECK(first.padding == Ids{2});
  CHECK(first.target == 2);
  CHECK(second.padding == Ids{4});
  const Data ends = open_data(job, reads("documents", DType::i32, 3));
  const auto last = sample_of<std::int32_t>(*ends.train, 2);
  CHECK(last.tokens == Ids{0, 0, 0, 103});
  CHECK(last.padding == Ids{0, 0, 0, 1});
  CHECK(last.target == 1);
  CHECK(sample_of<std::int32_t>(*ends.train, 1).padding == Ids{1, 1, 1, 1});
}

TEST_CASE("labels of a regression are numbers, to the bit") {
  const TemporaryFolder folder;
  const std::string rows = "{\"text\": \"a\", \"label\": -1.5}\n{\"text\": \"b\", \"label\": 0.1}\n";
  const Data data = open_data(job_of({folder.write("a.jsonl", rows)}, 4), reads("lengths", DType::f32, 0));
  CHECK(sample_of<float>(*data.train, 0).target == -1.5F);
  CHECK(sample_of<float>(*data.train, 1).target == 0.1F);
  CHECK(contains(message_of<DataError>(
                     [&] { open_data(job_of({folder.write("b.jsonl", rows)}, 4), reads("lengths", DType::i32, 3)); }),
                 "b.jsonl:1: its label -1.5 is no class"));
  CHECK(contains(message_of<DataError>([&] {
                   open_data(job_of({folder.write("c.jsonl", "{\"text\": \"a\", \"label\": 1e60}\n")}, 4),
                             reads("lengths", DType::f32, 0));
                 }),
                 "c.jsonl:1: its label is no number that f32 can hold"));
}

TEST_CASE("long texts are errors, left out or cut; a fraction is held out; a mix has parts") {
  const TemporaryFolder folder;
  DataJob job = job_of({folder.write("a.jsonl", kRows)}, 2);
  const GraphInputs inputs = reads("documents", DType::i32, 3);
  CHECK(contains(message_of<DataError>([&] { open_data(job, inputs); }), "a.jsonl:2: has 4 tokens"));
  job.too_long = TooLong::drop;
  CHECK(open_data(job, inputs).train->num_samples() == 2);
  job.too_long = TooLong::truncate;
  CHECK(sample_of<std::int32_t>(*open_data(job, inputs).train, 1).tokens == Ids{99, 100});
  job.val = 0.34;
  const Data cut = open_data(job, inputs);
  CHECK(cut.train->num_samples() == 1);
  REQUIRE(cut.val->num_samples() == 2);
  CHECK(sample_of<std::int32_t>(*cut.val, 1).tokens == Ids{0, 103});
  job.val = std::monostate();
  job.mix = {{{folder.path("a.jsonl")}, 1}, {{folder.write("b.jsonl", "{\"text\": \"z\", \"label\": 0}\n")}, 3}};
  const Data mixed = open_data(job, inputs);
  REQUIRE(mixed.parts.size() == 2);
  CHECK(mixed.parts[1].weight == 3);
  CHECK(sample_of<std::int32_t>(*mixed.train, 3).tokens == Ids{0, 122});
}

}  // namespace
}  // namespace trainer::data
