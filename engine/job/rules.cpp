#include "engine/job/rules.h"

#include <fmt/format.h>

#include "engine/job/expression.h"

namespace trainer {
namespace {

using Integer = std::optional<std::int64_t>;

class Rules {
 public:
  Rules(const Checked& checked, const yaml::Node& tree) : checked_(checked), tree_(tree) {}

  std::vector<Diagnostic> all() {
    schedule();
    optimizer();
    micro_batch();
    mesh();
    pipeline_split();
    profile();
    return std::move(mistakes_);
  }

 private:
  void schedule() {
    const Integer steps = integer("train.steps"), warmup = integer("train.lr_schedule.warmup_steps"),
                  decay = integer("train.lr_schedule.decay_steps");
    const bool cut_short = steps == 0 || from("train.steps") == Setting::From::command_line;
    if (steps && warmup && !cut_short && *warmup > *steps) {
      add("train.lr_schedule.warmup_steps", fmt::format("more than train.steps, which is {}", *steps), fmt::format("at most {}", *steps));
    } else if (steps && warmup && decay && !cut_short && *warmup + *decay > *steps) {
      add("train.lr_schedule.decay_steps",
          fmt::format("warmup_steps and decay_steps are {} together, train.steps is {}", *warmup + *decay, *steps),
          fmt::format("at most {}", *steps - *warmup));
    }
    const auto lr = number("train.optimizer.lr"), least = number("train.lr_schedule.min_lr");
    if (lr && least && *least > *lr) {
      add("train.lr_schedule.min_lr", fmt::format("above train.optimizer.lr, which is {}", *lr), fmt::format("at most {}", *lr));
    }
  }

  void optimizer() {
    const CheckedValue* nesterov = checked_.find("train.optimizer.nesterov");
    if (nesterov != nullptr && nesterov->node.as_bool() == true && number("train.optimizer.momentum") == 0.0) {
      add("train.optimizer.nesterov", "has no effect without momentum", "only where train.optimizer.momentum is above 0");
    }
  }

  void micro_batch() {
    const Integer global = integer("train.batch.global"), micro = integer("train.batch.micro");
    if (global && micro && *global % *micro != 0) {
      add("train.batch.micro", fmt::format("does not divide train.batch.global, which is {}", *global), nearest_divisors(*global, *micro));
    }
  }

  /// Ranks, where the file alone says how many there are: auto on a CPU is one a node.
  Integer world() const {
    const Integer nodes = integer("cluster.nodes"), devices = integer("cluster.devices_per_node");
    if (!nodes || !checked_.find("cluster.devices_per_node")) return std::nullopt;
    if (devices) return *nodes * *devices;
    const CheckedValue* device = checked_.find("cluster.device");
    return device != nullptr && device->node.text == "cpu" ? nodes : std::nullopt;
  }

  void mesh() {
    const Integer ranks = world();
    if (!ranks) return;
    std::int64_t left = *ranks;
    for (const char* axis : {"strategy.pipeline.degree", "strategy.tensor.degree", "strategy.data.replicate"}) {
      const Integer degree = integer(axis);
      if (!degree) continue;
      if (left % *degree != 0) {
        const std::string of =
            left == *ranks ? fmt::format("the {} ranks", left) : fmt::format("the {} ranks that other axes leave of {}", left, *ranks);
        return add(axis, "does not divide " + of, nearest_divisors(left, *degree));
      }
      if (std::string_view(axis) != "strategy.data.replicate") left /= *degree;
    }
    data_ranks(data_size(left));
  }

  /// Data ranks are what pipeline and tensor leave. Under auto, and where one axis takes every rank, they are not settled or 1.
  Integer data_size(std::int64_t left) const {
    const CheckedValue* name = checked_.find("strategy");
    if (name == nullptr) return checked_.sections.contains("strategy.data") ? Integer(left) : std::nullopt;
    const std::string& text = name->node.text;
    return text == "auto" ? std::nullopt : Integer(text == "tensor" || text == "pipeline" ? 1 : left);
  }

  void data_ranks(Integer ranks) {
    const Integer global = integer("train.batch.global"), micro = integer("train.batch.micro");
    if (!ranks || !global) return;
    if (*global % *ranks != 0) {
      const std::int64_t below = *global / *ranks * *ranks;
      const std::string near = below > 0 ? fmt::format("{} or {}", below, below + *ranks) : fmt::format("{}", *ranks);
      add("train.batch.global", fmt::format("{} samples do not divide over {} data ranks", *global, *ranks), near);
    } else if (micro && *global % *micro == 0 && *global / *ranks % *micro != 0) {
      const std::int64_t each = *global / *ranks;
      add("train.batch.micro", fmt::format("does not divide the {} samples of each of {} data ranks", each, *ranks),
          nearest_divisors(each, *micro));
    }
  }

  void pipeline_split() {
    const CheckedValue* split = checked_.find("strategy.pipeline.split");
    const Integer degree = integer("strategy.pipeline.degree"), chunks = integer("strategy.pipeline.virtual_stages");
    if (split == nullptr || !split->node.is_sequence() || !degree || !chunks) return;
    const std::int64_t wanted = *degree * *chunks - 1;
    if (static_cast<std::int64_t>(split->node.items.size()) != wanted) {
      add("strategy.pipeline.split", fmt::format("{} names for {} chunks", split->node.items.size(), wanted + 1),
          fmt::format("a list of {}", wanted));
    }
  }

  /// Values that agree with the profile are what the effective job of such a one shows.
  void profile() {
    const CheckedValue* name = checked_.find("strategy.profile");
    if (name == nullptr || name->node.text == "none" || checked_.doubtful.contains("strategy.data")) return;
    bool open = false, same = false;
    for (const ProfileValue& value : profile_values(name->node.text)) {
      const CheckedValue* given = checked_.find(value.path);
      const bool settled = given == nullptr || given->from != Setting::From::otherwise;
      open = open || !settled;
      same = same || (given != nullptr && given->node.text == value.value);
    }
    if (!open && !same) add("strategy.profile", "has no effect where all that it fills in is given", "");
  }

  /// "6 or 12": the divisors of `of` next to `value`, from below and above.
  static std::string nearest_divisors(std::int64_t of, std::int64_t value) {
    // Both are at most 1e9, so the divisors are found among the numbers up to the root.
    std::int64_t below = 1, above = of;
    for (std::int64_t i = 1; i * i <= of; ++i) {
      if (of % i != 0) continue;
      for (const std::int64_t divisor : {i, of / i}) {
        if (divisor < value) below = std::max(below, divisor);
        if (divisor > value) above = std::min(above, divisor);
      }
    }
    if (value > of || below == above) return fmt::format("{}", value > of ? of : below);
    return fmt::format("{} or {}", below, above);
  }

  Setting::From from(std::string_view path) const {
    const CheckedValue* value = checked_.find(path);
    if (value == nullptr) return Setting::From::otherwise;
    return value->from;
  }
  std::optional<double> number(std::string_view path) const {
    const CheckedValue* value = checked_.find(path);
    return value == nullptr ? std::nullopt : value->node.as_number();
  }
  Integer integer(std::string_view path) const {
    const std::optional<double> value = number(path);
    return value ? whole(*value) : std::nullopt;
  }

  void add(std::string_view path, std::string message, std::string allowed) {
    Diagnostic mistake = mistake_at(tree_, path, std::move(message));
    if (const CheckedValue* value = checked_.find(path)) mistake.value = value->node.brief();
    mistake.allowed = std::move(allowed);
    mistakes_.push_back(std::move(mistake));
  }

  const Checked& checked_;
  const yaml::Node& tree_;
  std::vector<Diagnostic> mistakes_;
};

}  // namespace

std::vector<Diagnostic> check_rules(const Checked& checked, const yaml::Node& tree) { return Rules(checked, tree).all(); }

std::vector<ProfileValue> profile_values(std::string_view profile) {
  // Fast networks hide small buckets behind the backward pass; slow ones pay for bytes first and for each message next.
  if (profile == "high_bandwidth") return {{"strategy.data.bucket_mb", "25"}, {"strategy.data.compression", "none"}};
  if (profile == "low_bandwidth") return {{"strategy.data.bucket_mb", "100"}, {"strategy.data.compression", "int8"}};
  return {};
}

Diagnostic mistake_at(const yaml::Node& tree, std::string_view path, std::string message) {
  const yaml::Node* at = &tree;
  const yaml::Node* inside = &tree;
  for (std::string_view rest = path; !rest.empty() && inside->is_mapping();) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    const yaml::Node* key = inside->find_key(name);
    if (key == nullptr) break;
    inside = inside->find(name);
    const bool last = name.size() == rest.size();
    at = last ? inside : key;
    rest.remove_prefix(last ? rest.size() : name.size() + 1);
  }
  return at->at(std::string(path), std::move(message));
}

}  // namespace trainer
