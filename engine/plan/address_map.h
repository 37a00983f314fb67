// AddressMap<T>: a piecewise constant function from addresses to T. Used wherever "who touched these bytes last?" is
// asked: several times an instruction, so every call finds its first piece once and walks from there, and pieces that
// go are kept for those that come.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace trainer {

template <typename T>
class AddressMap {
 public:
  AddressMap() = default;
  AddressMap(const AddressMap& other) : pieces_(other.pieces_) {}
  AddressMap(AddressMap&&) = default;
  AddressMap& operator=(AddressMap other) {
    pieces_.swap(other.pieces_);
    return *this;
  }

  /// Calls visit(T&) for every piece inside [first, last), cutting pieces at its ends.
  template <typename Visit>
  void update(std::int64_t first, std::int64_t last, Visit&& visit) {
    update_pieces(first, last, [&](std::int64_t, std::int64_t, T& value) { visit(value); });
  }

  /// The same with visit(first, last, T&) of each piece.
  template <typename Visit>
  void update_pieces(std::int64_t first, std::int64_t last, Visit&& visit) {
    if (first >= last) return;
    for (auto at = cut(first);;) {
      const auto next = cut_behind(at, last);
      visit(at->first, next->first, at->second);
      if (next->first == last) return;
      at = next;
    }
  }

  /// Makes [first, last) one piece.
  void assign(std::int64_t first, std::int64_t last, const T& value) {
    replace(first, last, value, [](const T&) {});
  }

  /// The same, after visit(T&) of every piece that was there.
  template <typename Visit>
  void replace(std::int64_t first, std::int64_t last, const T& value, Visit&& visit) {
    if (first >= last) return;
    const auto begin = cut(first);
    for (auto at = begin;;) {
      const auto next = cut_behind(at, last);
      visit(at->second);
      if (at != begin) spare_.push_back(pieces_.extract(at));
      if (next->first == last) break;
      at = next;
    }
    begin->second = value;
  }

 private:
  using Pieces = std::map<std::int64_t, T>;
  using Iterator = typename Pieces::iterator;

  // The piece that begins at `at`, cut off the one before if need be.
  Iterator cut(std::int64_t at) {
    const auto next = pieces_.lower_bound(at);
    if (next != pieces_.end() && next->first == at) return next;
    return insert(next, at, next == pieces_.begin() ? T{} : std::prev(next)->second);
  }

  // The piece behind one that begins before `last`; one begins at `last` if this one went beyond.
  Iterator cut_behind(Iterator piece, std::int64_t last) {
    const auto next = std::next(piece);
    if (next != pieces_.end() && next->first <= last) return next;
    return insert(next, last, piece->second);
  }

  Iterator insert(Iterator hint, std::int64_t at, const T& value) {
    if (spare_.empty()) return pieces_.emplace_hint(hint, at, value);
    typename Pieces::node_type node = std::move(spare_.back());
    spare_.pop_back();
    node.key() = at;
    node.mapped() = value;
    return pieces_.insert(hint, std::move(node));
  }

  Pieces pieces_;  // a piece runs to the next key; below the first key the value is T{}
  std::vector<typename Pieces::node_type> spare_;
};

}  // namespace trainer
