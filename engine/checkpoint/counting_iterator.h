// Counts the bytes that a JSON parser has taken, so that messages can name the offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace trainer::checkpoint {

class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::int64_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*count_;
    return *this;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  std::int64_t* count_;
};

}  // namespace trainer::checkpoint
