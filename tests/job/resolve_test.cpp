// What `auto` comes to, for every kind of data strategy.
#include "engine/job/resolve.h"

#include <doctest/doctest.h>

namespace trainer::resolve_test {
namespace {

struct Row {
  DataKind kind;
  Sharding sharding;
  bool states, gradients, parameters;
  Keep keep, keep_pipelined;
  Reduce reduce;
};

// Section 5 of ZeRO's paper and PyTorch's documentation of FSDP say what is cut; a pipeline keeps gathered copies for
// the step.
const Row kTable[] = {
    {DataKind::ddp, {}, false, false, false, Keep::step, Keep::step, Reduce::step},
    {DataKind::zero1, {}, true, false, false, Keep::step, Keep::step, Reduce::step},
    {DataKind::zero2, {}, true, true, false, Keep::step, Keep::step, Reduce::micro_batch},
    {DataKind::zero3, {}, true, true, true, Keep::use, Keep::step, Reduce::micro_batch},
    {DataKind::fsdp, Sharding::full_shard, true, true, true, Keep::use, Keep::step, Reduce::micro_batch},
    {DataKind::fsdp, Sharding::hybrid_shard, true, true, true, Keep::use, Keep::step, Reduce::micro_batch},
    {DataKind::fsdp, Sharding::shard_grad_op, true, true, true, Keep::pass, Keep::step, Reduce::micro_batch},
    {DataKind::fsdp, Sharding::no_shard, false, false, false, Keep::step, Keep::step, Reduce::step},
    {DataKind::local_sgd, {}, false, false, false, Keep::step, Keep::step, Reduce::step},
};

TEST_CASE("what a data strategy leaves to auto is what its paper does, and pipelines keep what they gathered") {
  for (const Row& row : kTable) {
    CAPTURE(name_of(row.kind));
    CAPTURE(name_of(row.sharding));
    DataStrategyJob data;
    data.kind = row.kind;
    data.sharding = row.sharding;
    CHECK(resolve(data, false) == ResolvedData{row.states, row.gradients, row.parameters, row.keep, row.reduce});
    CHECK(resolve(data, true) ==
          ResolvedData{row.states, row.gradients, row.parameters, row.keep_pipelined, row.reduce});
  }
}

TEST_CASE("what a job says of keep and reduce holds, pipeline or none") {
  for (const bool pipelined : {false, true}) {
    for (const Keep keep : {Keep::use, Keep::pass, Keep::step}) {
      DataStrategyJob data;
      data.kind = DataKind::zero3;
      data.keep = keep;
      data.reduce = Reduce::step;
      CHECK(resolve(data, pipelined).keep == keep);
      CHECK(resolve(data, pipelined).reduce == Reduce::step);
    }
    DataStrategyJob data;
    data.reduce = Reduce::micro_batch;
    CHECK(resolve(data, pipelined).reduce == Reduce::micro_batch);
  }
}

}  // namespace
}  // namespace trainer::resolve_test
