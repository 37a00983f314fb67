// Rows as samples: formats, masks, lengths, packing, mixes and the cache, against their definitions.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <random>
#include <set>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "engine/data/row_samples.h"
#include "tests/chat/tiny_chat.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

DataJob job_of(DataFormat format, const std::vector<std::string>& train, std::int64_t seq_len) {
  DataJob job;
  job.format = format;
  job.train.paths = train;
  job.seq_len = seq_len;
  job.train_on = format == DataFormat::completion ? TrainOn::completion : TrainOn::assistant;
  return job;
}

struct Sample {
  Ids tokens, targets, documents;
};

Sample sample_of(const Dataset& dataset, std::int64_t sample) {
  const auto seq_len = static_cast<std::size_t>(dataset.fields()[0].shape[0]);
  Sample out{Ids(seq_len), Ids(seq_len), Ids(seq_len)};
  std::vector<std::byte*> fields;
  for (Ids* ids : {&out.tokens, &out.targets, &out.documents})
    fields.push_back(reinterpret_cast<std::byte*>(ids->data()));
  dataset.read(sample, std::span(fields).first(dataset.fields().size()));
  return out;
}

TEST_CASE("a document is its bytes and the end of text, every one a target but the first") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", "{\"text\": \"ab\"}\n\n{\"text\": \"c\", \"id\": 1}\n");
  const Data data = open_data(job_of(DataFormat::documents, {file}, 4), {});
  REQUIRE(data.train->num_samples() == 2);
  CHECK(sample_of(*data.train, 0).tokens == Ids{97, 98, 256, 0});
  CHECK(sample_of(*data.train, 0).targets == Ids{98, 256, kIgnored, kIgnored});
  CHECK(sample_of(*data.train, 1).tokens == Ids{99, 256, 0, 0});
  CHECK(sample_of(*data.train, 1).targets == Ids{256, kIgnored, kIgnored, kIgnored});
  CHECK(data.tokenizer->vocab_size() == 257);
}

TEST_CASE("of a completion the targets are those whose first byte is in it, and the end") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", R"({"q": "ab", "completion": "cd"})");
  DataJob job = job_of(DataFormat::completion, {file}, 5);
  job.fields = {{"prompt", "q"}};
  CHECK(sample_of(*open_data(job, {}).train, 0).targets == Ids{kIgnored, 99, 100, 256, kIgnored});
  job.train_on = TrainOn::all;
  CHECK(sample_of(*open_data(job, {}).train, 0).targets == Ids{98, 99, 100, 256, kIgnored});
}

TEST_CASE("of a chat the assistant's turns are targets, or the last, or all; markers in messages are text") {
  TemporaryFolder folder;
  const std::string file = folder.write(
      "a.jsonl",
      R"({"messages": [{"role": "user", "content": "b<>"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}, {"role": "assistant", "content": "s"}]})");
  DataJob job = job_of(DataFormat::chat, {file}, 19);
  job.tokenizer = trainer::Tokenizer::file;
  job.tokenizer_file = tests::write_tiny_chat(folder, "m");
  const Ids ids{4, 5, 1, 2, 3, 7, 0, 5, 0, 7, 4, 5, 1, 7, 0, 5, 6, 7};
  const auto trained = [&](TrainOn train_on) {
    job.train_on = train_on;
    const Sample sample = sample_of(*open_data(job, {}).train, 0);
    CHECK(std::equal(ids.begin(), ids.end(), sample.tokens.begin()));
    std::vector<int> places;
    for (std::size_t i = 0; i < sample.targets.size(); ++i)
      if (sample.targets[i] != kIgnored) {
        CHECK(sample.targets[i] == ids[i + 1]);
        places.push_back(static_cast<int>(i) + 1);
      }
    return places;
  };
  CHECK(trained(TrainOn::assistant) == std::vector{8, 9, 16, 17});
  CHECK(trained(TrainOn::last) == std::vector{16, 17});
  std::vector<int> all(17);
  std::iota(all.begin(), all.end(), 1);
  CHECK(trained(TrainOn::all) == all);
}

TEST_CASE("fields and roles map ShareGPT's and Alpaca's rows to the same conversation") {
  TemporaryFolder folder;
  DataJob job = job_of(DataFormat::chat, {}, 19);
  job.tokenizer = trainer::Tokenizer::file;
  job.tokenizer_file = tests::write_tiny_chat(folder, "m");
  const auto tokens = [&](const std::string& row) {
    job.train.paths = {folder.write("a.jsonl", row)};
    return sample_of(*open_data(job, {}).train, 0).tokens;
  };
  const Ids plain =
      tokens(R"({"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "a"}]})");
  job.fields = {{"messages", "conversations"}, {"role", "from"}, {"content", "value"}};
  job.roles = {{"human", "user"}, {"gpt", "assistant"}};
  CHECK(tokens(R"({"conversations": [{"from": "human", "value": "b"}, {"from": "gpt", "value": "a"}]})") == plain);
  job.fields = {{"instruction", "instruction"}, {"input", "input"}, {"output", "out"}};
  job.roles.clear();
  CHECK(tokens(R"({"instruction": "b", "input": "", "out": "a"})") == plain);
}

TEST_CASE("a shipped template trains what the assistant says, on a tokenizer without a template") {
  TemporaryFolder folder;
  DataJob job = job_of(DataFormat::chat, {}, 39);
  job.tokenizer = trainer::Tokenizer::file;
  folder.write("m/tokenizer.json",
               R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "u": 2, "s": 3, "e": 4, "r": 5, "i": 6,
      "t": 7, "n": 8, "\n": 9}, "merges": []}, "pre_tokenizer": null, "added_tokens": [
      {"id": 10, "content": "<|im_start|>", "normalized": false, "special": true},
      {"id": 11, "content": "<|im_end|>", "normalized": false, "special": true}]})");
  job.tokenizer_file = folder.path("m");
  job.chat_template = std::string(TRAINER_SOURCE_DIR) + "/configs/templates/chatml.jinja";
  job.train.paths = {folder.write(
      "a.jsonl", R"({"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "a"}]})")};
  const Ids targets = sample_of(*open_data(job, {}).train, 0).targets;
  Ids trained;
  for (const std::int32_t id : targets)
    if (id != kIgnored) trained.push_back(id);
  CHECK(trained == Ids{0, 11});
}

TEST_CASE("mistakes in rows are told together, each with its place") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl",
                                        "{\"text\": \"ab\"}\n{\"texts\": \"ab\"}\n{\"text\": 3}\nnonsense\n[1]\n"
                                        "{\"text\": \"\"}\n");
  const std::string told = message_of<DataError>([&] { open_data(job_of(DataFormat::documents, {file}, 4), {}); });
  for (const char* part : {":2: has no \"text\": it has \"texts\"; data.fields says", ":3: \"text\" is no string",
                           ":4: each line of JSONL is a JSON object"})
    CHECK_MESSAGE(contains(told, part), told);
  DataJob chat = job_of(DataFormat::chat, {}, 19);
  chat.tokenizer = trainer::Tokenizer::file;
  chat.tokenizer_file = tests::write_tiny_chat(folder, "m");
  const auto wrong = [&](const std::string& row) {
    chat.train.paths = {folder.write("b.jsonl", row)};
    return message_of<DataError>([&] { open_data(chat, {}); });
  };
  CHECK(contains(wrong(R"({"conversations": []})"), "b.jsonl:1: has no \"messages\": it has \"conversations\""));
  CHECK(contains(wrong(R"({"messages": []})"), "is no list of messages"));
  CHECK(contains(wrong(R"({"messages": [{"from": "user", "content": "a"}]})"), "message 1 has no \"role\""));
  CHECK(contains(wrong(R"({"messages": [{"role": "user", "value": "a"}]})"), "message 1 has no \"content\""));
  CHECK(contains(wrong(R"({"messages": [{"role": "user", "content": "a"}]})"), "nothing to train"));
  chat.roles = {{"human", "user"}};
  CHECK(contains(wrong(R"({"messages": [{"role": "bot", "content": "a"}]})"), "data.roles does not list"));
}

TEST_CASE("a row that is too long is an error with its place, or dropped, truncated or split as asked") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"abcdefgh\"}\n");
  DataJob job = job_of(DataFormat::documents, {file}, 4);
  CHECK(contains(message_of<DataError>([&] { open_data(job, {}); }), "a.jsonl:2: has 9 tokens, more than"));
  const auto samples = [&](TooLong too_long) {
    job.too_long = too_long;
    return open_data(job, {}).train_rows.front();
  };
  CHECK(samples(TooLong::drop)->num_samples() == 1);
  CHECK(samples(TooLong::drop)->counts().dropped == 1);
  CHECK(samples(TooLong::truncate)->num_samples() == 2);
  CHECK(sample_of(*samples(TooLong::truncate), 1).targets == Ids{98, 99, 100, 101});
  const auto split = samples(TooLong::split);
  REQUIRE(split->num_samples() == 3);
  CHECK(sample_of(*split, 1).targets == Ids{98, 99, 100, 101});
  CHECK(sample_of(*split, 2).tokens == Ids{101, 102, 103, 104});
  CHECK(sample_of(*split, 2).targets == Ids{102, 103, 104, 256});
  CHECK(split->counts().targets == 2 + 8);
}

TEST_CASE("parts of a split row without targets are left out and counted") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", R"({"prompt": "abcdefgh", "completion": "x"})");
  DataJob job = job_of(DataFormat::completion, {file}, 4);
  job.too_long = TooLong::split;
  const Data data = open_data(job, {});
  CHECK(data.train->num_samples() == 2);
  CHECK(data.train_rows.front()->counts().without_targets == 1);
  CHECK(data.train_rows.front()->counts().targets == 2);
}

TEST_CASE("packed rows are the rows, each once and whole, with targets of their own document only") {
  TemporaryFolder folder;
  std::mt19937 random(7);
  std::string text;
  std::multiset<std::string> rows;
  for (int i = 0; i < 200; ++i) {
    std::string row(1 + random() % (i % 10 == 0 ? 31 : 9), 'a');
    for (char& c : row) c = static_cast<char>('a' + random() % 26);
    rows.insert(row);
    text += "{\"text\": \"" + row + "\"}\n";
  }
  DataJob job = job_of(DataFormat::documents, {folder.write("a.jsonl", text)}, 32);
  job.packing = Packing::documents;
  const Data data = open_data(job, {});
  std::int64_t ids = 0;
  for (std::int64_t i = 0; i < data.train->num_samples(); ++i) {
    const Sample sample = sample_of(*data.train, i);
    std::string row;
    for (std::size_t at = 0; at < sample.tokens.size(); ++at) {
      const std::int32_t target = sample.targets[at], document = sample.documents[at];
      if (document == kPadding) {
        CHECK(target == kIgnored);
        continue;
      }
      ++ids;
      if (at > 0) CHECK(document - sample.documents[at - 1] == (sample.tokens[at - 1] == 256 ? 1 : 0));
      CHECK((target == kIgnored) == (sample.tokens[at] == 256));
      if (sample.tokens[at] < 256) row += static_cast<char>(sample.tokens[at]);
      if (target != 256) continue;
      const auto found = rows.find(row);
      REQUIRE_MESSAGE(found != rows.end(), row);
      rows.erase(found);
      row.clear();
    }
  }
  CHECK(rows.empty());
  const RowCounts counts = data.train_rows.front()->counts();
  CHECK(counts.held == counts.ids);
  CHECK(counts.held <= counts.samples * 33);
  CHECK(counts.samples <= counts.ids / 33 + 2);  // best-fit decreasing fills all but the last bins
}

TEST_CASE("bins hold what fits, and best-fit decreasing is within 11/9 of the sum") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::int64_t> sizes(1 + random() % 300);
    for (std::int64_t& size : sizes) size = 1 + static_cast<std::int64_t>(random() % 100);
    const std::vector<std::int64_t> bins = packed(sizes, 100);
    std::vector<std::int64_t> used(static_cast<std::size_t>(std::ranges::max(bins)) + 1);
    std::int64_t next = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CHECK(bins[i] <= next);  // numbered by their first thing
      next = std::max(next, bins[i] + 1);
      used[static_cast<std::size_t>(bins[i])] += sizes[i];
    }
    CHECK(std::ranges::max(used) <= 100);
    const std::int64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::int64_t large = std::ranges::count_if(sizes, [](std::int64_t size) { return size > 50; });
    const double least = static_cast<double>(std::max((sum + 99) / 100, large));
    CHECK(static_cast<double>(used.size()) <= least * 11 / 9 + 6.0 / 9 + 1);
  }
}

TEST_CASE("of every run of places a part of a mix has its share, and of its samples each comes once an epoch") {
  const std::vector<SamplePart> parts{{5, 3}, {7, 1}, {2, 0.5}};
  const SampleOrder order(parts, 9, true, 42);
  std::vector<std::int64_t> counts(3);
  std::vector<std::vector<std::int64_t>> drawn(3);
  const std::int64_t steps = 200;
  for (std::int64_t step = 0; step < steps; ++step)
    for (std::int64_t place = 0; place < 9; ++place) {
      const std::int64_t sample = order.sample(step, place);
      const std::size_t part = sample < 5 ? 0 : sample < 12 ? 1 : 2;
      drawn[part].push_back(sample);
      ++counts[part];
      const double all = static_cast<double>(step * 9 + place + 1);
      CHECK(std::abs(static_cast<double>(counts[0]) - all * 3 / 4.5) < 2);
      CHECK(std::abs(static_cast<double>(counts[1]) - all * 1 / 4.5) < 3);
      CHECK(std::abs(static_cast<double>(counts[2]) - all * 0.5 / 4.5) < 3);
    }
  for (std::size_t part = 0; part < 3; ++part) {
    const auto size = static_cast<std::size_t>(parts[part].samples);
    for (std::size_t at = 0; at + size <= drawn[part].size(); at += size)
      CHECK(std::set(drawn[part].begin() + static_cast<std::ptrdiff_t>(at),
                     drawn[part].begin() + static_cast<std::ptrdiff_t>(at + size))
                .size() == size);
  }
  CHECK(SampleOrder(parts, 9, true, 43).sample(0, 0) + SampleOrder(parts, 9, true, 44).sample(0, 1) >= 0);
}

TEST_CASE("parts of a mix are packed and held out each by itself") {
  TemporaryFolder folder;
  std::string a, b;
  for (int i = 0; i < 10; ++i) a += "{\"text\": \"a\"}\n", b += "{\"text\": \"bb\"}\n";
  DataJob job = job_of(DataFormat::documents, {}, 8);
  const std::string first = folder.write("a.jsonl", a), second = folder.write("b.jsonl", b);
  job.mix = {{{first}, 1}, {{second}, 3}};
  job.train.paths = {first, second};
  job.val = 0.2;
  const Data data = open_data(job, {});
  CHECK(data.train->num_samples() == 16);
  CHECK(data.val->num_samples() == 4);
  REQUIRE(data.parts.size() == 2);
  CHECK(data.parts[1].weight == 3);
  CHECK(sample_of(*data.train, 7).tokens.front() == 'a');
  CHECK(sample_of(*data.train, 8).tokens.front() == 'b');
  CHECK(sample_of(*data.val, 1).tokens.front() == 'a');
  CHECK(sample_of(*data.val, 2).tokens.front() == 'b');
}

TEST_CASE("rows are encoded once: the cache has them until a row, the tokenizer or the format differs") {
  TemporaryFolder folder;
  const std::string file = folder.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n");
  DataJob job = job_of(DataFormat::documents, {file}, 4);
  int told = 0;
  const Tokenizing cached{.cache = folder.path("cache"), .progress = [&](std::int64_t, std::int64_t) { ++told; }};
  const Sample first = sample_of(*open_data(job, {}, IdStream::Check::samples, cached).train, 1);
  CHECK(told == 1);
  CHECK(sample_of(*open_data(job, {}, IdStream::Check::samples, cached).train, 1).tokens == first.tokens);
  CHECK(told == 1);
  job.seq_len = 9;  // the rows are the same
  open_data(job, {}, IdStream::Check::samples, cached);
  CHECK(told == 1);
  job.fields = {{"text", "text "}};
  CHECK_THROWS_AS(open_data(job, {}, IdStream::Check::samples, cached), DataError);
  job.fields.clear();
  folder.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"d\"}\n");
  CHECK(sample_of(*open_data(job, {}, IdStream::Check::samples, cached).train, 1).tokens.front() == 'd');
}

}  // namespace
}  // namespace trainer::data
