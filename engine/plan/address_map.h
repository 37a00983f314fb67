// AddressMap<T>: a piecewise constant function from addresses to T. Used wherever "who touched these bytes last?" is
// asked: several times an instruction, so every call finds its first piece once and walks from there. Most calls find
// pieces that end where they end, so what is searched is a plain list of addresses; values, which may be large, are not
// moved when pieces before them come and go.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer {

template <typename T>
class AddressMap {
 public:
  AddressMap() = default;
  /// Without the room that pieces have left.
  AddressMap(const AddressMap& other) : begins_(other.begins_) {
    places_.reserve(other.places_.size());
    values_.reserve(other.places_.size());
    for (const std::uint32_t place : other.places_) {
      places_.push_back(static_cast<std::uint32_t>(values_.size()));
      values_.push_back(other.values_[place]);
    }
  }
  AddressMap(AddressMap&&) = default;
  AddressMap& operator=(const AddressMap& other) { return *this = AddressMap(other); }
  AddressMap& operator=(AddressMap&&) = default;
  ~AddressMap() = default;

  /// Calls visit(T&) for every piece inside [first, last), cutting pieces at its ends. `visit` does not change the map.
  template <typename Visit>
  void update(std::int64_t first, std::int64_t last, Visit&& visit) {
    update_pieces(first, last, [&](std::int64_t, std::int64_t, T& value) { visit(value); });
  }

  /// The same with visit(first, last, T&) of each piece.
  template <typename Visit>
  void update_pieces(std::int64_t first, std::int64_t last, Visit&& visit) {
    if (first >= last) return;
    for (std::size_t i = cut(first);; ++i) {
      const std::int64_t begin = begins_[i], end = cut_behind(i, last);
      visit(begin, end, value(i));
      if (end == last) return;
    }
  }

  /// Makes [first, last) one piece. REQUIRES: `value` is none of the map's own.
  void assign(std::int64_t first, std::int64_t last, const T& value) {
    replace(first, last, value, [](const T&) {});
  }

  /// The same, after visit(T&) of every piece that was there.
  template <typename Visit>
  void replace(std::int64_t first, std::int64_t last, const T& value, Visit&& visit) {
    if (first >= last) return;
    const std::size_t begin = cut(first);
    std::size_t end = begin;
    for (bool more = true; more; ++end) {
      more = cut_behind(end, last) < last;
      visit(this->value(end));
      if (end > begin) spare_.push_back(places_[end]);
    }
    if (end > begin + 1) erase(begin + 1, end);
    this->value(begin) = value;
  }

 private:
  T& value(std::size_t piece) { return values_[places_[piece]]; }

  // The piece that begins at `at`, cut off the one before if need be.
  std::size_t cut(std::int64_t at) {
    const auto piece = static_cast<std::size_t>(std::lower_bound(begins_.begin(), begins_.end(), at) - begins_.begin());
    if (piece < begins_.size() && begins_[piece] == at) return piece;
    insert(piece, at, piece == 0 ? T{} : value(piece - 1));
    return piece;
  }

  // The end of a piece that begins before `last`; if it went beyond, it is cut there.
  std::int64_t cut_behind(std::size_t piece, std::int64_t last) {
    const std::size_t next = piece + 1;
    if (next == begins_.size() || begins_[next] > last) insert(next, last, value(piece));
    return begins_[next];
  }

  void insert(std::size_t piece, std::int64_t at, const T& value) {
    const auto offset = static_cast<std::ptrdiff_t>(piece);
    begins_.insert(begins_.begin() + offset, at);
    if (spare_.empty()) {
      places_.insert(places_.begin() + offset, static_cast<std::uint32_t>(values_.size()));
      values_.push_back(value);
    } else {
      places_.insert(places_.begin() + offset, spare_.back());
      values_[spare_.back()] = value;
      spare_.pop_back();
    }
  }

  void erase(std::size_t first, std::size_t last) {
    begins_.erase(begins_.begin() + static_cast<std::ptrdiff_t>(first),
                  begins_.begin() + static_cast<std::ptrdiff_t>(last));
    places_.erase(places_.begin() + static_cast<std::ptrdiff_t>(first),
                  places_.begin() + static_cast<std::ptrdiff_t>(last));
  }

  std::vector<std::int64_t> begins_;   // ascending; a piece runs to the next; below the first the value is T{}
  std::vector<std::uint32_t> places_;  // of its value in `values_`
  std::vector<T> values_;
  std::vector<std::uint32_t> spare_;  // places of no piece
};

}  // namespace trainer
