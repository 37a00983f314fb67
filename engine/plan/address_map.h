// AddressMap<T>: a piecewise constant function from addresses to T. Used wherever "who touched these bytes last?" is asked.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace trainer {

template <typename T>
class AddressMap {
 public:
  /// Calls visit(T&) for every piece inside [first, last), cutting pieces at its ends.
  template <typename Visit>
  void update(std::int64_t first, std::int64_t last, Visit&& visit) {
    if (first >= last) return;
    const auto end = cut(last);
    for (auto at = cut(first); at != end; ++at) visit(at->second);
  }

  /// The same with visit(first, last, T&) of each piece.
  template <typename Visit>
  void update_pieces(std::int64_t first, std::int64_t last, Visit&& visit) {
    if (first >= last) return;
    const auto end = cut(last);
    for (auto at = cut(first); at != end;) {
      const auto next = std::next(at);
      visit(at->first, next->first, at->second);
      at = next;
    }
  }

  /// Makes [first, last) one piece.
  void assign(std::int64_t first, std::int64_t last, const T& value) {
    if (first >= last) return;
    const auto end = cut(last);
    const auto at = cut(first);
    at->second = value;
    pieces_.erase(std::next(at), end);
  }

 private:
  using Pieces = std::map<std::int64_t, T>;

  // The piece that begins at `at`, cut off the one before if need be.
  typename Pieces::iterator cut(std::int64_t at) {
    const auto next = pieces_.lower_bound(at);
    if (next != pieces_.end() && next->first == at) return next;
    const T value = next == pieces_.begin() ? T{} : std::prev(next)->second;
    return pieces_.emplace_hint(next, at, value);
  }

  Pieces pieces_;  // a piece runs to the next key; below the first key the value is T{}
};

}  // namespace trainer
