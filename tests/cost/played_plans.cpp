// How the plans are put together: a kernel or a message at a time.
#include "tests/cost/played_plans.h"

#include <map>
#include <tuple>

#include "engine/plan/assemble/transfers.h"

namespace trainer::cost {
namespace {

using Kind = Action::Kind;

constexpr std::size_t kCompute = 0, kCommunication = 1;

int num_kernels(const ActionKernels& kernels, Kind kind) {
  switch (kind) {
    case Kind::forward:
      return kernels.forward;
    case Kind::backward:
      return kernels.backward_input + kernels.backward_weight;
    case Kind::backward_input:
      return kernels.backward_input;
    case Kind::backward_weight:
      return kernels.backward_weight;
  }
  return 0;
}

class RoleMaker {
 public:
  RoleMaker(const Schedule& schedule, int stage, const ActionKernels& kernels, std::int64_t bytes)
      : schedule_(schedule), stage_(stage), kernels_(kernels), bytes_(bytes) {
    role_.signatures = {kernel_of(kernels.elements)};
    role_.names = {"x"};
    role_.programs = {{ProgramKind::step, {}}};
  }

  Role make(const std::vector<std::vector<Transfer>>& transfers) {
    const std::vector<Action>& actions = schedule_.stages[static_cast<std::size_t>(stage_)];
    for (std::size_t i = 0; i < actions.size(); ++i) {
      transfer(transfers[i]);
      act(actions[i]);
    }
    transfer(transfers.back());
    return std::move(role_);
  }

 private:
  std::vector<Issued>& step() { return role_.programs.front().instructions; }
  std::int32_t last() { return static_cast<std::int32_t>(step().size()) - 1; }

  void act(const Action& action) {
    const bool backward = action.kind != Kind::forward;
    for (int k = 0; k < num_kernels(kernels_, action.kind); ++k) {
      Issued issued{Stream::compute, Launch{}, {-1, -1, -1}};
      const auto received = received_.find({backward, action.micro_batch, action.chunk});
      if (k == 0 && action.kind != Kind::backward_weight && received != received_.end())
        issued.after[kCommunication] = received->second;
      step().push_back(issued);
    }
    made_[{backward, action.micro_batch, action.chunk}] = last();
  }

  void transfer(const std::vector<Transfer>& transfers) {
    if (transfers.empty()) return;
    Exchange exchange;
    std::int32_t after = -1;
    for (const Transfer& one : transfers) {
      const int here = one.send == one.backward ? one.boundary + 1 : one.boundary;
      Region region;
      region.bytes = bytes_;
      if (one.send) {
        exchange.sends.push_back({Axis::pipeline, one.peer - stage_, {region}});
        after = std::max(after, made_.at({one.backward, one.micro_batch, here}));
      } else {
        exchange.receives.push_back({Axis::pipeline, one.peer - stage_, {region}});
        received_[{one.backward, one.micro_batch, here}] = last() + 1;
      }
    }
    step().push_back({Stream::communication, exchange, {after, -1, -1}});
  }

  using Key = std::tuple<bool, int, int>;  // backward, micro-batch, chunk

  const Schedule& schedule_;
  const int stage_;
  const ActionKernels& kernels_;
  const std::int64_t bytes_;
  Role role_;
  std::map<Key, std::int32_t> made_, received_;  // by which instruction
};

}  // namespace

MachineModel round_machine() {
  MachineModel machine;
  machine.name = "round";
  machine.device.kind = DeviceKind::cuda;
  machine.device.memory_bytes = std::int64_t{80} << 30;
  machine.device.memory_bandwidth = {1e12, 0};
  machine.device.cache_bytes = 50 << 20;
  machine.device.units = 100;
  machine.device.clock_hz = 1.5e9;
  machine.device.capability = 90;
  machine.device.launch_us = {1, 0};
  machine.device.peak = {{DType::f32, {1e13, 0}}, {DType::bf16, {1e14, 0}}};
  machine.device.achievable = {{"matmul", {0.8, 0.1}},
                               {"attention_forward", {0.6, 0.1}},
                               {"attention_backward", {0.5, 0.1}},
                               {"memory", {0.9, 0.1}}};
  machine.devices_per_node = 8;
  machine.inside = {"nvlink", {1e11, 0}, {1, 0}, {0.8, 0}, true, false, 1};
  machine.between = LinkModel{"infiniband", {1e10, 0}, {5, 0}, {0.8, 0}, true, false, 1};
  return machine;
}

Signature kernel_of(std::int64_t elements) {
  const TensorDesc tensor{DType::f32, Shape{elements}};
  return {Op::add, {}, {tensor, tensor, tensor}};
}

Plan pipeline_plan(const Schedule& schedule, const ActionKernels& kernels, std::int64_t bytes) {
  Plan plan;
  plan.mesh.set(Axis::pipeline, static_cast<int>(schedule.stages.size()));
  const auto transfers = order_transfers(schedule);
  for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage)
    plan.roles.push_back(RoleMaker(schedule, static_cast<int>(stage), kernels, bytes).make(transfers[stage]));
  return plan;
}

}  // namespace trainer::cost
