// Sampler: a text on one rank under saved weights, in the plan that it fits into.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/manifest.h"
#include "engine/train/generator.h"
#include "engine/train/train.h"

namespace trainer {

class Sampler {
 public:
  /// As sample(), whose arguments these are and outlive this.
  Sampler(const LoadedJob& loaded, std::span<const CompiledJob> plans, const std::string& weights,
          Communicator& communicator, const std::function<void(const std::string&)>& tell);

  /// The checkpoint, if the weights are of one.
  const std::optional<checkpoint::Manifest>& manifest() const { return manifest_; }
  /// Tokens of the longest text.
  std::int64_t room() const { return room_; }

  /// The logits behind `ids`, valid until the next call. What `ids` begins with as the text of the call before did is
  /// not computed again. Of a text longer than the room the last part counts: it starts again with as many ids as fill
  /// half of the room, and goes on from there. REQUIRES: at least one id.
  std::span<const float> after(const std::vector<std::int32_t>& ids);

 private:
  void open(std::size_t plan);

  const LoadedJob& loaded_;
  const std::span<const CompiledJob> plans_;
  const std::string weights_;
  Communicator& communicator_;
  const std::function<void(const std::string&)> tell_;
  std::size_t plan_ = 0;
  const std::int64_t room_;
  std::int64_t start_ = 0;  // the first id of the text that counts
  std::unique_ptr<DeviceBackend> device_;
  std::unique_ptr<Executor> executor_;
  std::optional<Generator> generator_;
  std::optional<checkpoint::Manifest> manifest_;
};

/// Runs work(sampler) on this process's one rank.
void with_sampler(const LoadedJob& loaded, std::span<const CompiledJob> plans, const std::string& weights,
                  const std::function<void(const std::string&)>& tell, const std::function<void(Sampler&)>& work);

}  // namespace trainer
