// Every access of a role's memory, in issue order: what owns each byte, who touched it last, and what each stream knows
// of the others by then.
#include "engine/plan/verify/memory_proof.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "engine/plan/address_map.h"
#include "engine/plan/loop.h"
#include "engine/plan/verify/communication.h"
#include "engine/plan/verify/loop.h"
#include "engine/plan/verify/stream_clocks.h"

namespace trainer {
namespace {

using Clock = StreamClock;
constexpr Clock kNever;

std::size_t index_of(Stream stream) { return static_cast<std::size_t>(stream); }

struct Occupant {
  BufferId owner = -1;       // whose bytes lie here; -1: nobody's
  std::int32_t writer = -1;  // -1: an earlier program
  std::size_t writer_stream = 0;
  Clock readers = kNever;  // last reader on each stream
};

class MemoryProof {
 public:
  MemoryProof(const Role& role, const MeshPoint& point, const Program& program, std::int32_t index, std::string who,
              std::vector<std::string>& found)
      : role_(role), point_(point), program_(program), index_(index), who_(std::move(who)), found_(found) {}

  void run() {
    for (std::size_t id = 0; id < role_.buffers.size(); ++id) {
      const Buffer& buffer = role_.buffers[id];
      if (buffer.program >= 0) continue;
      Occupant content;
      content.owner = static_cast<BufferId>(id);
      memory_.assign(buffer.offset, buffer.offset + buffer.bytes, content);
    }
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop)
      if (!sound_loop(loop)) return;
    rings_ = ends_of_rings(role_, program_);
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      meet_loops(i);
      step(i);
      end_rings(static_cast<std::int32_t>(i));
    }
    meet_loops(program_.instructions.size());
  }

 private:
  struct State {
    AddressMap<Occupant> memory;
    StreamClocks clocks;
  };
  // Which streams a loop has, and of each ring that it touches those that do, those that write it, and the last part
  // that it touches and that loops before it do.
  struct Users {
    std::array<bool, kNumStreams> reading{}, writing{};
    std::int64_t last_part = 0, last_before = -1;
  };
  struct LoopUsers {
    ActiveStreams active{};
    std::map<BufferId, Users> rings;
  };

  // ---- The induction over loops (loop.h) ----

  bool sound_loop(std::size_t index) {
    const Loop &loop = program_.loops[index], &first = program_.loops.front();
    const auto size = static_cast<std::int32_t>(program_.instructions.size());
    const std::int32_t before = index == 0 ? 0 : program_.loops[index - 1].last;
    const bool inside = loop.size() > 0 && loop.first - loop.size() >= before && loop.last <= size &&
                        loop.micro_batches > 0 && loop.times > 1;
    if (!inside) return report(0, "has a loop that does not lie behind a round of its own"), false;
    if (loop.times != first.times || loop.micro_batches != first.micro_batches)
      return report(0, "has loops over different micro-batches"), false;
    LoopUsers& users = users_.emplace_back();
    for (std::int32_t i = loop.first; i < loop.last; ++i) {
      users.active[index_of(issued(i).stream)] = true;
      note_rings(users, issued(i));
      if (!goes_with(issued(i), [&](std::int32_t with) { return with == static_cast<std::int32_t>(index); }))
        return report(static_cast<std::size_t>(i), "goes with another loop than it is in"), false;
      if (!(next_round(loop, issued(i - loop.size())) == issued(i)))
        return report(static_cast<std::size_t>(i), "is not what the round before the loop has in its place"), false;
    }
    for (auto& [ring, of] : users.rings)
      for (std::size_t other = 0; other < index; ++other)
        if (const auto found = users_[other].rings.find(ring); found != users_[other].rings.end())
          of.last_before = std::max(of.last_before, found->second.last_part);
    return true;
  }

  void note_rings(LoopUsers& users, const Issued& issued) const {
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (!turning(region)) return;
      Users& of = users.rings[region.buffer];
      of.reading[index_of(issued.stream)] = true;
      if (access != Access::read) of.writing[index_of(issued.stream)] = true;
      of.last_part = std::max(of.last_part, region.offset / role_.buffer(region.buffer).stride);
    });
  }

  // Whether holds(loop) of the loops that an instruction, or each part of an exchange, goes with.
  template <typename Holds>
  static bool goes_with(const Issued& issued, const Holds& holds) {
    const auto* exchange = std::get_if<Exchange>(&issued.instruction);
    if (exchange == nullptr) return holds(issued.why.loop);
    const auto of_part = [&](const auto& part) { return holds(part.loop); };
    return std::ranges::all_of(exchange->sends, of_part) && std::ranges::all_of(exchange->receives, of_part);
  }

  // What the round behind this instruction's has in its place: the same a pass later, after the same waits.
  Issued next_round(const Loop& loop, const Issued& issued) const {
    Issued next = in_pass(role_, loop, issued, 1);
    for (std::int32_t& after : next.after.at)
      if (after >= 0) after += loop.size();
    return next;
  }

  const Issued& issued(std::int32_t i) const { return program_.instructions[static_cast<std::size_t>(i)]; }
  bool turning(const Region& region) const { return inside(region) && turns(role_.buffer(region.buffer), index_); }

  // Any of a ring's parts may now lie at any of its addresses: each counts as touched by whatever touched one last.
  void end_rings(std::int32_t at) {
    for (auto [ring, last] = rings_.equal_range(at); ring != last; ++ring) {
      const Buffer& buffer = role_.buffer(ring->second);
      Occupant any;
      any.owner = ring->second;
      memory_.update(buffer.offset, buffer.offset + buffer.bytes, [&](const Occupant& content) {
        if (content.writer >= 0)
          any.readers[content.writer_stream] = std::max(any.readers[content.writer_stream], content.writer);
        for (std::size_t s = 0; s < kNumStreams; ++s) any.readers[s] = std::max(any.readers[s], content.readers[s]);
      });
      memory_.assign(buffer.offset, buffer.offset + buffer.bytes, any);
    }
  }

  void meet_loops(std::size_t at) {
    for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
      if (at == static_cast<std::size_t>(program_.loops[loop].last)) leave_loop(program_.loops[loop], users_[loop]);
      if (at == static_cast<std::size_t>(program_.loops[loop].first)) found_at_loop_ = {memory_, clocks_};
    }
  }

  // The pass that ends is like the round before it.
  void leave_loop(const Loop& loop, const LoopUsers& users) {
    const auto tail = static_cast<std::size_t>(loop.last) - 1;
    const std::optional<Clock> stays = stays_behind(loop, users.active, found_at_loop_.clocks, clocks_, ended_);
    if (!stays) return report(tail, "ends a pass after which streams know less than before");
    stays_ = *stays;
    const std::vector<BufferId> rings = rings_of(role_, index_, loop);
    const AddressMap<Occupant> moved = after_pass(found_at_loop_.memory, role_, index_, rings,
                                                  [](const Occupant& content, std::int64_t) { return content; });
    const auto same = [&](BufferId ring, std::int64_t address, const Occupant& before, const Occupant& now) {
      const bool own = ring >= 0 && role_.buffer(ring).own_parts;
      return own ? same_own(loop, users, ring, address, before, now) : same_shared(loop, users, ring, before, now);
    };
    if (!same_everywhere(moved, memory_, role_, rings, same))
      report(tail, "ends a pass that leaves other memory than it found");
    found_at_loop_ = {};
  }

  // Where a part of a ring holds nothing of it yet, or never does, only the order of accesses counts.
  bool same_shared(const Loop& loop, const LoopUsers& users, BufferId ring, const Occupant& before,
                   const Occupant& now) const {
    // All streams of the loop know of it, or those that touch the ring.
    const auto touching = users.rings.find(ring);
    const std::array<bool, kNumStreams>& of = touching == users.rings.end() ? users.active : touching->second.reading;
    const auto settled = [&](std::int32_t touch, std::size_t stream, const std::array<Clock, kNumStreams>& clocks) {
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (of[s] && s != stream && clocks[s][stream] < touch) return false;
      return true;
    };
    const auto both_settled = [&](std::int32_t a, std::size_t of_a, std::int32_t b, std::size_t of_b) {
      return settled(a, of_a, found_at_loop_.clocks) && settled(b, of_b, clocks_);
    };
    const auto touched = [&](std::int32_t a, std::int32_t b, std::size_t stream) {
      return b == a || (b == a + loop.size() && a > stays_[stream]) || both_settled(a, stream, b, stream);
    };
    const bool empty = ring >= 0 && before.owner != ring && now.owner != ring;
    bool alike = (empty || before.owner == now.owner) && touched(before.writer, now.writer, now.writer_stream);
    alike = alike && (before.writer_stream == now.writer_stream ||
                      both_settled(before.writer, before.writer_stream, now.writer, now.writer_stream));
    for (std::size_t s = 0; s < kNumStreams; ++s) alike = alike && touched(before.readers[s], now.readers[s], s);
    return alike;
  }

  // Of a ring where every micro-batch has its own part: what the pass has touched is as the round before had it in the
  // part before, and where a loop before it has run ahead all that will touch it knows of that. What comes behind that
  // loop is as far behind in every pass as it is in this one.
  bool same_own(const Loop& loop, const LoopUsers& users, BufferId ring, std::int64_t address, const Occupant& before,
                const Occupant& now) const {
    const Buffer& buffer = role_.buffer(ring);
    const std::int64_t part = (address - buffer.offset) / buffer.stride;
    if (part >= listed_parts(buffer, program_.loops)) return true;
    if ((before.owner == ring) != (now.owner == ring)) return false;
    const auto moves = [&](std::int32_t a, std::int32_t b, std::size_t stream) {
      return b < loop.first || (b == a + loop.size() && a > stays_[stream]);
    };
    if (!moves(before.writer, now.writer, now.writer_stream)) return false;
    if (now.writer >= loop.first && now.writer_stream != before.writer_stream) return false;
    for (std::size_t s = 0; s < kNumStreams; ++s)
      if (!moves(before.readers[s], now.readers[s], s)) return false;
    const auto touching = users.rings.find(ring);
    if (now.owner != ring || touching == users.rings.end()) return true;
    if (part <= touching->second.last_part || part > touching->second.last_before) return true;
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      if (touching->second.reading[s] && !MemoryProof::before(now, clocks_[s])) return false;
      for (std::size_t t = 0; t < kNumStreams; ++t)
        if (touching->second.writing[s] && t != s && now.readers[t] > clocks_[s][t]) return false;
    }
    return true;
  }

  // In a loop a region lies in one part of its ring, and waits go back a pass at most. Behind it streams that had no
  // part in it know of it.
  void step_of_loops(std::size_t i, const Issued& one, const Clock& clock) {
    const auto at = static_cast<std::int32_t>(i);
    const Loop* const inside = program_.loop_at(at);
    for (const std::int32_t after : one.after)
      if (inside != nullptr && after >= 0 && after < inside->first - inside->size())
        report(i, "waits for what is before the round behind which the loop begins");
    const auto loops = static_cast<std::int32_t>(program_.loops.size());
    if (!goes_with(one, [&](std::int32_t loop) { return loop >= 0 && loop < loops; }))
      report(i, "goes with a loop that is not there");
    for_each_access(one.instruction, [&](Access, const Region& region) {
      if (!turning(region)) return;
      const Buffer& ring = role_.buffer(region.buffer);
      if (inside != nullptr && region.offset % ring.stride + region.bytes > ring.stride)
        report(i, "reaches from one part of a ring into the next");
      if (ring.own_parts && at >= program_.loops.front().first &&
          region.offset + region.bytes > listed_parts(ring, program_.loops) * ring.stride)
        report(i, "reaches parts of micro-batches that are not listed");
      if (ring.own_parts) take_over(i, region.buffer, clock);
      for (std::size_t loop = 0; loop < program_.loops.size(); ++loop) {
        const LoopUsers& users = users_[loop];
        if (at < program_.loops[loop].last || users.active[index_of(one.stream)]) continue;
        if (program_.loops.size() > 1 && !users.rings.contains(region.buffer)) continue;
        for (std::size_t s = 0; s < kNumStreams; ++s)
          if (users.active[s] && clock[s] < program_.loops[loop].first)
            report(i, "touches what a loop has left without waiting for it");
      }
    });
  }

  // Passes reach parts that the list does not: whatever lay there was waited for when the stream first touched the
  // ring.
  void take_over(std::size_t i, BufferId ring, const Clock& clock) {
    const std::size_t mine = index_of(issued(static_cast<std::int32_t>(i)).stream);
    if (!taken_.emplace(ring, mine).second) return;
    const Buffer& buffer = role_.buffer(ring);
    bool ordered = true;
    memory_.update(buffer.offset, buffer.offset + buffer.bytes, [&](const Occupant& content) {
      if (content.owner == ring) return;
      ordered = ordered && before(content, clock);
      for (std::size_t s = 0; s < kNumStreams; ++s) ordered = ordered && (s == mine || content.readers[s] <= clock[s]);
    });
    if (!ordered) report(i, "takes over memory for all passes without waiting for an earlier access");
  }

  void step(std::size_t i) {
    const Issued& issued = program_.instructions[i];
    const std::size_t mine = index_of(issued.stream);
    Clock& clock = clocks_[mine];
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      const std::int32_t after = issued.after[s];
      if (after < 0) continue;
      if (after >= static_cast<std::int32_t>(i) ||
          index_of(program_.instructions[static_cast<std::size_t>(after)].stream) != s) {
        report(i, "waits for #" + std::to_string(after) + ", which is not before it on stream " +
                      std::string(name_of(static_cast<Stream>(s))));
        continue;
      }
      for (std::size_t t = 0; t < kNumStreams; ++t)
        clock[t] = std::max(clock[t], ended_[static_cast<std::size_t>(after)][t]);
    }
    if (program_.repeats()) step_of_loops(i, issued, clock);
    if (pass_micro_batch(issued) >= 0) own_micro_batch(i, issued);
    if (const auto* launch = std::get_if<Launch>(&issued.instruction)) operands_fit(i, *launch);
    overlap_inside(i);
    spaces_fit(i, issued);
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::write) read(i, region, clock);
    });
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::read) write(i, region, clock);
    });
    clock[mine] = static_cast<std::int32_t>(i);
    ended_.push_back(clock);
  }

  // What is off the device is persistent. Moves touch it, on the stream for their direction, and kernels on the host's
  // processor, which touch what is in its memory and nothing else.
  void spaces_fit(std::size_t i, const Issued& one) {
    bool elsewhere = false, kept = true, on_host = true;
    for_each_access(one.instruction, [&](Access, const Region& region) {
      if (!inside(region)) return;
      const Space space = role_.space_of(region);
      on_host = on_host && space == Space::host;
      if (space == Space::device) return;
      elsewhere = true;
      kept = kept && role_.buffer(region.buffer).program < 0;
    });
    if (!kept) report(i, "uses scratch memory off the device");
    const auto* move = std::get_if<Move>(&one.instruction);
    if (one.stream == Stream::host) {
      if (!on_host) report(i, "runs on the host's processor and touches what is not in the host's memory");
      if (!std::holds_alternative<Launch>(one.instruction)) report(i, "is no kernel, and runs on the host's processor");
      return;
    }
    if (move == nullptr) {
      if (elsewhere) report(i, "touches what is off the device");
      if (one.stream == Stream::fetch || one.stream == Stream::store) report(i, "runs on a stream for moves");
      return;
    }
    const Region &from = move->from.region, &to = move->to.region;
    if (!inside(from) || !inside(to)) return;  // reported with its accesses
    const bool comes = role_.space_of(to) == Space::device, leaves = role_.space_of(from) == Space::device;
    if (comes == leaves) return report(i, "moves bytes between two places that are both on the device, or both off it");
    if (one.stream != (comes ? Stream::fetch : Stream::store))
      report(i, "moves bytes on a stream for another direction");
    if (from.bytes != to.bytes || (comes ? from : to).step != 0) report(i, "moves other bytes than it takes");
  }

  // A pass touches what is of its micro-batch, or of none.
  void own_micro_batch(std::size_t i, const Issued& one) {
    bool own = true;
    for_each_access(one.instruction, [&](Access, const Region& region) {
      if (!inside(region)) return;
      const Buffer& buffer = role_.buffer(region.buffer);
      const bool of_batch = buffer.category == Category::inputs && buffer.stride > 0;
      own = own && (of_batch ? region.offset / buffer.stride == pass_micro_batch(one)
                             : may_hold(role_, region, pass_micro_batch(one)));
    });
    if (!own) report(i, "touches what is of another micro-batch");
  }

  // A kernel touches what its signature says, not what the operands say.
  void operands_fit(std::size_t i, const Launch& launch) {
    if (launch.signature < 0 || static_cast<std::size_t>(launch.signature) >= role_.signatures.size())
      return report(i, "names a signature that is not there");
    const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
    if (signature.operands.size() != launch.operands.size())
      return report(i, "has another number of operands than its signature");
    if (const Region& workspace = launch.workspace.region;
        workspace.bytes > 0 && inside(workspace) && role_.address(workspace, point_) % kBufferAlignment != 0)
      report(i, "has a workspace at an address that is no multiple of " + std::to_string(kBufferAlignment));
    for (std::size_t operand = 0; operand < launch.operands.size(); ++operand) {
      const TensorDesc& tensor = signature.operands[operand];
      const Region& region = region_of(launch.operands[operand]);
      if (!inside(region)) continue;  // reported with its accesses
      const std::int64_t address = role_.address(region, point_);
      if (const std::int64_t multiple = alignment_of(signature, tensor); address % multiple != 0)
        report(i, "gives operand " + std::to_string(operand) + " an address that is no multiple of " +
                      std::to_string(multiple));
      if (region.bytes != tensor.bytes())
        report(i, "gives operand " + std::to_string(operand) + " another size than its signature");
    }
  }

  // `zero` clears any bytes: paddings, parts of a gradient. Of several rates each update reads one.
  static std::int64_t alignment_of(const Signature& signature, const TensorDesc& tensor) {
    if (signature.op == Op::zero) return 1;
    return tensor.shape.elements() == 1 ? size_of(tensor.dtype) : kOperandAlignment;
  }

  // A rank's own slice of what a collective gathers or scatters may lie in its place there.
  static bool slice_in_place(const Instruction& instruction) {
    const auto* collective = std::get_if<Collective>(&instruction);
    return collective != nullptr && collective->input.region.buffer == collective->output.region.buffer &&
           (collective->kind == CollectiveKind::all_gather || collective->kind == CollectiveKind::reduce_scatter);
  }

  // A write may coincide with a read of the same instruction, or keep clear of it; nothing between.
  void overlap_inside(std::size_t i) {
    if (slice_in_place(program_.instructions[i].instruction)) return;
    std::vector<std::pair<Access, Region>> all;
    for_each_access(program_.instructions[i].instruction,
                    [&](Access access, const Region& region) { all.emplace_back(access, region); });
    for (std::size_t a = 0; a < all.size(); ++a)
      for (std::size_t b = 0; b < all.size(); ++b) {
        if (a == b || all[a].first == Access::read || all[a].second == all[b].second) continue;
        if (inside(all[a].second) && inside(all[b].second) && overlap(all[a].second, all[b].second))
          report(i, "writes over a part of another of its operands");
        else if (all[a].second == all[b].second && all[b].first != Access::read && a < b)
          report(i, "writes the same bytes twice");
      }
  }

  bool inside(const Region& region) const {
    return region.buffer >= 0 && static_cast<std::size_t>(region.buffer) < role_.buffers.size();
  }

  bool overlap(const Region& a, const Region& b) const {
    const std::int64_t x = role_.address(a, point_), y = role_.address(b, point_);
    return x < y + b.bytes && y < x + a.bytes;
  }

  bool bounds(std::size_t i, const Region& region) {
    if (!inside(region)) return report(i, "names a buffer that is not there"), false;
    const Buffer& buffer = role_.buffer(region.buffer);
    const std::int64_t offset = role_.address(region, point_) - buffer.offset;
    if (offset < 0 || region.bytes < 0 || offset + region.bytes > buffer.bytes)
      return report(i, "reaches beyond its buffer"), false;
    const std::int64_t begin = begin_of(buffer.space), end = begin + role_.bytes_in(buffer.space);
    if (buffer.offset < begin || buffer.offset + buffer.bytes > end)
      return report(i, "reaches beyond the allocation"), false;
    if (buffer.offset % kBufferAlignment != 0)
      return report(i, "uses a buffer whose offset is no multiple of " + std::to_string(kBufferAlignment)), false;
    if (buffer.program >= 0 && buffer.program != index_)
      return report(i, "uses scratch memory of another program"), false;
    return true;
  }

  void read(std::size_t i, const Region& region, const Clock& clock) {
    if (!bounds(i, region)) return;
    const std::size_t mine = index_of(program_.instructions[i].stream);
    const std::int64_t first = role_.address(region, point_);
    bool undefined = false, taken = false, unordered = false;
    memory_.update(first, first + region.bytes, [&](Occupant& content) {
      undefined = undefined || content.owner < 0;
      taken = taken || (content.owner >= 0 && content.owner != region.buffer);
      unordered = unordered || !before(content, clock);
      content.readers[mine] = static_cast<std::int32_t>(i);
    });
    if (undefined) report(i, "reads bytes that nothing has written");
    if (taken) report(i, "reads bytes that another buffer has taken over");
    if (unordered) report(i, "reads without waiting for the write");
  }

  void write(std::size_t i, const Region& region, const Clock& clock) {
    if (!bounds(i, region)) return;
    const std::size_t mine = index_of(program_.instructions[i].stream);
    const std::int64_t first = role_.address(region, point_);
    bool unordered = false, foreign = false;
    Occupant written;
    written.owner = region.buffer;
    written.writer = static_cast<std::int32_t>(i);
    written.writer_stream = mine;
    memory_.replace(first, first + region.bytes, written, [&](const Occupant& content) {
      bool ordered = before(content, clock);
      for (std::size_t s = 0; s < kNumStreams; ++s) ordered = ordered && (s == mine || content.readers[s] <= clock[s]);
      unordered = unordered || !ordered;
      foreign =
          foreign || (content.owner >= 0 && content.owner != region.buffer && role_.buffer(content.owner).program < 0);
    });
    if (unordered) report(i, "writes without waiting for an earlier access of the same memory");
    if (foreign) report(i, "writes over persistent memory of another buffer");
  }

  static bool before(const Occupant& content, const Clock& clock) {
    return content.writer < 0 || content.writer <= clock[content.writer_stream];
  }

  void report(std::size_t i, const std::string& what) { found_.push_back(place_of(who_, role_, program_, i) + what); }

  const Role& role_;
  const MeshPoint point_;
  const Program& program_;
  std::int32_t index_;
  std::string who_;
  std::vector<std::string>& found_;
  AddressMap<Occupant> memory_;
  StreamClocks clocks_;
  std::vector<Clock> ended_;
  std::vector<LoopUsers> users_;  // of each loop
  State found_at_loop_;
  Clock stays_;  // of each stream, up to where what is known stays from pass to pass
  std::set<std::pair<BufferId, std::size_t>> taken_;  // rings that a stream has touched
  std::multimap<std::int32_t, BufferId> rings_;       // by their last instruction
};

}  // namespace

void prove_memory(const Role& role, std::size_t program, const MeshPoint& point, const std::string& who,
                  std::vector<std::string>& found) {
  MemoryProof(role, point, role.programs[program], static_cast<std::int32_t>(program), who, found).run();
}

}  // namespace trainer
