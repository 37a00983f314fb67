// Roles are moved from communication to communication; between those, and in them, each one's flow of facts goes on.
#include "engine/plan/verify/communication.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "engine/core/parallel.h"
#include "engine/plan/loop.h"
#include "engine/plan/verify/flow.h"

namespace trainer {
namespace {

// A program of which this much is wrong is not looked at further.
constexpr std::size_t kEnough = 20;

bool communicates(const Instruction& instruction) {
  return std::holds_alternative<Collective>(instruction) || std::holds_alternative<Exchange>(instruction);
}

bool joins_stages(const Instruction& instruction) {
  const auto* collective = std::get_if<Collective>(&instruction);
  return collective != nullptr ? collective->axes.has(Axis::pipeline) : std::holds_alternative<Exchange>(instruction);
}

// What joins stages of a program, every pass over its loops written out.
Program meetings_of(const Role& role, const Program& program) {
  Program result{program.kind, {}};
  const auto add = [&](std::int32_t first, std::int32_t last, std::int32_t pass) {
    for (std::int32_t i = first; i < last; ++i)
      if (joins_stages(program.instructions[static_cast<std::size_t>(i)].instruction))
        result.instructions.push_back(in_run(role, program, i, pass));
  };
  std::int32_t at = 0;
  for (const Loop& loop : program.loops) {
    add(at, loop.first, 0);
    for (std::int32_t pass = 0; pass < loop.times; ++pass) add(loop.first, loop.last, pass);
    at = loop.last;
  }
  add(at, static_cast<std::int32_t>(program.instructions.size()), 0);
  return result;
}

// With `flows` off only that all communications meet their like is shown: of programs that have nothing else.
class Play {
 public:
  Play(const Plan& plan, const std::vector<const Program*>& programs, const MeshPoint& point, bool flows,
       std::vector<std::string>& found)
      : plan_(plan), flows_(flows), found_(found) {
    for (std::size_t stage = 0; stage < plan.roles.size(); ++stage) {
      Actor& actor = actors_.emplace_back();
      actor.program = programs[stage];
      for (std::size_t i = 0; i < actor.program->instructions.size(); ++i)
        if (communicates(actor.program->instructions[i].instruction)) {
          actor.queue.push_back(i);
          check_stream(stage, i);
        }
      if (flows_)
        actor.flow = std::make_unique<Flow>(
            plan, stage, point, static_cast<std::size_t>(actor.program - plan.roles[stage].programs.data()), tables_,
            [this, stage](std::size_t i, const std::string& what) { report(stage, i, what); });
    }
  }

  void run() {
    for (bool moved = true; moved && !enough();) {
      moved = false;
      for (std::size_t stage = 0; stage < actors_.size(); ++stage)
        while (!enough() && advance(stage)) moved = true;
    }
    if (enough()) return;
    for (std::size_t stage = 0; stage < actors_.size(); ++stage)
      if (const std::optional<std::size_t> head = head_of(stage)) return report(stage, *head, "waits for ever");
    for (Actor& actor : actors_) {
      if (!flows_) continue;
      actor.flow->run_until(actor.program->instructions.size());
      actor.flow->finish();
    }
  }

 private:
  struct Actor {
    const Program* program = nullptr;
    std::vector<std::size_t> queue;  // its communications
    std::size_t at = 0;
    std::vector<bool> parts;  // of the exchange at the head: sends, then receives
    std::map<std::pair<std::uint8_t, std::vector<std::int32_t>>, Stream> streams;  // of each group
    std::unique_ptr<Flow> flow;
  };

  // What communication.h takes for granted about streams.
  void check_stream(std::size_t stage, std::size_t i) {
    const Issued& issued = actors_[stage].program->instructions[i];
    const bool beside = issued.stream == Stream::background || issued.stream == Stream::tensor;
    if (issued.stream != Stream::communication && !beside)
      return report(stage, i, "communicates off the communication stream");
    const auto* collective = std::get_if<Collective>(&issued.instruction);
    if (beside && (collective == nullptr || collective->axes.has(Axis::pipeline)))
      return report(stage, i, "joins stages on the " + std::string(name_of(issued.stream)) + " stream");
    if (collective == nullptr) return;
    const auto [at, added] =
        actors_[stage].streams.try_emplace({collective->axes.mask, collective->stages}, issued.stream);
    if (!added && at->second != issued.stream)
      report(stage, i, "is of a group that communicates on the " + std::string(name_of(at->second)) + " stream too");
  }

  bool enough() const { return found_.size() >= kEnough; }

  std::optional<std::size_t> head_of(std::size_t stage) const {
    const Actor& actor = actors_[stage];
    if (actor.at >= actor.queue.size()) return std::nullopt;
    return actor.queue[actor.at];
  }
  template <typename T>
  const T* head_as(std::size_t stage) const {
    const std::optional<std::size_t> head = head_of(stage);
    return head ? std::get_if<T>(&actors_[stage].program->instructions[*head].instruction) : nullptr;
  }
  const std::string& name(std::size_t stage, NameId id) const { return plan_.roles[stage].name(id); }

  // Goes on behind a communication, also behind one that cannot be: its role's other mistakes are to be named too.
  bool finish(std::size_t stage) {
    actors_[stage].parts.clear();
    ++actors_[stage].at;
    return true;
  }

  bool advance(std::size_t stage) {
    const std::optional<std::size_t> head = head_of(stage);
    if (!head) return false;
    if (flows_) actors_[stage].flow->run_until(*head);
    if (const auto* collective = head_as<Collective>(stage)) return meet(stage, *head, *collective);
    return meet(stage, *head, *head_as<Exchange>(stage));
  }

  // ---- Collectives ----

  bool meet(std::size_t stage, std::size_t i, const Collective& mine) {
    std::vector<std::size_t> members;
    const int stages = plan_.mesh.size(Axis::pipeline);
    if (!mine.axes.has(Axis::pipeline))
      members = {stage};
    else if (mine.stages.empty())
      for (int other = 0; other < stages; ++other) members.push_back(static_cast<std::size_t>(other));
    else
      for (std::int32_t other : mine.stages) members.push_back(static_cast<std::size_t>(other));
    const bool sound =
        std::all_of(members.begin(), members.end(), [&](std::size_t other) { return other < actors_.size(); }) &&
        std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) == members.end() &&
        std::find(members.begin(), members.end(), stage) != members.end();
    if (!sound || (!mine.axes.has(Axis::pipeline) && !mine.stages.empty()))
      return report(stage, i, "names stages that are no group of its own"), finish(stage);
    const Axes inside = mine.axes - Axes::of(Axis::pipeline);
    const std::int64_t n = static_cast<std::int64_t>(members.size()) * plan_.mesh.group_size(inside);
    if (n == 1) return report(stage, i, "has a group of one rank"), finish(stage);
    if (!sizes_fit(mine, n))
      return report(stage, i, "input and output do not fit " + std::to_string(n) + " ranks"), finish(stage);
    for (std::size_t other : members) {
      if (other == stage) continue;
      const std::optional<std::size_t> head = head_of(other);
      if (!head) return report(stage, i, "role " + std::to_string(other) + " never joins"), false;
      const auto* theirs = head_as<Collective>(other);
      if (theirs == nullptr || !(theirs->axes == mine.axes) || theirs->stages != mine.stages)
        return false;  // busy with another group
      if (theirs->kind != mine.kind || theirs->dtype != mine.dtype ||
          theirs->input.region.bytes != mine.input.region.bytes ||
          theirs->output.region.bytes != mine.output.region.bytes ||
          name(other, theirs->name) != name(stage, mine.name))
        return report(stage, i, "role " + std::to_string(other) + " joins with " + print(plan_.roles[other], *theirs)),
               false;
    }
    carry_out(stage, i, mine, members);
    for (std::size_t member : members) finish(member);
    return true;
  }

  bool sizes_fit(const Collective& mine, std::int64_t n) const {
    const std::int64_t in = mine.input.region.bytes, out = mine.output.region.bytes;
    if (in <= 0 || in % size_of(mine.dtype) != 0 || out % size_of(mine.dtype) != 0) return false;
    switch (mine.kind) {
      case CollectiveKind::reduce_scatter:
        return in == n * out;
      case CollectiveKind::all_gather:
        return out == n * in;
      case CollectiveKind::all_to_all:
        return in == out && in % n == 0;
      case CollectiveKind::shift:
        return in == out && mine.input.region.buffer != mine.output.region.buffer;
      case CollectiveKind::all_reduce:
        return mine.input.region == mine.output.region;  // in place
    }
    return false;
  }

  void carry_out(std::size_t stage, std::size_t i, const Collective& mine, const std::vector<std::size_t>& members) {
    if (!flows_) return;
    if (mine.axes.has(Axis::pipeline) && mine.kind != CollectiveKind::all_reduce)
      return report(stage, i, "joins stages by what is no sum");
    std::vector<FactRanges> found;
    for (std::size_t member : members) {
      actors_[member].flow->run_until(*head_of(member));
      found.push_back(actors_[member].flow->bring(*head_of(member), *head_as<Collective>(member)));
    }
    const auto both = [](const Facts& a, const Facts& b) { return merged(a, b); };
    const FactRanges all =
        found.size() == 1 ? std::move(found.front()) : overlaid(found, mine.input.region.bytes, both);
    for (std::size_t member : members)
      actors_[member].flow->collective(*head_of(member), *head_as<Collective>(member), all);
  }

  // ---- Exchanges ----

  // A send or a receive: parts are numbered sends first.
  struct Part {
    bool sends = false;
    std::optional<std::size_t> peer;  // stage; other axes have no ends that all ranks of a role share
    const Region* region = nullptr;
    const Carried* carried = nullptr;
  };
  static std::size_t num_parts(const Exchange& exchange) { return exchange.sends.size() + exchange.receives.size(); }
  Part part_of(std::size_t stage, const Exchange& exchange, std::size_t index) const {
    const auto part = [&](bool sends, const auto& one) {
      const std::int64_t peer = static_cast<std::int64_t>(stage) + one.peer;
      const bool inside =
          one.axis == Axis::pipeline && one.peer != 0 && peer >= 0 && peer < static_cast<std::int64_t>(actors_.size());
      return Part{sends, inside ? std::optional(static_cast<std::size_t>(peer)) : std::nullopt, &one.region.region,
                  &one.carried};
    };
    return index < exchange.sends.size() ? part(true, exchange.sends[index])
                                         : part(false, exchange.receives[index - exchange.sends.size()]);
  }

  // Whether a stage made `sent` for what is said of it: a pass of that direction and micro-batch on this side of the
  // boundary, or another stage from which it came.
  bool made_for(std::size_t stage, const Carried& carried, const FactRanges& sent) const {
    return std::all_of(sent.begin(), sent.end(), [&](const FactRange& piece) {
      if (piece.facts.writer < 0) return false;
      const Issued& writer = actors_[stage].program->instructions[static_cast<std::size_t>(piece.facts.writer)];
      if (const auto* exchange = std::get_if<Exchange>(&writer.instruction))
        return std::any_of(exchange->receives.begin(), exchange->receives.end(), [&](const Exchange::Receive& from) {
          return from.carried.value == carried.value && from.carried.micro_batch == carried.micro_batch &&
                 from.carried.backward == carried.backward &&
                 (carried.backward ? from.carried.boundary > carried.boundary
                                   : from.carried.boundary < carried.boundary);
        });
      if (!is_pass(writer.why.phase) || writer.why.micro_batch != carried.micro_batch) return false;
      if (carried.backward != (writer.why.phase != Provenance::Phase::forward)) return false;
      return carried.backward ? writer.why.chunk > carried.boundary : writer.why.chunk <= carried.boundary;
    });
  }

  // Marks the parts whose counterpart stands ready at the peer; done when all are marked.
  bool meet(std::size_t stage, std::size_t i, const Exchange& mine) {
    if (num_parts(mine) == 0) return report(stage, i, "exchanges nothing"), finish(stage);
    actors_[stage].parts.resize(num_parts(mine), false);
    for (std::size_t part = 0; part < num_parts(mine); ++part) {
      if (actors_[stage].parts[part]) continue;
      if (!part_of(stage, mine, part).peer) return report(stage, i, "has a peer outside the mesh"), finish(stage);
      if (!match(stage, i, mine, part)) return false;
    }
    for (std::size_t part = 0; part < num_parts(mine); ++part)
      if (!actors_[stage].parts[part]) return false;
    return finish(stage);
  }

  // False if something is wrong; a counterpart that has not arrived yet is no mistake.
  bool match(std::size_t stage, std::size_t i, const Exchange& mine, std::size_t index) {
    const Part here = part_of(stage, mine, index);
    const std::size_t peer = *here.peer;
    const auto* theirs = head_as<Exchange>(peer);
    if (theirs == nullptr) return true;
    const std::size_t head = *head_of(peer);
    actors_[peer].parts.resize(num_parts(*theirs), false);
    for (std::size_t other = 0; other < num_parts(*theirs); ++other) {
      const Part there = part_of(peer, *theirs, other);
      if (actors_[peer].parts[other] || there.sends == here.sends || there.peer != stage) continue;
      if (here.region->bytes != there.region->bytes)
        return report(stage, i,
                      "role " + std::to_string(peer) + " expects " + std::to_string(there.region->bytes) + " bytes"),
               false;
      const auto owns = [&](std::size_t of, const Part& part) {
        const Role& role = plan_.roles[of];
        return role.buffer(part.region->buffer).micro_batch >= 0 &&
               may_hold(role, *part.region, here.carried->micro_batch);
      };
      if (!(*here.carried == *there.carried) || (flows_ && (!owns(stage, here) || !owns(peer, there))))
        return report(stage, i, "role " + std::to_string(peer) + " takes it for " + print(plan_.roles[peer], *theirs)),
               false;
      actors_[stage].parts[index] = actors_[peer].parts[other] = true;
      if (!flows_) return true;
      actors_[peer].flow->run_until(head);
      const std::size_t from = here.sends ? stage : peer, to = here.sends ? peer : stage;
      const FactRanges sent = actors_[from].flow->read(here.sends ? *here.region : *there.region);
      if (!made_for(from, *here.carried, sent))
        return report(from, here.sends ? i : head, "sends what it has not made for that"), false;
      if (!as_before(*here.carried, sent))
        return report(from, here.sends ? i : head, "sends other bytes than for an earlier micro-batch"), false;
      actors_[to].flow->receive(here.sends ? head : i, here.sends ? *there.region : *here.region, sent);
      return true;
    }
    return true;
  }

  // Over a boundary every micro-batch sends the like of what the first did. So what a pass over a loop receives is
  // known from the pass before.
  bool as_before(const Carried& carried, const FactRanges& sent) {
    const auto [known, added] = sent_.try_emplace({carried.boundary, carried.backward, carried.value}, sent);
    if (added) return true;
    const auto alike = [](FactRange a, FactRange b) {
      a.facts.phase = b.facts.phase = 0;  // an address
      return a.first == b.first && a.last == b.last && Flow::same(a.facts, b.facts);
    };
    return std::equal(sent.begin(), sent.end(), known->second.begin(), known->second.end(), alike);
  }

  void report(std::size_t stage, std::size_t i, const std::string& what) {
    found_.push_back(place_of("role " + std::to_string(stage), plan_.roles[stage], *actors_[stage].program, i) + what);
  }

  const Plan& plan_;
  const bool flows_;
  std::vector<std::string>& found_;
  std::map<std::tuple<std::int32_t, bool, std::int32_t>, FactRanges> sent_;  // by boundary, direction, value
  FlowTables tables_;
  std::vector<Actor> actors_;
};

}  // namespace

void prove_communication(const Plan& plan, std::size_t program, const MeshPoint& point,
                         std::vector<std::string>& found) {
  std::vector<const Program*> listed;
  for (const Role& role : plan.roles) listed.push_back(&role.programs[program]);
  Play(plan, listed, point, true, found).run();
  if (!found.empty() || std::none_of(listed.begin(), listed.end(), [](const Program* one) { return one->repeats(); }))
    return;
  std::vector<Program> meetings(plan.roles.size());
  std::vector<const Program*> all;
  for_each_index(plan.roles.size(),
                 [&](std::size_t i) { meetings[i] = meetings_of(plan.roles[i], plan.roles[i].programs[program]); });
  for (const Program& one : meetings) all.push_back(&one);
  Play(plan, all, point, false, found).run();
}

std::string place_of(const std::string& who, const Role& role, const Program& program, std::size_t i) {
  const std::string where = who + ", " + std::string(name_of(program.kind));
  if (i >= program.instructions.size()) return where + ": ";  // a program of nothing
  return where + " #" + std::to_string(i) + " (" + print(role, program.instructions[i].instruction) + "): ";
}

}  // namespace trainer
