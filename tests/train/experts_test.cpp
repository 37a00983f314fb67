// Training with experts: ranks train as one rank does, however samples, parameters, layers or experts' hidden layers
// are cut, and with documents packed; recomputation changes nothing; and what cannot be cut is told.
//
// Bounds: as batch_norm_test.cpp; and that the same experts are chosen everywhere, which a step in which two scores
// agree to f32's roundings would break. None of these steps has such scores.
#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/train/mixture_jobs.h"

using namespace trainer;
using namespace trainer::tests;

TEST_CASE("experts learn, and ranks train them as one rank does") {
  const Jobs jobs;
  const Trained one = jobs.train("one", {"train.steps=12"});
  CHECK(one.loss.back() < one.loss.front() - 0.2);
  struct Line {
    int ranks;
    const char* strategy;
    Overrides more{};
  };
  int folder = 0;
  for (const Line& line : std::vector<Line>{
           {2, "ddp"},
           {4, "zero1"},
           {2, "zero2"},
           {4, "fsdp"},
           {4, "{data: {kind: fsdp, sharding: hybrid_shard, replicate: 2}}"},
           {2, "tensor"},
           {4, "{tensor: {degree: 4}}"},
           {4, "{data: {kind: fsdp}, tensor: {degree: 2}}"},
           {2, "{tensor: {degree: 2, sequence_parallel: true}}"},
           {2, "{pipeline: {degree: 2, schedule: 1f1b}}", {"train.batch.micro=2"}},
           {4, "{pipeline: {degree: 2, schedule: zb_h1}, tensor: {degree: 2}}", {"train.batch.micro=2"}},
           {4, "{data: {kind: zero1}, pipeline: {degree: 2, schedule: gpipe}}", {"train.batch.micro=1"}},
           {2, "{context: {degree: 2}}"},
           {1, "ddp", {"activation_checkpointing.mode=full"}},
           {2, "fsdp", {"activation_checkpointing.mode=selective", "train.batch.micro=1"}},
       }) {
    CAPTURE(line.strategy);
    const Trained got = jobs.train("run" + std::to_string(folder++),
                                   on(line.ranks, line.strategy, both({"train.steps=12"}, line.more)));
    check_same(got, one, kBound);
  }
}

TEST_CASE("in bf16 experts train nearly as in f32, and on two ranks as on one") {
  const Jobs jobs;
  const Overrides bf16{"precision.compute=bf16", "train.steps=3"};
  const Trained want = jobs.train("f32", {"train.steps=3"}), one = jobs.train("one", bf16);
  for (const char* strategy : {"ddp", "tensor"}) {
    CAPTURE(strategy);
    const Trained two = jobs.train(strategy, on(2, strategy, bf16));
    for (std::size_t step = 0; step < want.loss.size(); ++step) {
      CHECK(std::abs(one.loss[step] - want.loss[step]) < 0.05);
      CHECK(std::abs(two.loss[step] - one.loss[step]) < 0.05);
    }
  }
}

TEST_CASE("sigmoid scores and groups train alike on ranks") {
  const Jobs jobs;
  const Overrides with{"model.with.score=sigmoid", "model.with.groups=2", "model.with.shared=false"};
  check_same(jobs.train("two", on(2, "tensor", with)), jobs.train("one", with), kBound);
}

TEST_CASE(
    "losses of routers add to the gradient and not to the loss, alike however many ranks and micro-batches there are") {
  const Jobs jobs;
  const Overrides with{"model.with.aux=0.5", "model.with.z=0.05"};
  const Trained plain = jobs.train("plain"), one = jobs.train("one", with);
  CHECK(plain.aux_loss.empty());
  REQUIRE(one.aux_loss.size() == one.loss.size());
  CHECK(one.loss[0] == plain.loss[0]);
  CHECK(one.grad_norm[0] != plain.grad_norm[0]);
  CHECK(one.aux_loss[0] > 4 * 0.5);  // of each of 4 layers at least aux, where shares and probabilities go together
  CHECK(one.aux_loss.back() < one.aux_loss.front());
  int folder = 0;
  for (const Overrides& line :
       std::vector<Overrides>{on(1, "ddp", {"train.batch.micro=2"}), on(2, "ddp"), on(4, "fsdp"), on(2, "tensor"),
                              on(2, "{pipeline: {degree: 2}}", {"train.batch.micro=2"}),
                              on(1, "ddp", {"activation_checkpointing.mode=full"})})
    check_same(jobs.train("run" + std::to_string(folder++), both(with, line)), one, kBound);
}

TEST_CASE("what an expert has no room for is left out, counted, and the same on every rank") {
  const Jobs jobs;
  const Overrides tight{"model.with.capacity=0.5", "model.with.aux=0.1"};
  const Trained one = jobs.train("one", tight), roomy = jobs.train("roomy", {"model.with.capacity=4"}),
                all = jobs.train("all");
  CHECK(one.dropped[0] >= 8 * 4 * 8);  // of 8 samples in 4 layers: experts take 2 of 16 choices each, 8 are left out
  CHECK(roomy.dropped == std::vector<std::int64_t>(6, 0));
  CHECK(tensors_of(roomy.report.checkpoint) == tensors_of(all.report.checkpoint));
  check_same(jobs.train("ddp", on(2, "ddp", tight)), one, kBound);
  check_same(jobs.train("tensor",
                        on(2, "{data: {kind: ddp}, tensor: {degree: 2}}", both(tight, {"cluster.devices_per_node=4"}))),
             one, kBound);
}

TEST_CASE("losses and capacities of whole samples do not take a part of the sequence, nor rows of it") {
  const Jobs jobs;
  for (const char* strategy : {"{context: {degree: 2}}", "{context: {degree: 2, kind: ring}}",
                               "{tensor: {degree: 2, sequence_parallel: true}}"})
    for (const char* of : {"model.with.aux=0.1", "model.with.z=0.1", "model.with.capacity=1"}) {
      CAPTURE(strategy);
      CAPTURE(of);
      try {
        jobs.train("x", on(2, strategy, {of}));
        FAIL("took a part of the sequence");
      } catch (const JobError& error) {
        const std::string what = error.what();
        CHECK_MESSAGE(what.find("of whole samples") != std::string::npos, what);
        CHECK(what.find("mixture.yaml:") != std::string::npos);
        CHECK(what.find(std::string(of).find("capacity") == std::string::npos ? "gate" : "experts") !=
              std::string::npos);
      }
    }
}

TEST_CASE("the hidden layer of an expert divides by the ranks that cut it") {
  const Jobs jobs;
  try {
    jobs.train("x", on(3, "{tensor: {degree: 3}}", {"train.batch.global=9"}));
    FAIL("took three ranks");
  } catch (const JobError& error) {
    CHECK(std::string(error.what()).find("expert") != std::string::npos);
  }
}
