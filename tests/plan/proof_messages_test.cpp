// Mutants of communication: whatever changes what is sent, received or summed is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"
#include "tests/plan/full_play.h"
#include "tests/plan/proof_jobs.h"

namespace trainer::tests::proof_messages_test {
namespace {

bool communicates(const Instruction& instruction) {
  return std::holds_alternative<Collective>(instruction) || std::holds_alternative<Exchange>(instruction);
}

std::vector<std::size_t> communications(const Program& program) {
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (communicates(program.instructions[i].instruction)) all.push_back(i);
  return all;
}

// One way to spoil communication number `at` of a program; false where it does not apply.
struct Mutation {
  std::string name;
  std::function<bool(const Plan&, Program&, std::size_t at)> apply;
};

template <typename T, typename Change>
std::function<bool(const Plan&, Program&, std::size_t)> change(Change how) {
  return [how](const Plan& plan, Program& program, std::size_t at) {
    auto* one = std::get_if<T>(&program.instructions[at].instruction);
    if (one == nullptr) return false;
    const T before = *one;
    return how(plan, *one) && !(*one == before);
  };
}

// The ranks that take part, as the mesh has them.
std::vector<int> members(const Plan& plan, const Collective& collective) {
  return plan.mesh.group(0, collective.axes, collective.stages);
}

auto with_axes(std::uint8_t flip) {
  return change<Collective>([flip](const Plan& plan, Collective& one) {
    const std::vector<int> before = members(plan, one);
    one.axes.mask ^= flip;
    return members(plan, one) != before;  // else it is the same group
  });
}

auto with_kind(CollectiveKind kind) {
  return change<Collective>([kind](const Plan& plan, Collective& one) {
    const auto n = static_cast<std::int64_t>(members(plan, one).size());
    const auto larger = one.input.region.bytes >= one.output.region.bytes ? one.input.region : one.output.region;
    const auto smaller = one.input.region.bytes >= one.output.region.bytes ? one.output.region : one.input.region;
    one.kind = kind;
    Region slice = smaller;
    if (smaller == larger)
      slice = one.axes == Axes::of(Axis::shard) ? own_slice(larger, one.axes, static_cast<int>(n))
                                                : Region(larger.buffer, larger.offset, larger.bytes / n);
    if (kind == CollectiveKind::reduce_scatter)
      one.input = {larger}, one.output = {slice};
    else if (kind == CollectiveKind::all_gather)
      one.input = {slice}, one.output = {larger};
    else
      one.input = {larger}, one.output = {larger};
    return true;
  });
}

auto with_dtype(DType dtype) {
  return change<Collective>([dtype](const Plan&, Collective& one) {
    one.dtype = dtype;
    return one.input.region.bytes % size_of(dtype) == 0 && one.output.region.bytes % size_of(dtype) == 0;
  });
}

auto with_regions(const std::function<void(Region&, std::int64_t width)>& how, bool input, bool output) {
  return [=](const Plan&, Program& program, std::size_t at) {
    if (auto* one = std::get_if<Collective>(&program.instructions[at].instruction)) {
      if (input) how(one->input.region, size_of(one->dtype));
      if (output) how(one->output.region, size_of(one->dtype));
      return true;
    }
    auto& one = std::get<Exchange>(program.instructions[at].instruction);
    if (input)
      for (auto& send : one.sends) how(send.region.region, 4);
    if (output)
      for (auto& receive : one.receives) how(receive.region.region, 4);
    return (input && !one.sends.empty()) || (output && !one.receives.empty());
  };
}

// The first part alone: all parts of an exchange are not to be shifted alike.
auto with_carried(const std::function<void(Carried&)>& how) {
  return change<Exchange>([how](const Plan&, Exchange& one) {
    how(one.sends.empty() ? one.receives.front().carried : one.sends.front().carried);
    return true;
  });
}

std::vector<Mutation> mutations() {
  const auto bit = [](Axis axis) { return Axes::of(axis).mask; };
  std::vector<Mutation> all{
      {"drop",
       [](const Plan&, Program& program, std::size_t at) {
         return program.instructions.erase(program.instructions.begin() + static_cast<std::ptrdiff_t>(at)), true;
       }},
      {"duplicate",
       [](const Plan&, Program& program, std::size_t at) {
         const Issued copy = program.instructions[at];
         return program.instructions.insert(program.instructions.begin() + static_cast<std::ptrdiff_t>(at), copy), true;
       }},
      {"swap",
       [](const Plan&, Program& program, std::size_t at) {
         const std::vector<std::size_t> order = communications(program);
         const auto next = std::upper_bound(order.begin(), order.end(), at);
         if (next == order.end() || program.instructions[at].instruction == program.instructions[*next].instruction)
           return false;
         std::swap(program.instructions[at], program.instructions[*next]);
         return true;
       }},
      {"fewer bytes", with_regions([](Region& region, std::int64_t width) { region.bytes -= width; }, true, true)},
      {"half the bytes", with_regions([](Region& region, std::int64_t) { region.bytes /= 2; }, true, true)},
      {"more bytes", with_regions([](Region& region, std::int64_t width) { region.bytes += width; }, true, true)},
      {"other input", with_regions([](Region& region, std::int64_t width) { region.offset += width; }, true, false)},
      {"other output", with_regions([](Region& region, std::int64_t width) { region.offset += width; }, false, true)},
      {"shifted",
       with_regions([](Region& region, std::int64_t width) { region.offset += width, region.bytes -= width; }, true,
                    true)},
      {"other slice",
       [](const Plan& plan, Program& program, std::size_t at) {
         const auto other = with_regions(
             [](Region& region, std::int64_t) {
               region.step = region.step == 0 ? 64 : 0, region.over = region.step == 0 ? Axes{} : kSliceAxes;
             },
             true, true);
         return plan.mesh.size(Axis::shard) > 1 && other(plan, program, at);
       }},
      {"peer", change<Exchange>([](const Plan&, Exchange& one) {
         for (auto& send : one.sends) send.peer = -send.peer;
         for (auto& receive : one.receives) receive.peer = -receive.peer;
         return true;
       })},
      {"axis of peer", change<Exchange>([](const Plan&, Exchange& one) {
         for (auto& send : one.sends) send.axis = Axis::tensor;
         for (auto& receive : one.receives) receive.axis = Axis::tensor;
         return true;
       })},
      {"send for receive", change<Exchange>([](const Plan&, Exchange& one) {
         const Exchange before = one;
         one.sends.clear(), one.receives.clear();
         for (const auto& send : before.sends)
           one.receives.push_back({send.axis, send.peer, {send.region.region}, send.carried});
         for (const auto& receive : before.receives)
           one.sends.push_back({receive.axis, receive.peer, {receive.region.region}, receive.carried});
         return true;
       })},
      {"one part less", change<Exchange>([](const Plan&, Exchange& one) {
         if (!one.sends.empty())
           one.sends.pop_back();
         else
           one.receives.pop_back();
         return true;
       })},
      {"carried micro-batch", with_carried([](Carried& carried) { ++carried.micro_batch; })},
      {"carried boundary", with_carried([](Carried& carried) { ++carried.boundary; })},
      {"carried direction", with_carried([](Carried& carried) { carried.backward = !carried.backward; })},
      {"carried value", with_carried([](Carried& carried) { ++carried.value; })},
      {"stages", change<Collective>([](const Plan& plan, Collective& one) {
         if (!one.axes.has(Axis::pipeline) || plan.roles.size() < 2) return false;
         if (one.stages.empty())
           for (std::size_t stage = 0; stage < plan.roles.size(); ++stage)
             one.stages.push_back(static_cast<std::int32_t>(stage));
         one.stages.pop_back();
         return true;
       })},
  };
  all.push_back({"stream", [](const Plan&, Program& program, std::size_t at) {
                   Stream& stream = program.instructions[at].stream;
                   stream = stream == Stream::background      ? Stream::communication
                            : stream == Stream::tensor        ? Stream::background
                            : stream == Stream::communication ? Stream::tensor
                                                              : stream;
                   return true;
                 }});
  for (Axis axis : kAxes) all.push_back({"axes", with_axes(bit(axis))});
  all.push_back({"axes", with_axes(bit(Axis::shard) | bit(Axis::tensor))});
  all.push_back({"axes", with_axes(bit(Axis::shard) | bit(Axis::replicate))});
  for (CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter, CollectiveKind::all_gather,
                              CollectiveKind::all_to_all, CollectiveKind::shift})
    all.push_back({"kind", with_kind(kind)});
  for (DType dtype : {DType::f32, DType::bf16, DType::f64, DType::i32}) all.push_back({"dtype", with_dtype(dtype)});
  return all;
}

// Whether the two communications that a swap exchanged touch each other's bytes: if not, and all ranks still meet,
// nothing has changed.
bool independent(const Role& role, const Instruction& a, const Instruction& b) {
  bool apart = true;
  for_each_access(a, [&](Access first, const Region& one) {
    for_each_access(b, [&](Access second, const Region& other) {
      if (first == Access::read && second == Access::read) return;
      const auto begin = [&](const Region& region) {
        return role.buffer(region.buffer).offset + (region.step == 0 ? region.offset : 0);
      };
      const auto bytes = [&](const Region& region) {
        return region.step == 0 ? region.bytes : role.buffer(region.buffer).bytes;
      };  // slices of all ranks
      if (begin(one) < begin(other) + bytes(other) && begin(other) < begin(one) + bytes(one)) apart = false;
    });
  });
  return apart;
}

// Whether communication `at` may be on either stream: it joins no stages, and is all that its group does.
bool may_move(const Program& program, std::size_t at) {
  const auto* mine = std::get_if<Collective>(&program.instructions[at].instruction);
  if (mine == nullptr || mine->axes.has(Axis::pipeline)) return false;
  return std::count_if(program.instructions.begin(), program.instructions.end(), [&](const Issued& issued) {
           const auto* other = std::get_if<Collective>(&issued.instruction);
           return other != nullptr && other->axes == mine->axes;
         }) == 1;
}

// Whether a sum of gradients takes in, or leaves out, nothing but the zeros between and behind the tensors of its unit.
bool only_padding(const Role& role, const Instruction& before, const Instruction& after) {
  const auto *was = std::get_if<Collective>(&before), *is = std::get_if<Collective>(&after);
  if (was == nullptr || is == nullptr || was->kind != CollectiveKind::all_reduce ||
      is->kind != CollectiveKind::all_reduce)
    return false;
  const Region &a = was->input.region, &b = is->input.region;
  const std::string& name = role.name(was->name);
  for (const Unit& unit : role.units) {
    if ((name != unit.name && name != unit.name + ".partial") ||
        role.buffer(a.buffer).bytes != unit.elements * size_of(was->dtype))
      continue;
    const auto covers = [&](const Region& region, std::int64_t element) {
      return region.offset <= element * size_of(was->dtype) &&
             (element + 1) * size_of(was->dtype) <= region.offset + region.bytes;
    };
    for (const UnitTensor& tensor : unit.tensors)
      for (std::int64_t element = tensor.offset; element < tensor.offset + tensor.elements; ++element)
        if (covers(a, element) != covers(b, element)) return false;
    return true;
  }
  return false;
}

}  // namespace

TEST_CASE("whatever changes what is communicated is refused, on one role or on all") {
  const ProofJobs jobs;
  const std::vector<Mutation> all = mutations();
  std::map<std::string, Tally> tallies;
  Dice dice(11);
  int stuck = 0;
  constexpr int kEach = 100;
  const std::vector<ProofCase> from = all_cases();
  for (std::size_t number = 0; number < 2 * from.size(); ++number) {  // each on one stream and on several
    const ProofCase& one = from[number / 2];
    std::vector<std::string> overrides = one.overrides;
    overrides.emplace_back("data.val={fraction: 0.2}");
    Plan plan = jobs.plan(one.model, overrides, number % 2 == 0 ? 1 : 2 + static_cast<int>(number / 2 % 2));
    const Plan right = plan;
    REQUIRE(play_all_ranks(plan).empty());
    for (int mutant = 0; mutant < kEach; ++mutant) {
      const std::size_t stage = dice.below(plan.roles.size()), any = dice.below(plan.roles[stage].programs.size());
      const Program& program = right.roles[stage].programs[dice.below(3) == 0 ? any : 0];
      const auto index = static_cast<std::size_t>(&program - right.roles[stage].programs.data());
      const std::vector<std::size_t> order = communications(program);
      if (order.empty()) continue;
      const std::size_t turn = dice.below(order.size());
      const Mutation& mutation = all[dice.below(all.size())];
      const bool everywhere = plan.roles.size() > 1 && dice.below(2) == 0;
      bool changed = false, apart = true;
      for (std::size_t other = 0; other < plan.roles.size(); ++other) {
        if (!everywhere && other != stage) continue;
        Program& of = plan.roles[other].programs[index];
        const std::vector<std::size_t> their = communications(of);
        if (turn >= their.size()) continue;
        if (mutation.name == "swap" && turn + 1 < their.size())
          apart = apart && independent(plan.roles[other], of.instructions[their[turn]].instruction,
                                       of.instructions[their[turn + 1]].instruction);
        if (!mutation.apply(plan, of, their[turn])) continue;
        changed = true;
        // A number that both ends of a message change alike is still one of its own.
        if (everywhere && (mutation.name == "carried boundary" || mutation.name == "carried value")) continue;
        const bool bytes = mutation.name.ends_with("bytes");
        if (bytes)
          apart = apart && only_padding(plan.roles[other],
                                        right.roles[other].programs[index].instructions[their[turn]].instruction,
                                        of.instructions[their[turn]].instruction);
        else if (mutation.name == "stream")
          apart = apart && may_move(of, their[turn]);
        else if (mutation.name != "swap")
          apart = false;
        derive_order(plan.roles[other], plan.mesh);
      }
      if (changed) {
        const std::vector<std::string> found = violations(plan);
        Tally& tally = tallies[mutation.name];
        CAPTURE(one.text());
        CAPTURE(mutation.name);
        CAPTURE(everywhere);
        CAPTURE(std::string(name_of(program.kind)) + " #" + std::to_string(order[turn]) + " " +
                print(right.roles[stage], program.instructions[order[turn]].instruction));
        if (!found.empty())
          ++tally.refused;
        else if (apart)
          ++tally.equivalent;
        else {
          ++tally.accepted;
          CHECK_MESSAGE(false, "accepted");
        }
        // Where nothing else is wrong first, playing all ranks and playing one a role come to the same.
        const bool lonely = !found.empty() && std::all_of(found.begin(), found.end(), [](const std::string& line) {
          return line.ends_with("waits for ever") || line.ends_with("never joins");
        });
        if (lonely) {
          ++stuck;
          CHECK(!play_all_ranks(plan).empty());
        }
        if (found.empty()) CHECK(play_all_ranks(plan).empty());
      }
      plan = right;
    }
  }
  for (const auto& [name, tally] : tallies) {
    MESSAGE(name << ": " << tally.refused << " refused, " << tally.equivalent << " equivalent, " << tally.accepted
                 << " accepted");
    CHECK(tally.refused > 0);
  }
  CHECK(stuck > 20);
  MESSAGE(stuck << " of them refused for nothing but ranks that wait for ever");
}

}  // namespace trainer::tests::proof_messages_test
