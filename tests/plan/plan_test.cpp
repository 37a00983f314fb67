// Order, memory, verification and text of plans, on small plans written out by hand.
#include "engine/plan/plan.h"

#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "engine/plan/memory.h"
#include "engine/plan/verify/verify.h"

using namespace trainer;

namespace {

// Two data ranks: a gradient is computed, reduced on the other stream while more is computed, and then used.
constexpr std::string_view kOverlap = R"(plan 1
mesh replicate=2
role 0 persistent=0 total=0 scalars=b-1 applied=b-1
buffer 0 w parameters mb=-1 program=-1 bytes=256 at=-1
buffer 1 x inputs mb=-1 program=0 bytes=256 at=-1
buffer 2 g gradients mb=-1 program=0 bytes=256 at=-1
buffer 3 y activations mb=0 program=0 bytes=256 at=-1
buffer 4 z activations mb=0 program=0 bytes=256 at=-1
field 0 x batch f32[128]@replicate:0/1/1 256
signature 0 gelu approximate='tanh' f32[64] f32[64]
signature 1 add f32[64] f32[64] f32[64]
signature 2 sum_leading f32[1,64] f32[64]
unit unit.0 f32 elements=64 decay=64 optimizer=0 stages=own
slot working working f32[64] b0+0:256 persistent
slot master master f32[64] b0+0:256 persistent saved
slot gradient gradient f32[64] b2+0:256
tensor w f32[64] at=0 elements=64 partial=none stddev=0.0 constant=0.0 uniform=0.125
program step
copy copy_in f0+0 b1+0:256 # load
compute launch sum_leading s2 first read b1+0:256 write b2+0:256 # backward mb=0 chunk=0 node=2
communication all_reduce f32 replicate unit.0 in b2+0:256 out b2+0:256 # reduce mb=0 chunk=0 unit=0
compute launch gelu s0 second read b1+0:256 write b3+0:256 # backward recomputed mb=0 chunk=0 node=3
compute launch gelu s0 third read b3+0:256 write b4+0:256 # backward mb=0 chunk=0 node=4
compute launch add s1 update read b0+0:256 read b2+0:256 write b0+0:256 # update unit=0
)";

Plan finished(std::string_view text) {
  Plan plan = parse_plan(text);
  for (Role& role : plan.roles) {
    plan_memory(role);
    derive_order(role, plan.mesh);
  }
  return plan;
}

std::vector<Issued>& step_of(Plan& plan) { return plan.roles[0].programs[0].instructions; }

bool mentions(const std::vector<std::string>& found, std::string_view what) {
  for (const std::string& line : found)
    if (line.find(what) != std::string::npos) return true;
  return false;
}

}  // namespace

TEST_CASE("text round-trips and has one hash") {
  Plan plan = finished(kOverlap);
  plan.roles[0].signatures[0].attributes.set("rope_scaling",
                                             std::string("longrope;attention_factor=1.5;factors=1,2.25"));
  const std::string text = print(plan);
  const Plan again = parse_plan(text);
  CHECK(print(again) == text);
  CHECK(hash_of(again) == hash_of(plan));
  CHECK(again.roles[0].signatures == plan.roles[0].signatures);
  CHECK(again.roles[0].programs == plan.roles[0].programs);
  CHECK(again.roles[0].units[0].tensors[0].init.uniform == 0.125);
}

TEST_CASE("an instruction's line says why it is there, and an exchange's what each part carries") {
  using Phase = Provenance::Phase;
  Plan plan = finished(kOverlap);
  const std::vector<Issued>& step = step_of(plan);
  CHECK(step[2].why == Provenance{Phase::reduce, false, 0, 0, 0, -1});
  CHECK(step[3].why == Provenance{Phase::backward, true, 0, 0, -1, 3});
  CHECK(step[5].why == Provenance{Phase::update, false, -1, -1, 0, -1});
  Exchange exchange;
  exchange.sends.push_back({Axis::pipeline, 1, {{0, 0, 256}}, {3, false, 2, 17}});
  exchange.receives.push_back({Axis::pipeline, -1, {{1, 0, 256}}, {2, true, 1, 18}});
  for (int phase = 0; name_of(static_cast<Phase>(phase)) != "?"; ++phase)
    step_of(plan).push_back(
        {Stream::communication, exchange, {}, {static_cast<Phase>(phase), phase % 2 == 0, 7, 8, 9, 10}});
  const Plan again = parse_plan(print(plan));
  CHECK(again.roles[0].programs == plan.roles[0].programs);
  CHECK(print(plan).find("send pipeline 1 b0+0:256 forward=3 mb=2 value=17 receive pipeline -1 b1+0:256 backward=2 "
                         "mb=1 value=18 # forward mb=8 chunk=7 unit=9 node=10\n") != std::string::npos);
}

TEST_CASE("text that is no plan names its line") {
  CHECK_THROWS_WITH_AS(parse_plan("plan 2\n"), "plan text, line 1: expected 1", DataError);
  CHECK_THROWS_AS(parse_plan(std::string(kOverlap) + "compute launch gelu s9 x # load\n"), DataError);
  CHECK_THROWS_AS(parse_plan(std::string(kOverlap) + "compute fly # load\n"), DataError);
  for (const char* line : {"program fly\n", "program step\n", "field 1 y batch 4\n", "field 1 y fly f32[1] 4\n",
                           "field 1 y batch f32[1]:packed 4\n"})
    CHECK_THROWS_AS(parse_plan(std::string(kOverlap) + line), DataError);
  for (const char* why :
       {"", " #", " # ", " # fly", " # load mb=-1", " # load unit=0 mb=0", " # load chunk=40000", " # load 3"})
    CHECK_THROWS_AS(parse_plan(std::string(kOverlap) + "copy copy_in f0+0 b1+0:256" + why + "\n"), DataError);
  for (std::size_t length = 0; length < kOverlap.size(); length += 7) {  // no prefix crashes
    try {
      parse_plan(kOverlap.substr(0, length));
    } catch (const DataError&) {
    }
  }
}

TEST_CASE("waits across streams are just those the data asks for") {
  Plan plan = finished(kOverlap);
  const auto& step = step_of(plan);
  const auto after = [&](std::size_t i, Stream stream) { return step[i].after[static_cast<std::size_t>(stream)]; };
  CHECK(after(1, Stream::copy) == 0);
  CHECK(after(2, Stream::compute) == 1);
  CHECK(after(3, Stream::communication) == -1);  // computation goes on under the reduction
  CHECK(after(4, Stream::communication) == -1);
  CHECK(after(5, Stream::communication) == 2);
  CHECK(violations(plan).empty());
}

TEST_CASE("memory is reused when a lifetime ends, and never before") {
  Plan plan = finished(kOverlap);
  const Role& role = plan.roles[0];
  CHECK(role.persistent_bytes == 256);
  CHECK(role.total_bytes == 4 * 256);  // w, and three of x, g, y, z at a time
  CHECK(role.buffers[4].offset == role.buffers[1].offset);
  const MemoryReport report = report_memory(role);
  CHECK(report.peak_bytes == role.total_bytes);
  std::int64_t sum = 0;
  for (std::int64_t bytes : report.by_category) sum += bytes;
  CHECK(sum == report.peak_bytes);
}

TEST_CASE("a missing wait is found") {
  Plan plan = finished(kOverlap);
  step_of(plan)[5].after[static_cast<std::size_t>(Stream::communication)] = -1;
  CHECK(mentions(violations(plan), "without waiting"));
  CHECK_THROWS_AS(verify(plan), Bug);
}

TEST_CASE("a wait on what comes later is found") {
  Plan plan = finished(kOverlap);
  step_of(plan)[1].after[static_cast<std::size_t>(Stream::communication)] = 2;
  CHECK(mentions(violations(plan), "not before it"));
}

TEST_CASE("memory taken over while still needed is found") {
  Plan plan = finished(kOverlap);
  plan.roles[0].buffers[3].offset = plan.roles[0].buffers[2].offset;  // y over g
  derive_order(plan.roles[0], plan.mesh);
  CHECK(mentions(violations(plan), "taken over"));
}

TEST_CASE("a read of what nobody wrote is found") {
  Plan plan = finished(kOverlap);
  step_of(plan).erase(step_of(plan).begin() + 3);
  derive_order(plan.roles[0], plan.mesh);
  CHECK(mentions(violations(plan), "nothing has written"));
}

TEST_CASE("a region beyond its buffer is found") {
  Plan plan = finished(kOverlap);
  std::get<Collective>(step_of(plan)[2].instruction).input.region.bytes = 512;
  CHECK(!violations(plan).empty());
}

TEST_CASE("fields that are not made of parts, and copies against their direction, are found") {
  const auto with_field = [](std::string_view field) {
    std::string text(kOverlap);
    const std::string_view right = "field 0 x batch f32[128]@replicate:0/1/1 256";
    return violations(finished(text.replace(text.find(right), right.size(), field)));
  };
  CHECK(with_field("field 0 x batch f32[128]@replicate:0/1/1 256").empty());
  CHECK(with_field("field 0 x batch f32[32]@replicate:0/1/1 256").empty());  // four parts
  CHECK(mentions(with_field("field 0 x batch f32[6]@replicate:0/1/1 256"), "has a field that is not made of parts: x"));
  CHECK(mentions(with_field("field 0 x result f32[64] 256"), "reads what the loop is told"));
  Plan plan = finished(kOverlap);
  plan.roles[0].fields.push_back({"lr", Field::Kind::scalar, Spec(DType::f32, Shape{64}), 256});
  step_of(plan).push_back({Stream::copy, CopyOut{1, 0, {{4, 0, 256}}}, {}, {}});
  derive_order(plan.roles[0], plan.mesh);
  CHECK(mentions(violations(plan), "writes what the loop gives"));
}

TEST_CASE("communication off its stream is found") {
  Plan plan = finished(kOverlap);
  step_of(plan)[2].stream = Stream::compute;
  derive_order(plan.roles[0], plan.mesh);
  CHECK(mentions(violations(plan), "off the communication stream"));
}

namespace {

// Two pipeline stages: the first makes x and passes it on, the second makes y and passes it back.
std::string two_stages(std::string_view first, std::string_view second) {
  std::string text = "plan 1\nmesh pipeline=2\n";
  for (const auto& [stage, body] : {std::pair{0, first}, std::pair{1, second}})
    text += "role " + std::to_string(stage) +
            " persistent=0 total=0 scalars=b-1 applied=b-1\nbuffer 0 a activations mb=0 program=-1 bytes=64 at=-1\n"
            "buffer 1 b activations mb=0 program=-1 bytes=64 at=-1\nsignature 0 zero u8[64]\nprogram step\n" +
            std::string(body);
  return text;
}

const std::string kMakeX = "compute launch zero s0 x write b0+0:64 # forward mb=0 chunk=0\n";
const std::string kMakeY = "compute launch zero s0 y write b1+0:64 # backward mb=0 chunk=1\n";
const std::string kExchange = "communication exchange z", kTransfer = " # transfer\n";
const std::string kPartX = " forward=0 mb=0 value=0", kPartY = " backward=0 mb=0 value=1";
const std::string kSendX = " send pipeline 1 b0+0:64" + kPartX, kReceiveX = " receive pipeline -1 b0+0:64" + kPartX;
const std::string kSendY = " send pipeline -1 b1+0:64" + kPartY, kReceiveY = " receive pipeline 1 b1+0:64" + kPartY;
std::string exchange(const std::string& parts) { return kExchange + parts + kTransfer; }

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const std::size_t at = text.find(what);
  REQUIRE(at != std::string::npos);
  return text.replace(at, what.size(), with);
}

}  // namespace

TEST_CASE("sends meet their receives") {
  const Plan plan = finished(
      two_stages(kMakeX + exchange(kSendX) + exchange(kReceiveY), kMakeY + exchange(kReceiveX) + exchange(kSendY)));
  CHECK(violations(plan).empty());
}

TEST_CASE("both ends of a message carry the same, and a stage has made what it sends for that") {
  const auto found = [&](const std::string& make, const std::string& send, const std::string& receive) {
    return violations(finished(two_stages(make + exchange(send), exchange(receive))));
  };
  CHECK(found(kMakeX, kSendX, kReceiveX).empty());
  for (const char* other :
       {" backward=0 mb=0 value=0", " forward=1 mb=0 value=0", " forward=0 mb=1 value=0", " forward=0 mb=0 value=1"}) {
    CAPTURE(std::string(other));
    CHECK(mentions(found(kMakeX, replaced(kSendX, kPartX, other), kReceiveX), "takes it for"));
    CHECK(mentions(found(kMakeX, kSendX, replaced(kReceiveX, kPartX, other)), "takes it for"));
  }
  const std::string back = " backward=0 mb=0 value=0", later = " forward=0 mb=1 value=0";
  CHECK(mentions(found(kMakeX, replaced(kSendX, kPartX, back), replaced(kReceiveX, kPartX, back)),
                 "sends what it has not made for that"));
  CHECK(mentions(found(kMakeX, replaced(kSendX, kPartX, later), replaced(kReceiveX, kPartX, later)),
                 "takes it for"));  // the buffers are of micro-batch 0
  const auto made_for = [&](const char* why) {
    return found(replaced(kMakeX, "# forward mb=0 chunk=0", why), kSendX, kReceiveX);
  };
  for (const char* why : {"# forward mb=0 chunk=1", "# backward mb=0 chunk=0", "# load"}) {
    CAPTURE(std::string(why));
    CHECK(mentions(made_for(why), "sends what it has not made for that"));
  }
  CHECK(mentions(made_for("# forward mb=1 chunk=0"), "touches what is of another micro-batch"));
}

TEST_CASE("two stages that both send first wait for ever, unless in one exchange") {
  const std::string apart =
      two_stages(kMakeX + exchange(kSendX) + exchange(kReceiveY), kMakeY + exchange(kSendY) + exchange(kReceiveX));
  CHECK(mentions(violations(finished(apart)), "waits for ever"));
  const std::string together = two_stages(kMakeX + exchange(kSendX + kReceiveY), kMakeY + exchange(kSendY + kReceiveX));
  CHECK(violations(finished(together)).empty());
}

TEST_CASE("stages that cross each other wait for ever, whatever a second stream does meanwhile") {
  const std::string sum = "background all_reduce f32 replicate g in b2+0:64 out b2+0:64 # reduce\n";
  const auto replicated = [&](const std::string& first, const std::string& second) {
    std::string text =
        replaced(two_stages(kMakeX + first, kMakeY + second), "mesh pipeline=2", "mesh pipeline=2 replicate=2");
    for (std::size_t at = 0; (at = text.find("signature 0", at)) != std::string::npos; at += 80)
      text.insert(at, "buffer 2 c gradients mb=0 program=-1 bytes=64 at=-1\n");
    return violations(finished(text));
  };
  const std::string send_x = exchange(kSendX), receive_x = exchange(kReceiveX), send_y = exchange(kSendY),
                    receive_y = exchange(kReceiveY);
  CHECK(mentions(replicated(send_x + sum + receive_y, send_y + sum + receive_x), "waits for ever"));
  CHECK(!mentions(replicated(send_x + sum + receive_y, receive_x + send_y + sum), "waits for ever"));
  CHECK(mentions(replicated("background" + send_x.substr(13) + receive_y, receive_x + send_y),
                 "joins stages on the background stream"));
}

TEST_CASE("a send of another size than its receive is found") {
  const Plan plan =
      finished(two_stages(kMakeX + exchange(kSendX), exchange(replaced(kReceiveX, "b0+0:64", "b0+0:32"))));
  CHECK(mentions(violations(plan), "expects 32 bytes"));
}

TEST_CASE("a receive without a send, and a peer outside the mesh, are found") {
  CHECK(mentions(violations(finished(two_stages(exchange(kReceiveY), ""))), "waits for ever"));
  CHECK(mentions(violations(finished(two_stages(kMakeY + exchange(kSendY), ""))), "outside the mesh"));
}
