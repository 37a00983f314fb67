// A part of verification (verify.h): the induction over loops. A program is proved as it is listed, with one pass over
// each loop. If the pass leaves everything as it found it, except what lies in rings, which has advanced by a pass,
// then so does each further pass, and what follows the loop finds what it would have found after the first.
//
// In a ring where every micro-batch has a part of its own nothing comes around: a pass leaves in each part what it
// found in the one before, and the first stay as they are. Parts of micro-batches that the list does not have are like
// those of the loop. What is behind a loop may go with it or not: a program with several loops is also proved with two
// and with three passes over each written out.
#pragma once

#include <algorithm>
#include <cstdint>

#include <span>
#include <vector>

#include "engine/plan/address_map.h"
#include "engine/plan/loop.h"

namespace trainer {

/// The rings that a loop of the program moves on: all, or where there are several loops those that it touches. The
/// others are memory like any.
inline std::vector<BufferId> rings_of(const Role& role, std::int32_t program, const Loop& loop) {
  const Program& of = role.programs[static_cast<std::size_t>(program)];
  std::vector<bool> touched(role.buffers.size(), of.loops.size() == 1);
  for (std::int32_t i = loop.first; i < loop.last; ++i)
    for_each_access(of.instructions[static_cast<std::size_t>(i)].instruction, [&](Access, const Region& region) {
      if (region.buffer >= 0 && static_cast<std::size_t>(region.buffer) < touched.size())
        touched[static_cast<std::size_t>(region.buffer)] = true;
    });
  std::vector<BufferId> rings;
  for (std::size_t id = 0; id < touched.size(); ++id)
    if (touched[id] && turns(role.buffers[id], program)) rings.push_back(static_cast<BufferId>(id));
  return rings;
}

/// What lies at each address if rings of the program are moved on by a pass; move(T, bytes): the same so many bytes
/// further on.
template <typename T, typename Move>
AddressMap<T> after_pass(const AddressMap<T>& found, const Role& role, std::int32_t program,
                         std::span<const BufferId> rings, const Move& move) {
  const std::span<const Loop> loops = role.programs[static_cast<std::size_t>(program)].loops;
  AddressMap<T> from = found, result = found;
  for (const BufferId id : rings) {
    const Buffer& ring = role.buffer(id);
    const std::int64_t parts = listed_parts(ring, loops);
    for (std::int64_t part = 0; part + (ring.own_parts ? ring.advance : 0) < parts; ++part) {
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

/// Whether same(ring, address, a, b) holds of every piece of the role; `ring`: of these, that lies there, or -1.
template <typename T, typename Same>
bool same_everywhere(AddressMap<T> a, AddressMap<T> b, const Role& role, std::span<const BufferId> rings,
                     const Same& same) {
  AddressMap<BufferId> there;
  for (const Space space : {Space::device, Space::host, Space::disk})
    there.assign(begin_of(space), begin_of(space) + role.bytes_in(space), -1);
  for (const BufferId id : rings) {
    const Buffer& ring = role.buffer(id);
    there.assign(ring.offset, ring.offset + ring.bytes, id);
  }
  bool all = true;
  const auto compare = [&](std::int64_t begin, std::int64_t end, BufferId ring) {
    a.update_pieces(begin, end, [&](std::int64_t first, std::int64_t last, const T& x) {
      b.update_pieces(first, last,
                      [&](std::int64_t address, std::int64_t, const T& y) { all = all && same(ring, address, x, y); });
    });
  };
  for (const Space space : {Space::device, Space::host, Space::disk})
    there.update_pieces(begin_of(space), begin_of(space) + role.bytes_in(space), compare);
  return all;
}

}  // namespace trainer
