// A part of verification (verify.h): the induction over a loop. A program is proved as it is listed, with one pass over
// its loop. If the pass leaves everything as it found it, except what lies in rings, which has advanced by a pass,
// then so does each further pass, and what follows the loop finds what it would have found after the first.
#pragma once

#include <algorithm>
#include <cstdint>

#include "engine/plan/address_map.h"
#include "engine/plan/loop.h"

namespace trainer {

/// What lies at each address if every ring of the program is moved on by a pass; move(T, bytes): the same so many bytes
/// further on.
template <typename T, typename Move>
AddressMap<T> after_pass(const AddressMap<T>& found, const Role& role, std::int32_t program, const Move& move) {
  AddressMap<T> from = found, result = found;
  for (const Buffer& ring : role.buffers) {
    if (!turns(ring, program)) continue;
    for (std::int64_t part = 0; part < ring.parts(); ++part) {
      const std::int64_t first = ring.offset + part * ring.stride,
                         last = std::min(first + ring.stride, ring.offset + ring.bytes);
      const std::int64_t by = ((part + ring.advance) % ring.parts() - part) * ring.stride;
      from.update_pieces(first, last, [&](std::int64_t begin, std::int64_t end, const T& value) {
        result.assign(begin + by, std::min(end + by, ring.offset + ring.bytes), move(value, by));
      });
    }
  }
  return result;
}

/// Whether same(ring, a, b) holds at every address of the role; `ring`: of the program, that lies there, or -1.
template <typename T, typename Same>
bool same_everywhere(AddressMap<T> a, AddressMap<T> b, const Role& role, std::int32_t program, const Same& same) {
  AddressMap<BufferId> rings;
  rings.assign(0, role.total_bytes, -1);
  for (std::size_t id = 0; id < role.buffers.size(); ++id)
    if (const Buffer& ring = role.buffers[id]; turns(ring, program))
      rings.assign(ring.offset, ring.offset + ring.bytes, static_cast<BufferId>(id));
  bool all = true;
  rings.update_pieces(0, role.total_bytes, [&](std::int64_t begin, std::int64_t end, BufferId ring) {
    a.update_pieces(begin, end, [&](std::int64_t first, std::int64_t last, const T& x) {
      b.update(first, last, [&](const T& y) { all = all && same(ring, x, y); });
    });
  });
  return all;
}

}  // namespace trainer
