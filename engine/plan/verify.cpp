// The proof in two parts: memory, once a role; communication, by playing all ranks with every communication a rendezvous.
#include "engine/plan/verify.h"

#include <algorithm>
#include <optional>

#include "engine/core/error.h"
#include "engine/plan/address_map.h"
#include "engine/plan/verify_replicas.h"

namespace trainer {
namespace {

using Clock = std::array<std::int32_t, kNumStreams>;
constexpr Clock kNever{-1, -1, -1};

std::size_t index_of(Stream stream) { return static_cast<std::size_t>(stream); }

std::string place(const std::string& who, const Role& role, const Program& program, std::size_t i) {
  return who + ", " + program.name + " #" + std::to_string(i) + " (" + print(role, program.instructions[i].instruction) + "): ";
}

// ---- Memory ------------------------------------------------------------------------------------------------------

struct Content {
  BufferId owner = -1;          // whose bytes lie here; -1: nobody's
  std::int32_t writer = -1;     // -1: an earlier program
  std::size_t writer_stream = 0;
  Clock readers = kNever;       // last reader on each stream
};

class MemoryProof {
 public:
  MemoryProof(const Role& role, int shard, const Program& program, std::int32_t index, std::string who, std::vector<std::string>& found)
      : role_(role), shard_(shard), program_(program), index_(index), who_(std::move(who)), found_(found) {}

  void run() {
    for (std::size_t id = 0; id < role_.buffers.size(); ++id) {
      const Buffer& buffer = role_.buffers[id];
      if (buffer.program >= 0) continue;
      Content content;
      content.owner = static_cast<BufferId>(id);
      memory_.assign(buffer.offset, buffer.offset + buffer.bytes, content);
    }
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) step(i);
  }

 private:
  void step(std::size_t i) {
    const Issued& issued = program_.instructions[i];
    const std::size_t mine = index_of(issued.stream);
    Clock& clock = clocks_[mine];
    for (std::size_t s = 0; s < kNumStreams; ++s) {
      const std::int32_t after = issued.after[s];
      if (after < 0) continue;
      if (after >= static_cast<std::int32_t>(i) || index_of(program_.instructions[static_cast<std::size_t>(after)].stream) != s) {
        report(i, "waits for #" + std::to_string(after) + ", which is not before it on stream " + std::string(name_of(static_cast<Stream>(s))));
        continue;
      }
      for (std::size_t t = 0; t < kNumStreams; ++t) clock[t] = std::max(clock[t], ended_[static_cast<std::size_t>(after)][t]);
    }
    if (const auto* launch = std::get_if<Launch>(&issued.instruction)) operands_fit(i, *launch);
    overlap_inside(i);
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::write) read(i, region, clock);
    });
    for_each_access(issued.instruction, [&](Access access, const Region& region) {
      if (access != Access::read) write(i, region, clock);
    });
    clock[mine] = static_cast<std::int32_t>(i);
    ended_.push_back(clock);
  }

  // A kernel touches what its signature says, not what the operands say. Packed operands have the size of their buffer.
  void operands_fit(std::size_t i, const Launch& launch) {
    if (launch.signature < 0 || static_cast<std::size_t>(launch.signature) >= role_.signatures.size()) return report(i, "names a signature that is not there");
    const Signature& signature = role_.signatures[static_cast<std::size_t>(launch.signature)];
    if (signature.operands.size() != launch.operands.size()) return report(i, "has another number of operands than its signature");
    for (std::size_t operand = 0; operand < launch.operands.size(); ++operand) {
      const TensorDesc& tensor = signature.operands[operand];
      const Region& region = region_of(launch.operands[operand]);
      const bool packed = tensor.layout != Layout::row_major;
      if (packed && !inside(region)) continue;
      if (region.bytes != (packed ? role_.buffer(region.buffer).bytes : tensor.bytes())) report(i, "gives operand " + std::to_string(operand) + " another size than its signature");
    }
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
    for_each_access(program_.instructions[i].instruction, [&](Access access, const Region& region) { all.emplace_back(access, region); });
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
    const std::int64_t x = role_.address(a, shard_), y = role_.address(b, shard_);
    return x < y + b.bytes && y < x + a.bytes;
  }

  bool bounds(std::size_t i, const Region& region) {
    if (!inside(region)) return report(i, "names a buffer that is not there"), false;
    const Buffer& buffer = role_.buffer(region.buffer);
    const std::int64_t offset = region.offset + shard_ * region.per_shard;
    if (offset < 0 || region.bytes < 0 || offset + region.bytes > buffer.bytes) return report(i, "reaches beyond its buffer"), false;
    if (buffer.offset < 0 || buffer.offset + buffer.bytes > role_.total_bytes) return report(i, "reaches beyond the allocation"), false;
    if (buffer.program >= 0 && buffer.program != index_) return report(i, "uses scratch memory of another program"), false;
    return true;
  }

  void read(std::size_t i, const Region& region, const Clock& clock) {
    if (!bounds(i, region)) return;
    const std::size_t mine = index_of(program_.instructions[i].stream);
    const std::int64_t first = role_.address(region, shard_);
    bool undefined = false, taken = false, unordered = false;
    memory_.update(first, first + region.bytes, [&](Content& content) {
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
    const std::int64_t first = role_.address(region, shard_);
    bool unordered = false, foreign = false;
    memory_.update(first, first + region.bytes, [&](Content& content) {
      bool ordered = before(content, clock);
      for (std::size_t s = 0; s < kNumStreams; ++s) ordered = ordered && (s == mine || content.readers[s] <= clock[s]);
      unordered = unordered || !ordered;
      foreign = foreign || (content.owner >= 0 && content.owner != region.buffer && role_.buffer(content.owner).program < 0);
    });
    if (unordered) report(i, "writes without waiting for an earlier access of the same memory");
    if (foreign) report(i, "writes over persistent memory of another buffer");
    Content content;
    content.owner = region.buffer;
    content.writer = static_cast<std::int32_t>(i);
    content.writer_stream = mine;
    memory_.assign(first, first + region.bytes, content);
  }

  static bool before(const Content& content, const Clock& clock) {
    return content.writer < 0 || content.writer <= clock[content.writer_stream];
  }

  void report(std::size_t i, const std::string& what) { found_.push_back(place(who_, role_, program_, i) + what); }

  const Role& role_;
  const int shard_;
  const Program& program_;
  std::int32_t index_;
  std::string who_;
  std::vector<std::string>& found_;
  AddressMap<Content> memory_;
  std::array<Clock, kNumStreams> clocks_{kNever, kNever, kNever};
  std::vector<Clock> ended_;
};

// ---- Communication -----------------------------------------------------------------------------------------------

// All ranks at once. A rank's stream stands at its next instruction; a communication ends when all its members stand at it.
class Rendezvous {
 public:
  Rendezvous(const Plan& plan, std::size_t program, std::vector<std::string>& found) : plan_(plan), index_(program), found_(found) {
    const int world = plan.mesh.world_size();
    ranks_.resize(static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      RankState& state = ranks_[static_cast<std::size_t>(rank)];
      state.program = &plan.role_of(rank).programs[program];
      for (std::size_t i = 0; i < state.program->instructions.size(); ++i)
        state.queue[index_of(state.program->instructions[i].stream)].push_back(static_cast<std::int32_t>(i));
      state.done.resize(state.program->instructions.size(), false);
    }
  }

  void run() {
    bool moved = true;
    while (moved && found_.empty()) {
      moved = false;
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) moved = advance(rank) || moved;
    }
    if (!found_.empty()) return;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank)
      for (std::size_t s = 0; s < kNumStreams; ++s)
        if (const std::optional<std::int32_t> head = head_of(rank, s)) {
          report(rank, *head, "waits for ever");
          return;
        }
  }

 private:
  struct RankState {
    const Program* program = nullptr;
    std::array<std::vector<std::int32_t>, kNumStreams> queue;
    std::array<std::size_t, kNumStreams> at{};
    std::vector<bool> done;
    std::vector<bool> parts;  // of the exchange at the head: sends, then receives
  };

  std::optional<std::int32_t> head_of(int rank, std::size_t stream) const {
    const RankState& state = ranks_[static_cast<std::size_t>(rank)];
    if (state.at[stream] >= state.queue[stream].size()) return std::nullopt;
    return state.queue[stream][state.at[stream]];
  }

  const Issued& issued(int rank, std::int32_t i) const { return ranks_[static_cast<std::size_t>(rank)].program->instructions[static_cast<std::size_t>(i)]; }

  bool ready(int rank, std::int32_t i) const {
    for (std::int32_t after : issued(rank, i).after)
      if (after >= 0 && !ranks_[static_cast<std::size_t>(rank)].done[static_cast<std::size_t>(after)]) return false;
    return true;
  }

  void finish(int rank, std::size_t stream) {
    RankState& state = ranks_[static_cast<std::size_t>(rank)];
    state.done[static_cast<std::size_t>(state.queue[stream][state.at[stream]++])] = true;
    if (stream == index_of(Stream::communication)) state.parts.clear();
  }

  bool advance(int rank) {
    bool moved = false;
    for (std::size_t s = 0; s < kNumStreams; ++s)
      for (std::optional<std::int32_t> head = head_of(rank, s); head && ready(rank, *head) && found_.empty(); head = head_of(rank, s)) {
        const Instruction& instruction = issued(rank, *head).instruction;
        const bool communicates = std::holds_alternative<Collective>(instruction) || std::holds_alternative<Exchange>(instruction);
        if (communicates && s != index_of(Stream::communication)) {
          report(rank, *head, "communicates off the communication stream");
          return moved;
        }
        if (const auto* collective = std::get_if<Collective>(&instruction)) {
          if (!meet(rank, *head, *collective)) break;
        } else if (const auto* exchange = std::get_if<Exchange>(&instruction)) {
          if (!meet(rank, *head, *exchange)) break;
          finish(rank, s);
        } else {
          finish(rank, s);
        }
        moved = true;
      }
    return moved;
  }

  // True when every member stood ready at the same collective; then all have ended it.
  bool meet(int rank, std::int32_t i, const Collective& mine) {
    const std::size_t s = index_of(Stream::communication);
    const std::vector<int> members = plan_.mesh.group(rank, mine.axes, mine.stages);
    for (int member : members) {
      const std::optional<std::int32_t> head = head_of(member, s);
      if (!head) return report(rank, i, "rank " + std::to_string(member) + " never joins"), false;
      if (!ready(member, *head)) return false;
      const auto* theirs = std::get_if<Collective>(&issued(member, *head).instruction);
      if (theirs == nullptr || !(theirs->axes == mine.axes) || theirs->stages != mine.stages) return false;  // busy with another group
      if (theirs->kind != mine.kind || theirs->dtype != mine.dtype || theirs->input.region.bytes != mine.input.region.bytes ||
          theirs->output.region.bytes != mine.output.region.bytes)
        return report(rank, i, "rank " + std::to_string(member) + " joins with " + print(plan_.role_of(member), issued(member, *head).instruction)), false;
    }
    const std::int64_t n = static_cast<std::int64_t>(members.size());
    const std::int64_t in = mine.input.region.bytes, out = mine.output.region.bytes;
    const bool sizes = mine.kind == CollectiveKind::reduce_scatter ? in == n * out : mine.kind == CollectiveKind::all_gather ? out == n * in : in == out;
    if (!sizes) return report(rank, i, "input and output do not fit " + std::to_string(n) + " ranks"), false;
    if ((mine.kind == CollectiveKind::all_reduce || mine.kind == CollectiveKind::broadcast) && !(mine.input.region == mine.output.region))
      return report(rank, i, "works in place, but input and output differ"), false;
    for (int member : members) finish(member, s);
    return true;
  }

  int peer_of(int rank, Axis axis, int peer) const {
    Coordinates at = plan_.mesh.coordinates(rank);
    int& coordinate = at[static_cast<std::size_t>(axis)];
    coordinate += peer;
    if (coordinate < 0 || coordinate >= plan_.mesh.size(axis)) return -1;
    return plan_.mesh.rank(at);
  }

  // Marks the parts of the exchange whose counterpart stands ready at the peer; true when all are marked.
  bool meet(int rank, std::int32_t i, const Exchange& mine) {
    std::vector<bool>& parts = ranks_[static_cast<std::size_t>(rank)].parts;
    parts.resize(mine.sends.size() + mine.receives.size(), false);
    bool all = true;
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (!parts[part]) match(rank, i, mine, part);
      if (!found_.empty()) return false;
      all = all && parts[part];
    }
    return all;
  }

  void match(int rank, std::int32_t i, const Exchange& mine, std::size_t part) {
    const bool sending = part < mine.sends.size();
    const Axis axis = sending ? mine.sends[part].axis : mine.receives[part - mine.sends.size()].axis;
    const int peer = peer_of(rank, axis, sending ? mine.sends[part].peer : mine.receives[part - mine.sends.size()].peer);
    if (peer < 0) return report(rank, i, "has a peer outside the mesh");
    const std::optional<std::int32_t> head = head_of(peer, index_of(Stream::communication));
    if (!head || !ready(peer, *head)) return;
    const auto* theirs = std::get_if<Exchange>(&issued(peer, *head).instruction);
    if (theirs == nullptr) return;
    std::vector<bool>& their_parts = ranks_[static_cast<std::size_t>(peer)].parts;
    their_parts.resize(theirs->sends.size() + theirs->receives.size(), false);
    const std::size_t first = sending ? theirs->sends.size() : 0, last = sending ? their_parts.size() : theirs->sends.size();
    for (std::size_t other = first; other < last; ++other) {
      if (their_parts[other]) continue;
      const int back = sending ? peer_of(peer, theirs->receives[other - theirs->sends.size()].axis, theirs->receives[other - theirs->sends.size()].peer)
                               : peer_of(peer, theirs->sends[other].axis, theirs->sends[other].peer);
      if (back != rank) continue;
      const std::int64_t mine_bytes = sending ? mine.sends[part].region.region.bytes : mine.receives[part - mine.sends.size()].region.region.bytes;
      const std::int64_t their_bytes = sending ? theirs->receives[other - theirs->sends.size()].region.region.bytes : theirs->sends[other].region.region.bytes;
      if (mine_bytes != their_bytes) return report(rank, i, "rank " + std::to_string(peer) + " expects " + std::to_string(their_bytes) + " bytes");
      ranks_[static_cast<std::size_t>(rank)].parts[part] = true;
      their_parts[other] = true;
      return;
    }
  }

  void report(int rank, std::int32_t i, const std::string& what) {
    found_.push_back(place("rank " + std::to_string(rank), plan_.role_of(rank), *ranks_[static_cast<std::size_t>(rank)].program, static_cast<std::size_t>(i)) + what);
  }

  const Plan& plan_;
  std::size_t index_;
  std::vector<std::string>& found_;
  std::vector<RankState> ranks_;
};

// Along the shard axis addresses are affine: what holds at its ends and beside them holds between.
std::vector<int> telling_shards(int size) {
  if (size == 1) return {0};
  return size == 2 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, size - 1};
}

bool communicates(const Plan& plan, std::size_t program) {
  for (const Role& role : plan.roles)
    for (const Issued& issued : role.programs[program].instructions)
      if (std::holds_alternative<Collective>(issued.instruction) || std::holds_alternative<Exchange>(issued.instruction)) return true;
  return false;
}

}  // namespace

std::vector<std::string> violations(const Plan& plan) {
  std::vector<std::string> found;
  if (static_cast<int>(plan.roles.size()) != plan.mesh.size(Axis::pipeline)) return {"a plan has one role a pipeline stage"};
  for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
    const Role& role = plan.roles[stage];
    if (role.programs.size() != plan.roles[0].programs.size()) return {"the roles of a plan have different programs"};
    for (std::size_t program = 0; program < role.programs.size(); ++program)
      for (int shard : telling_shards(plan.mesh.size(Axis::shard)))
        MemoryProof(role, shard, role.programs[program], static_cast<std::int32_t>(program), "role " + std::to_string(stage), found).run();
  }
  if (!found.empty()) return found;
  if (plan.mesh.size(Axis::replicate) > 1)
    for (const Role& role : plan.roles)
      for (const Program& program : role.programs) {
        if (role.program_index("average") >= 0) continue;  // ranks train apart
        prove_replicas(role, program, [&](std::size_t i, const std::string& what) { found.push_back(place("every rank", role, program, i) + what); });
      }
  for (std::size_t program = 0; program < plan.roles[0].programs.size(); ++program)
    if (communicates(plan, program)) Rendezvous(plan, program, found).run();
  return found;
}

void verify(const Plan& plan) {
  const std::vector<std::string> found = violations(plan);
  if (found.empty()) return;
  std::string text = "the plan does not hold:";
  for (std::size_t i = 0; i < std::min<std::size_t>(found.size(), 5); ++i) text += "\n  " + found[i];
  throw Bug(text);
}

}  // namespace trainer
