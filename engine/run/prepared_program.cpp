// One visit per kind of instruction; nothing is looked up after it. Addresses are those of an instruction's first pass;
// behind loops, as moved on by all passes of the loop that it goes with. In a loop rings say how they move on.
#include "engine/run/prepared_program.h"

#include "engine/core/check.h"
#include "engine/core/environment.h"
#include "engine/plan/loop.h"

namespace trainer {
namespace {

class Preparing {
 public:
  Preparing(const Plan& plan, int rank, const Workplace& device, const Workplace& host)
      : plan_(plan),
        role_(plan.role_of(rank)),
        rank_(rank),
        point_{plan.mesh, plan.mesh.coordinates(rank)},
        device_(device),
        host_(host) {}

  PreparedProgram run(const Program& program) {
    result_.program = &program;
    result_.instructions.reserve(program.instructions.size());
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const Instruction& listed = program.instructions[i].instruction;
      PreparedInstruction& one = result_.instructions.emplace_back();
      one.instruction = &listed;
      index_ = static_cast<std::int32_t>(i);
      loop_ = program.loop_at(index_);
      here_ = program.instructions[i].stream == Stream::host ? &host_ : &device_;
      go_with(program.instructions[i].why.loop);
      one.first_ring = static_cast<std::uint32_t>(result_.rings.size());
      std::visit([&](const auto& instruction) { prepare(one, instruction); }, listed);
      one.num_rings = static_cast<std::uint32_t>(result_.rings.size()) - one.first_ring;
    }
    return std::move(result_);
  }

 private:
  int peer(Axis axis, std::int32_t distance) const {
    Coordinates at = point_.at;
    at[static_cast<std::size_t>(axis)] += distance;
    return plan_.mesh.rank(at);
  }

  // What is prepared next goes with that loop.
  void go_with(std::int32_t loop) {
    first_pass_ = loop_ == nullptr ? passes_behind(result_.program->loops, index_, loop) : 0;
  }

  // The address in the instruction's first pass. Where later ones have another, entry `at` of the table moves on.
  void* address(const Region& region, std::size_t at) {
    const std::int64_t begin = begin_of(role_.space_of(region));
    void* const first = here_->memory + (role_.address(region_after(role_, region, first_pass_), point_) - begin);
    if (loop_ == nullptr || region_after(role_, region, 1) == region) return first;
    const Buffer& buffer = role_.buffer(region.buffer);
    RingAddress& ring = result_.rings.emplace_back();
    ring.at = static_cast<std::uint32_t>(at);
    ring.stride = buffer.stride;
    ring.part = region.offset / buffer.stride;
    ring.advance = buffer.advance;
    ring.parts = buffer.parts();
    ring.base = static_cast<std::byte*>(first) - ring.part * ring.stride;
    return first;
  }

  void add_address(PreparedInstruction& one, const Region& region) {
    if (one.count++ == 0) one.first = static_cast<std::uint32_t>(result_.addresses.size());
    result_.addresses.push_back(address(region, result_.addresses.size()));
  }

  template <typename Part>
  void add_part(PreparedInstruction& one, const Part& part) {
    if (one.count++ == 0) one.first = static_cast<std::uint32_t>(result_.parts.size());
    go_with(part.loop);
    const Region& region = part.region.region;
    result_.parts.push_back({peer(part.axis, part.peer), address(region, result_.parts.size()), region.bytes});
  }

  void prepare(PreparedInstruction& one, const Launch& launch) {
    one.kernel = here_->kernels[static_cast<std::size_t>(launch.signature)].get();
    for (const Operand& operand : launch.operands) add_address(one, region_of(operand));
    one.workspace = launch.workspace.region.bytes > 0;
    if (one.workspace) add_address(one, launch.workspace.region);
    const Program& program = *result_.program;
    const std::int64_t step = program.repeats() ? program.loops.front().micro_batches * launch.origin_step : 0;
    one.origin = launch.origin.at(point_.at) + first_pass_ * step;
    one.origin_step = loop_ != nullptr ? step : 0;
  }

  void prepare(PreparedInstruction& one, const Collective& collective) {
    add_address(one, collective.input.region);
    add_address(one, collective.output.region);
    const auto members = plan_.mesh.group(rank_, collective.axes, collective.stages).size();
    one.slice_bytes = collective.input.region.bytes / static_cast<std::int64_t>(members);
  }

  void prepare(PreparedInstruction& one, const Exchange& exchange) {
    for (const auto& send : exchange.sends) add_part(one, send);
    for (const auto& receive : exchange.receives) add_part(one, receive);
  }

  void prepare(PreparedInstruction& one, const CopyIn& copy) { add_address(one, copy.region.region); }
  void prepare(PreparedInstruction& one, const CopyOut& copy) { add_address(one, copy.region.region); }
  void prepare(PreparedInstruction& one, const Move& move) {
    one.comes = role_.space_of(move.to.region) == Space::device;
    const Region& there = one.comes ? move.from.region : move.to.region;
    one.away = role_.address(there, point_) - begin_of(role_.space_of(there));
    add_address(one, one.comes ? move.to.region : move.from.region);
  }

  const Plan& plan_;
  const Role& role_;
  const int rank_;
  const MeshPoint point_;
  const Workplace device_, host_;
  PreparedProgram result_;
  // Of the instruction at hand.
  std::int32_t index_ = 0, first_pass_ = 0;
  const Loop* loop_ = nullptr;        // that it is in
  const Workplace* here_ = &device_;  // where it works
};

}  // namespace

std::span<const Communicator::Part> PreparedProgram::sends(const PreparedInstruction& one) const {
  return std::span(parts).subspan(one.first, std::get<Exchange>(*one.instruction).sends.size());
}

std::span<const Communicator::Part> PreparedProgram::receives(const PreparedInstruction& one) const {
  const std::size_t sent = sends(one).size();
  return std::span(parts).subspan(one.first + sent, one.count - sent);
}

PreparedProgram prepare_program(const Plan& plan, int rank, const Program& program, const Workplace& device,
                                const Workplace& host) {
  for (const Workplace* one : {&device, &host})
    CHECK(reinterpret_cast<std::uintptr_t>(one->memory) % kBufferAlignment == 0,
          "a plan's memory is aligned as its buffers are");
  return Preparing(plan, rank, device, host).run(program);
}

Issued issued_at(const Role& role, const Program& program, const Place& place) {
  return in_run(role, program, place.instruction, place.pass);
}

std::string text_of_place(const Role& role, const Program& program, std::int32_t number) {
  return print(role, issued_at(role, program, place_at(program, number)).instruction) + " (instruction #" +
         std::to_string(number) + " of " + std::string(name_of(program.kind)) + ")";
}

bool poison_scratch() {
#ifdef NDEBUG
  constexpr const char* kDefault = "0";
#else
  constexpr const char* kDefault = "1";
#endif
  return environment::value_of(environment::kPoison).value_or(kDefault) == "1";
}

}  // namespace trainer
