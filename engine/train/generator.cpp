// How a prompt is run in blocks and then token by token, and how the next token is drawn from logits.
#include "engine/train/generator.h"

#include <algorithm>
#include <cmath>

#include "engine/core/check.h"
#include "engine/core/error.h"
#include "engine/core/narrow.h"
#include "engine/core/random.h"

namespace trainer {
namespace {

constexpr std::int64_t kFew = 4;  // fewer ids than this are quicker one by one than as a block

using Scored = std::pair<float, std::int32_t>;

/// Whether `a` is less likely than `b`.
bool less_likely(const Scored& a, const Scored& b) {
  return a.first != b.first ? a.first < b.first : a.second > b.second;
}

/// Classes in order of probability, as many as the caller asks for.
class Likeliest {
 public:
  explicit Likeliest(std::span<const float> logits) {
    heap_.reserve(logits.size());
    for (std::size_t i = 0; i < logits.size(); ++i) heap_.emplace_back(logits[i], static_cast<std::int32_t>(i));
    std::ranges::make_heap(heap_, less_likely);
  }
  Scored next() {
    std::ranges::pop_heap(heap_, less_likely);
    const Scored top = heap_.back();
    heap_.pop_back();
    return top;
  }

 private:
  std::vector<Scored> heap_;
};

}  // namespace

/// Of a cache of keys, [batch, room, dim]. Other states are the model's.
std::int64_t room_of(const Role& role) {
  const auto cache = std::ranges::find_if(role.states, [](const State& state) { return !state.initial; });
  return cache == role.states.end() ? 0 : cache->spec.whole[1];
}

Generator::Generator(Executor& executor) : executor_(executor) {
  const Role& role = executor.role();
  prompt_program_ = role.program_index(ProgramKind::prompt);
  sample_program_ = role.program_index(ProgramKind::sample);
  const std::int32_t tokens = role.field_index("newest"), logits = role.field_index("logits");
  if (tokens < 0 || role.fields[static_cast<std::size_t>(tokens)].spec.dtype() != DType::i32)
    throw DataError("sampling needs a model that reads tokens");
  room_ = room_of(role);
  if (room_ == 0) throw DataError("generating text needs a model with causal attention");
  block_ = role.fields[static_cast<std::size_t>(tokens)].spec.whole.elements();
  tokens_.resize(static_cast<std::size_t>(block_));
  const Field& scores = role.fields[static_cast<std::size_t>(logits)];
  logits_dtype_ = scores.spec.dtype();
  logits_.resize(static_cast<std::size_t>(scores.bytes));
  scores_.resize(static_cast<std::size_t>(scores.spec.whole.elements()));
  executor.bind(tokens, tokens_.data());
  executor.bind(logits, logits_.data());
  if (const std::int32_t position = role.field_index("position"); position >= 0) executor.bind(position, &position_);
  if (const std::int32_t last = role.field_index("last"); last >= 0) executor.bind(last, &last_);
}

std::span<const float> Generator::add(std::span<const std::int32_t> ids) {
  CHECK(!ids.empty(), "a text goes on from an id");
  put(ids);
  for (Run next; (next = due()) != Run::none;) run(next);
  return logits();
}

void Generator::rewind(std::int64_t count) {
  ids_.resize(static_cast<std::size_t>(count));
  read_ = std::min(read_, count);
}

void Generator::put(std::span<const std::int32_t> ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  CHECK(static_cast<std::int64_t>(ids_.size()) <= room_, "the text has room for what is added");
}

Generator::Run Generator::due() const {
  const std::int64_t left = static_cast<std::int64_t>(ids_.size()) - read_;
  return left == 0 ? Run::none : prompt_program_ < 0 || left < kFew ? Run::one : Run::block;
}

void Generator::run(Run which) {
  if (which == Run::block)
    run_block();
  else
    run_one();
}

std::span<const float> Generator::logits() {
  to_f32(logits_dtype_, logits_.data(), static_cast<std::int64_t>(scores_.size()), scores_.data());
  return scores_;
}

/// What the block leaves in the states behind the text is written again before it is read. At the end of the room it
/// reads ids that were read before, to the same effect.
void Generator::run_block() {
  const std::int64_t first = std::min(read_, room_ - block_);
  read_ = std::min(static_cast<std::int64_t>(ids_.size()), first + block_);
  std::ranges::fill(tokens_, 0);
  std::copy(ids_.begin() + first, ids_.begin() + read_, tokens_.begin());
  position_ = static_cast<std::int32_t>(first);
  last_ = static_cast<std::int32_t>(std::max<std::int64_t>(0, read_ - 1 - first));
  executor_.run(prompt_program_);
}

void Generator::run_one() {
  const std::int64_t place = std::min(read_, room_ - 1);
  read_ = std::min(static_cast<std::int64_t>(ids_.size()), place + 1);
  tokens_[0] = place < read_ ? ids_[static_cast<std::size_t>(place)] : 0;
  position_ = static_cast<std::int32_t>(place);
  executor_.run(sample_program_);
}

std::int32_t draw(std::span<const float> logits, const Drawing& drawing, std::uint64_t index) {
  if (drawing.temperature <= 0) return static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin());
  Likeliest likeliest(logits);
  std::vector<Scored> kept{likeliest.next()};
  const auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - static_cast<double>(kept[0].first)) / drawing.temperature);
  };
  const std::size_t most =
      drawing.top_k > 0 ? std::min(logits.size(), static_cast<std::size_t>(drawing.top_k)) : logits.size();
  double total = 0;
  if (most < logits.size()) {
    while (kept.size() < most) kept.push_back(likeliest.next());
    for (const Scored& one : kept) total += weight(one.first);
  } else {
    for (const float logit : logits) total += weight(logit);
  }
  if (drawing.top_p < 1) {
    double reached = 0;
    std::size_t enough = 0;
    do {
      if (enough == kept.size()) kept.push_back(likeliest.next());
      reached += weight(kept[enough++].first);
    } while (enough < most && reached < drawing.top_p * total);
    kept.resize(enough);
    total = reached;
  }
  double left = total * static_cast<double>(philox(drawing.seed, 0, index)[0]) * 0x1p-32;
  const bool all = drawing.top_p >= 1 && most == logits.size();
  for (std::size_t i = 0; i < (all ? logits.size() : kept.size()); ++i) {
    if (i == kept.size()) kept.push_back(likeliest.next());
    if ((left -= weight(kept[i].first)) < 0) return kept[i].second;
  }
  return kept.back().second;
}

}  // namespace trainer
