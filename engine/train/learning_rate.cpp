// Learning-rate schedules. Step t counts from 0, w are the warm-up steps, n all steps.
#include <cmath>
#include <numbers>

#include "engine/train/train.h"

namespace trainer {

double learning_rate(const TrainJob& job, const OptimizerJob& optimizer, std::int64_t step) {
  const LrScheduleJob& schedule = job.lr_schedule;
  const double lr = optimizer.lr, least = schedule.min_lr * (optimizer.lr / job.optimizer.lr);
  const auto t = static_cast<double>(step), w = static_cast<double>(schedule.warmup_steps),
             n = static_cast<double>(job.steps);
  if (step < schedule.warmup_steps) return lr * (t + 1) / w;
  switch (schedule.name) {
    case ScheduleName::constant:
      return lr;
    case ScheduleName::linear:
      return lr + (least - lr) * (t - w) / (n - w);
    case ScheduleName::cosine:
      return least + (lr - least) * (1 + std::cos(std::numbers::pi * (t - w) / (n - w))) / 2;
    case ScheduleName::wsd: {
      const auto decay = static_cast<double>(schedule.decay_steps);
      const double into = t - (n - decay);
      return into <= 0 || decay <= 0 ? lr : lr + (least - lr) * into / decay;
    }
  }
  return lr;
}

}  // namespace trainer
