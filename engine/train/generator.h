// Generator: a text that grows token by token on one rank, the keys and values of what is there kept in the plan's
// states (engine/transform/cached.h). And how the next token is drawn.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/run/executor.h"

namespace trainer {

/// Tokens whose keys and values a plan of Purpose::sample has room for; 0 of a model without causal attention.
std::int64_t room_of(const Role& role);

class Generator {
 public:
  /// `executor` has a plan of Purpose::sample, its weights loaded, and outlives this. Raises DataError for a model that
  /// reads no tokens.
  explicit Generator(Executor& executor);
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  /// How long the text may become.
  std::int64_t room() const { return room_; }
  const std::vector<std::int32_t>& ids() const { return ids_; }

  /// Adds ids to the text; the logits of what follows them, one for each class, valid until the next call. REQUIRES: at
  /// least one id, and room for them.
  std::span<const float> add(std::span<const std::int32_t> ids);
  /// Keeps the first `count` ids. REQUIRES: there are as many.
  void rewind(std::int64_t count);

  // The same, program by program, for ranks that run the same ones together.

  enum class Run : std::uint8_t { none, one, block };
  /// Adds ids that programs have yet to read. REQUIRES: room for them.
  void put(std::span<const std::int32_t> ids);
  /// The program that reads the next ids; none: all are read, and logits() are those behind them.
  Run due() const;
  /// Runs the program of one id or of a block, whichever is due: it reads what is there to read. Where nothing is due,
  /// it leaves the text as it is.
  void run(Run which);
  /// Valid until the next call.
  std::span<const float> logits();

 private:
  void run_block();
  void run_one();

  Executor& executor_;
  std::int32_t prompt_program_ = -1, sample_program_ = -1;
  std::int64_t block_ = 1, room_ = 0;
  std::vector<std::int32_t> ids_;
  std::int64_t read_ = 0;  // of those, whose keys and values are there
  // What the programs read and write.
  std::vector<std::int32_t> tokens_;
  std::int32_t position_ = 0, last_ = 0;
  std::vector<std::byte> logits_;
  DType logits_dtype_ = DType::f32;
  std::vector<float> scores_;
};

struct Drawing {
  double temperature = 0.8;  ///< 0: always the likeliest
  std::int64_t top_k = 0;    ///< 0: all
  double top_p = 1;          ///< draws from the likeliest tokens whose probabilities reach this sum
  std::uint64_t seed = 0;
};

/// A class, drawn from softmax(logits / temperature) as `drawing` says; `index` counts the draws of a seed. Of equal
/// logits the first class comes first.
std::int32_t draw(std::span<const float> logits, const Drawing& drawing, std::uint64_t index);

}  // namespace trainer
