// Records of data strategies, compressions and schedules agree with themselves, with the code of what they are about
// and with the tables of README.md.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/core/compression.h"
#include "engine/job/data_strategies.h"
#include "engine/job/resolve.h"
#include "strategies/strategies.h"

namespace trainer {
namespace {

template <typename Fn>
void each_data_strategy(Fn&& fn) {
  for (const DataRecord& record : data_records()) {
    CAPTURE(record.text());
    DataStrategyJob job;
    job.kind = record.kind;
    job.sharding = record.sharding.value_or(job.sharding);
    fn(record, job);
  }
}

// What a compression asks for while it reduces a gradient; what waits for a collective runs at once.
class Asked final : public ReductionContext {
 public:
  explicit Asked(bool sliced) : sliced_(sliced) {}
  bool residual_used = false, slice_used = false;

  int ranks() const override { return 2; }
  Region own_slice(const Region& whole) const override {
    const_cast<Asked*>(this)->slice_used = true;
    return {whole.buffer, whole.offset, whole.bytes / 2};
  }
  DType reduce() const override { return DType::f32; }
  bool sliced() const override { return sliced_; }
  Region gradient() override { return {0, 0, 4 * kElements}; }
  Region residual() override {
    residual_used = true;
    return {1, 0, 4 * kElements};
  }
  Region packet(std::int64_t bytes) override { return {2, 0, bytes}; }
  void run(Op, const Attributes&, const std::vector<std::pair<TensorDesc, Operand>>&) override {}
  void collective(CollectiveKind, DType, const Region&, const Region&) override {}
  void later(std::function<void()> rest) override { rest(); }

  static constexpr std::int64_t kElements = 2 * kInt8Block;

 private:
  bool sliced_;
};

Asked asked_by(const GradientCompression& compression, bool sliced) {
  Asked context(sliced);
  Unit unit;
  unit.elements = Asked::kElements;
  compression.reduce(unit, context);
  return context;
}

std::string readme() {
  std::ifstream file(TRAINER_SOURCE_DIR "/README.md");
  std::stringstream all;
  all << file.rdbuf();
  return all.str();
}

// Of `text` from `begin` to `end`, what stands between backticks.
std::vector<std::string> quoted(const std::string& text, const std::string& begin, const std::string& end) {
  const std::size_t first = text.find(begin);
  REQUIRE(first != std::string::npos);
  std::istringstream part(text.substr(first, text.find(end, first + begin.size()) - first));
  std::vector<std::string> words;
  std::string word;
  for (bool inside = false; std::getline(part, word, '`'); inside = !inside)
    if (inside) words.push_back(word);
  return words;
}

bool among(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

TEST_CASE("every kind has one record, or one for each of its shardings") {
  for (const auto& [kind, name] : names_of(DataKind())) {
    CAPTURE(name);
    std::set<std::string> texts;
    for (const auto& [sharding, word] : names_of(Sharding())) texts.insert(record_of(kind, sharding).text());
    const auto of_kind = [kind = kind](const DataRecord& record) { return record.kind == kind; };
    CHECK(static_cast<std::size_t>(std::ranges::count_if(data_records(), of_kind)) == texts.size());
    CHECK_FALSE(std::ranges::find_if(data_records(), of_kind)->what.empty());
  }
}

TEST_CASE("a strategy takes keys that there are, and those that it can make use of") {
  each_data_strategy([](const DataRecord& record, const DataStrategyJob&) {
    for (std::string_view key : record.keys)
      CHECK(std::ranges::count(data_keys(), key, [](const DataKey& one) { return one.field.name; }) == 1);
    CHECK(std::set(record.keys.begin(), record.keys.end()).size() == record.keys.size());
    CHECK(record.takes("sharding") == record.sharding.has_value());
    CHECK(record.takes("keep") == record.shard_parameters);
    CHECK(record.takes("prefetch") == record.shard_parameters);
    CHECK(record.takes("gather") == record.shard_parameters);
    CHECK(record.takes("secondary") == (record.keep == Keep::use && !record.replica_is_node));
    CHECK(record.takes("reduce_dtype") == record.shard_gradients);
    CHECK(record.takes("every") == record.averages);
    CHECK_FALSE((record.takes("compression") && record.averages));
    CHECK_FALSE((record.replica_is_node && !record.takes("replicate")));
    CHECK_FALSE((record.searched_once && !(record.takes("keep") && record.takes("reduce"))));
  });
  for (const DataKey& key : data_keys())
    CHECK(std::ranges::any_of(data_records(), [&](const DataRecord& record) { return record.takes(key.field.name); }));
}

TEST_CASE("what is sharded and who averages is what the code of the strategy does") {
  each_data_strategy([](const DataRecord& record, DataStrategyJob job) {
    for (bool pipelined : {false, true}) {
      const auto strategy = strategies::data_strategy(job, pipelined);
      CHECK(strategy->layout().shard_states == record.shard_states);
      CHECK(strategy->layout().shard_parameters == record.shard_parameters);
      CHECK(strategy->averages() == record.averages);
      CHECK((strategy->prefetch() > 0) == record.takes("prefetch"));
      const ResolvedData data = resolve(job, pipelined);
      CHECK(data.keep != Keep::automatic);
      CHECK(data.reduce != Reduce::automatic);
      CHECK((data.shard_states || !data.shard_gradients));
      CHECK((data.shard_gradients || !data.shard_parameters));
    }
    job.delayed = true;
    CHECK(strategies::data_strategy(job, false)->delays() == record.averages);
    job.delayed = false;
    job.outer.emplace();
    job.parts = 3;
    CHECK(strategies::data_strategy(job, false)->parts() == (record.averages ? 3 : 1));
  });
}

TEST_CASE("slices and errors of a compression are what its code asks for") {
  std::size_t at = 0;
  for (const auto& [kind, name] : names_of(Compression::Kind())) {
    if (kind == Compression::Kind::none) continue;
    CAPTURE(name);
    REQUIRE(at < compression_records().size());
    const CompressionRecord& record = compression_records()[at++];
    CHECK(record.kind == kind);
    const auto compression = strategies::compression({kind, 0.5});
    const Asked whole = asked_by(*compression, false), sliced = asked_by(*compression, true);
    CHECK(whole.residual_used);  // on_nan: skip is refused under every compression
    CHECK(whole.slice_used == record.sums_slices);
    CHECK(sliced.slice_used == record.needs_whole.empty());
  }
  CHECK(at == compression_records().size());
  CHECK(strategies::compression({}) == nullptr);
}

TEST_CASE("README.md names every data strategy, sharding, compression and schedule") {
  const std::string text = readme();
  const std::vector<std::string> data = quoted(text, "| data | `ddp`", "| tensor |"),
                                 compressions = quoted(text, "`compression` of", "error feedback"),
                                 schedules = quoted(text, "| pipeline | ", " | its chunks");
  for (const auto& [kind, name] : names_of(DataKind())) CHECK_MESSAGE(among(data, name), name);
  for (const CompressionRecord& record : compression_records()) {
    const std::string name(name_of(record.kind));
    CHECK_MESSAGE(std::ranges::any_of(compressions, [&](const auto& word) { return word.find(name) != word.npos; }),
                  name);
  }
  std::vector<std::string> names;
  for (const ScheduleRecord& record : kScheduleRecords) names.emplace_back(record.name);
  CHECK(schedules == names);
}

}  // namespace trainer
