// One question after the other on each rank, in turns that all ranks take together.
#include "engine/train/answers.h"

#include <algorithm>
#include <numeric>

namespace trainer {

bool answers_questions(const CompiledJob& compiled) {
  return compiled.plan.roles.front().program(ProgramKind::sample) != nullptr;
}

Answers::Answers(Executor& executor, const CompiledJob& compiled, std::shared_ptr<const data::Questions> questions,
                 int rank)
    : generator_(executor),
      questions_(std::move(questions)),
      first_(compiled.plan.mesh.index(rank, kBatchAxes)),
      stride_(compiled.batch.data_ranks),
      vocabulary_(static_cast<std::size_t>(std::min(questions_->vocab_size(), compiled.classes.value()))) {}

double Answers::exact_match(ControlChannel& channel) {
  using Run = Generator::Run;
  right_ = 0;
  question_ = first_;
  ask();
  while (const std::int64_t turn = channel.largest(static_cast<std::int64_t>(generator_.due()))) {
    const bool mine = generator_.due() != Run::none;
    generator_.run(static_cast<Run>(turn));
    if (mine && generator_.due() == Run::none) take();
  }
  const std::vector<std::int64_t> right = channel.each(right_);
  return static_cast<double>(std::accumulate(right.begin(), right.end(), std::int64_t{0})) /
         static_cast<double>(questions_->size());
}

void Answers::ask() {
  generator_.rewind(0);
  answer_.clear();
  if (question_ < questions_->size()) generator_.put((*questions_)[question_].prompt);
}

/// The next id of the answer, or what follows its end.
void Answers::take() {
  const std::int32_t id = draw(generator_.logits().first(vocabulary_), {.temperature = 0}, 0);
  const bool ended = questions_->is_end(id);
  if (!ended) answer_.push_back(id);
  if (!ended && static_cast<std::int64_t>(answer_.size()) < questions_->max_tokens())
    return generator_.put(std::span(&id, 1));
  if (questions_->is_right(question_, answer_)) ++right_;
  question_ += stride_;
  ask();
}

}  // namespace trainer
