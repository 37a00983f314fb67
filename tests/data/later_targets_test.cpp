// What a model that predicts two tokens at each position reads, against its definition.
#include "engine/data/later_targets.h"

#include <doctest/doctest.h>

#include "engine/data/data.h"
#include "engine/data/row_samples.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using Row = std::vector<std::int32_t>;

/// The fields of a sample, in the dataset's order.
std::vector<Row> fields_of(const Dataset& dataset, std::int64_t sample) {
  std::vector<Row> rows;
  std::vector<std::byte*> out;
  for (const SampleField& field : dataset.fields()) rows.emplace_back(static_cast<std::size_t>(field.shape.elements()));
  for (Row& row : rows) out.push_back(reinterpret_cast<std::byte*>(row.data()));
  dataset.read(sample, out);
  return rows;
}

GraphInputs reading(std::int64_t seq_len) {
  GraphInputs inputs;
  for (const char* name : {"tokens", "targets", kNextTokens, kLaterTargets})
    inputs.fields.push_back({name, DType::i32, Shape{seq_len}});
  return inputs;
}

TEST_CASE("a window's next tokens and later targets are its own, one place on; training and validation have them") {
  tests::TemporaryFolder folder;
  DataJob job;
  job.format = DataFormat::text;
  job.tokenizer = trainer::Tokenizer::bytes;
  job.train.paths = {folder.write("a.txt", "abcdefghij")};
  job.val = 0.5;
  job.seq_len = 4;
  const Data data = open_data(job, reading(4));
  REQUIRE(data.train->fields().size() == 4);
  CHECK(data.train->fields()[3].name == kLaterTargets);
  CHECK(fields_of(*data.train, 0) ==
        std::vector<Row>{{'a', 'b', 'c', 'd'}, {'b', 'c', 'd', 'e'}, {'b', 'c', 'd', 0}, {'c', 'd', 'e', kIgnored}});
  CHECK(fields_of(*data.val, 0)[3] == Row{'h', 'i', 'j', kIgnored});
  CHECK(open_data(job, {}).train->fields().size() == 2);  // a graph that does not read them
}

TEST_CASE("no later target lies in the next document of a packed row, or where nothing is trained") {
  tests::TemporaryFolder folder;
  DataJob job;
  job.format = DataFormat::completion;
  job.train_on = TrainOn::completion;
  job.packing = Packing::documents;
  job.train.paths = {folder.write(
      "a.jsonl", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"prompt\": \"e\", \"completion\": \"f\"}\n")};
  job.seq_len = 9;
  GraphInputs inputs = reading(9);
  inputs.fields.push_back({"documents", DType::i32, Shape{9}});
  const std::vector<Row> row = fields_of(*open_data(job, inputs).train, 0);
  constexpr std::int32_t kEnd = 256, kNot = kIgnored;
  REQUIRE(row.size() == 5);
  REQUIRE(row[0] == Row{'a', 'b', 'c', 'd', kEnd, 'e', 'f', kEnd, 0});
  REQUIRE(row[1] == Row{kNot, 'c', 'd', kEnd, kNot, 'f', kEnd, kNot, kNot});
  CHECK(row[3] == Row{'b', 'c', 'd', kEnd, 0, 'f', kEnd, 0, 0});
  CHECK(row[4] == Row{'c', 'd', kEnd, kNot, kNot, kEnd, kNot, kNot, kNot});
}

}  // namespace
}  // namespace trainer::data
