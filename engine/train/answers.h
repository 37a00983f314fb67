// Answers: questions answered by greedy generation from the weights that are there, during an evaluation. The ranks
// share the questions; each generates one text at a time, with a key-value cache of its own.
//
// Ranks run the same programs in the same order, because under FSDP a program gathers weights. So they go in turns: if
// any rank has a block of a prompt to run, all run the program of blocks, else that of one token. A rank that has
// nothing left runs along.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/control_channel.h"
#include "engine/compile/compiled_job.h"
#include "engine/data/questions.h"
#include "engine/train/generator.h"

namespace trainer {

/// Whether the plan has the programs.
bool answers_questions(const CompiledJob& compiled);

class Answers {
 public:
  Answers(Executor& executor, const CompiledJob& compiled, std::shared_ptr<const data::Questions> questions, int rank);

  /// The share of questions that are answered right. Every rank calls it and gets the same.
  double exact_match(ControlChannel& channel);

 private:
  void ask();
  void take();

  Generator generator_;
  std::shared_ptr<const data::Questions> questions_;
  const std::int64_t first_, stride_;  // the questions of this rank
  const std::size_t vocabulary_;
  std::int64_t question_ = 0;         // that is being answered; the number of questions: none is left
  std::vector<std::int32_t> answer_;  // as far as it goes
  std::int64_t right_ = 0;
};

}  // namespace trainer
