// What all communicators share.
#include "engine/comm/communicator.h"

namespace trainer {

void Communicator::describe_by(std::function<std::string()> describe) {
  const std::lock_guard lock(describe_mutex_);
  describe_ = std::move(describe);
}

std::string Communicator::doing() const {
  const std::lock_guard lock(describe_mutex_);
  return describe_ ? describe_() : "";
}

std::string broadcast_text(const std::string& mine,
                           const std::function<void(void* data, std::int64_t bytes)>& broadcast) {
  std::int64_t size = static_cast<std::int64_t>(mine.size());
  broadcast(&size, sizeof size);
  std::string text = mine;
  text.resize(static_cast<std::size_t>(size));
  broadcast(text.data(), size);
  return text;
}

}  // namespace trainer
