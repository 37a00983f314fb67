// OnceMap: values that several threads ask for by key, each made once, by the first that asks.
#pragma once

#include <map>
#include <mutex>
#include <utility>

namespace trainer {

/// A value stays where it is. Those of different keys are made at the same time; who asks for one that is being made
/// waits for it. What `make` throws is raised, and the next who asks makes it again.
template <typename Key, typename Value>
class OnceMap {
 public:
  template <typename Make>
  Value& get(const Key& key, Make&& make) {
    Entry& entry = this->entry(key);
    std::call_once(entry.made, [&] { entry.value = make(); });
    return entry.value;
  }

 private:
  struct Entry {
    std::once_flag made;
    Value value{};
  };

  Entry& entry(const Key& key) {
    const std::lock_guard lock(mutex_);
    return entries_[key];
  }

  std::mutex mutex_;
  std::map<Key, Entry> entries_;
};

}  // namespace trainer
