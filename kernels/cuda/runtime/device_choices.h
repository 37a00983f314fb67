// DeviceChoices: what one device takes where there are several ways to compute the same thing: the way that was timed
// to be the fastest (timed_choices.h), until the ranks of a job agree. Ranks that compute the same thing have to get
// the same bits, on whatever machines they are, so some tell the others what they took, and then all take what the
// first of them that had a key took under it.
//
// What was agreed on is complete: whoever took a way also took the choices inside of it, so they are in the same text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainer::kernels::cuda {

class TimedChoices;

class DeviceChoices {
 public:
  /// `kind`: of the device (kind_of); choices count for devices of the same kind. timed == nullptr: nothing is chosen
  /// by time. `timed` outlives this object.
  DeviceChoices(std::string kind, TimedChoices* timed) : kind_(std::move(kind)), timed_(timed) {}

  /// The choice under `key`, as TimedChoices::choose finds it, or as it was agreed on. Nothing: the kernel decides
  /// without one, in the same way on every rank.
  std::optional<std::string> choose(const std::string& key, const std::function<bool(const std::string&)>& accepts,
                                    const std::function<std::optional<std::string>()>& measure);

  /// The same for devices of the same kind, and hardly for others, in processes of the same binary.
  std::int64_t kind_number() const;
  /// What was taken so far. The texts of several devices, one behind another, are such a text too, of which the first
  /// choice of a kind and key counts.
  std::string str() const;
  /// From here on choices are those of `all`, and nothing is timed.
  void agree(const std::string& all);

  /// How often choose() has returned.
  std::size_t asked() const { return taken_.size(); }
  /// Whether one of the choices from number `begin` to before number `end` is another one since the ranks agreed.
  bool changed(std::size_t begin, std::size_t end) const;

 private:
  std::optional<std::string> agreed_on(const std::string& key) const;

  const std::string kind_;
  TimedChoices* const timed_;
  std::vector<std::pair<std::string, std::optional<std::string>>> taken_;  // by key
  std::optional<std::map<std::string, std::string>> agreed_;               // by kind and key
};

}  // namespace trainer::kernels::cuda
