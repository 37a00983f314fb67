// One step at a time, or two: the batch and the numbers of a step are copied when it starts, so those of the next may
// be bound while it runs.
#include "engine/train/steps.h"

#include <utility>

#include "engine/job/job.h"
#include "engine/train/train.h"

namespace trainer {

Steps::Steps(const Job& job, const CompiledJob& compiled, Executor& executor, Communicator& communicator,
             const data::Dataset& dataset)
    : job_(job),
      compiled_(compiled),
      executor_(executor),
      communicator_(communicator),
      program_(executor.role().program_index(ProgramKind::step)),
      averaging_program_(executor.role().program_index(ProgramKind::step_averaging)),
      binder_(executor, {compiled.plan.mesh, compiled.plan.mesh.coordinates(communicator.rank())}, dataset, program_,
              compiled.batch.micro * compiled.batch.micro_batches),
      rates_(compiled.optimizers.size()) {
  const Role& role = executor.role();
  executor.bind(role.field_index("lr"), rates_.data());
  if (const std::int32_t field = role.field_index("step"); field >= 0) executor.bind(field, &number_);
}

double Steps::run(data::Loader& loader, std::int64_t step, bool goes_ahead, const std::function<void()>& meanwhile) {
  Clock::time_point begin = Clock::now();
  now_ = next_ ? *std::exchange(next_, std::nullopt) : Drawn{.batch = loader.next()};
  if (now_.runs) {
    begin = end_;
  } else {
    now_.step = step;
    start(now_);
  }
  if (goes_ahead) try {
      next_ = Drawn{.batch = loader.next(), .step = step + 1};
    } catch (const std::exception&) {  // an error of the step that needs it
    }
  if (next_) start(*next_);
  meanwhile();
  bytes_sent_ += now_.bytes_sent + sent_by([&] { executor_.finish(); });
  end_ = Clock::now();
  return std::chrono::duration<double, std::milli>(end_ - begin).count();
}

void Steps::bind_again() {
  if (next_ && std::exchange(next_->runs, false)) executor_.finish();
  bind(now_);
}

void Steps::start(Drawn& drawn) {
  bind(drawn);
  const std::int32_t program =
      averaging_program_ >= 0 && drawn.step % job_.strategy.data.every == 0 ? averaging_program_ : program_;
  if (program == program_) program_start_ = Clock::now();
  drawn.bytes_sent = sent_by([&] { executor_.start(program); });
  drawn.runs = true;
}

void Steps::bind(const Drawn& drawn) {
  binder_.bind(drawn.batch);
  for (std::size_t i = 0; i < rates_.size(); ++i)
    rates_[i] = static_cast<float>(learning_rate(job_.train, compiled_.optimizers[i], drawn.step));
  number_ = static_cast<std::int32_t>(drawn.step);
}

template <typename Work>
std::int64_t Steps::sent_by(Work&& work) const {
  const std::int64_t before = communicator_.bytes_sent();
  work();
  return communicator_.bytes_sent() - before;
}

}  // namespace trainer
