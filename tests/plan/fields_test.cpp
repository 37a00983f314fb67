// Fields and programs of all golden jobs: what their types say, held against what the programs copy and launch.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>

#include "tests/plan/golden_jobs.h"

using namespace trainer;
using namespace trainer::tests;

namespace {

struct Known {
  Field::Kind kind;
  DType dtype;
};
const std::map<std::string, Known> kKnown{
    {"tokens", {Field::Kind::batch, DType::i32}},      {"targets", {Field::Kind::batch, DType::i32}},
    {"features", {Field::Kind::batch, DType::f32}},    {"images", {Field::Kind::batch, DType::f32}},
    {"logits", {Field::Kind::batch, DType::f32}},      {"lr", {Field::Kind::scalar, DType::f32}},
    {"step", {Field::Kind::scalar, DType::i32}},       {"metrics", {Field::Kind::result, DType::f32}},
    {"evaluation", {Field::Kind::result, DType::f64}}, {"position", {Field::Kind::scalar, DType::i32}},
    {"last", {Field::Kind::batch, DType::i32}},        {"newest", {Field::Kind::batch, DType::i32}},
};

// The first operand that reads a region of the inputs with that name.
const TensorDesc* read_as(const Role& role, const std::string& field) {
  for (const Program& program : role.programs)
    for (const Issued& issued : program.instructions) {
      const auto* launch = std::get_if<Launch>(&issued.instruction);
      if (launch == nullptr) continue;
      for (std::size_t i = 0; i < launch->operands.size(); ++i) {
        const Buffer& buffer = role.buffer(region_of(launch->operands[i]).buffer);
        if (buffer.category == Category::inputs && role.name(buffer.name) == field && issued.why.node >= 0)
          return &role.signatures[static_cast<std::size_t>(launch->signature)].operands[i];
      }
    }
  return nullptr;
}

const Signature* evaluation_runs(const Plan& plan, std::initializer_list<Op> ops) {
  for (const Role& role : plan.roles) {
    const Program* evaluate = role.program(ProgramKind::evaluate);
    if (evaluate == nullptr) return nullptr;
    for (const Issued& issued : evaluate->instructions)
      if (const auto* launch = std::get_if<Launch>(&issued.instruction);
          launch != nullptr &&
          std::count(ops.begin(), ops.end(), role.signatures[static_cast<std::size_t>(launch->signature)].op) > 0)
        return &role.signatures[static_cast<std::size_t>(launch->signature)];
  }
  return nullptr;
}

}  // namespace

TEST_CASE("a field says whose it is and what its parts are, and a step copies each part of the batch once") {
  for (const GoldenJob& job : golden_jobs()) {
    CAPTURE(job.name);
    const CompiledJob compiled = golden_compiled(job);
    for (const Role& role : compiled.plan.roles) {
      for (const Field& field : role.fields) {
        CAPTURE(field.name);
        const Known& known = kKnown.at(field.name);
        CHECK(field.kind == known.kind);
        CHECK(field.spec.dtype() == known.dtype);
        const TensorDesc* operand = read_as(role, field.name);
        if (operand != nullptr && field.kind == Field::Kind::batch) {
          CHECK(operand->dtype == field.spec.dtype());
          CHECK(operand->shape == local_shape(field.spec, compiled.plan.mesh));
        }
        if (field.kind == Field::Kind::batch)
          CHECK(local_shape(field.spec, compiled.plan.mesh)[0] == compiled.batch.micro);
        const bool repeats = field.kind == Field::Kind::batch && role.program(ProgramKind::step) != nullptr;
        CHECK(field.bytes == field.part_bytes(compiled.plan.mesh) * (repeats ? compiled.batch.micro_batches : 1));
      }
      for (const Program& program : role.programs) {
        std::vector<std::int64_t> copied(role.fields.size(), 0);
        for (const Issued& issued : program.instructions) {
          if (const auto* in = std::get_if<CopyIn>(&issued.instruction)) {
            CHECK(in->field_offset == copied[static_cast<std::size_t>(in->field)]);
            CHECK(role.fields[static_cast<std::size_t>(in->field)].kind != Field::Kind::result);
            copied[static_cast<std::size_t>(in->field)] += in->region.region.bytes;
          }
          if (const auto* out = std::get_if<CopyOut>(&issued.instruction))
            CHECK(role.fields[static_cast<std::size_t>(out->field)].kind != Field::Kind::scalar);
        }
        // Of the tokens of a prompt generation takes one, the newest.
        const bool newest = program.kind == ProgramKind::sample && role.program(ProgramKind::prompt) != nullptr;
        for (std::size_t i = 0; i < copied.size(); ++i) {
          const Field& field = role.fields[i];
          if (copied[i] > 0)
            CHECK(copied[i] == (newest && field.name == "newest" ? size_of(DType::i32)
                                : makes_step(program.kind)       ? field.bytes
                                                                 : field.part_bytes(compiled.plan.mesh)));
        }
      }
    }
  }
}

TEST_CASE("a compiled job knows what its loss leaves out and whether right answers are counted") {
  int count = 0;
  for (const GoldenJob& job : golden_jobs()) {
    CAPTURE(job.name);
    const CompiledJob compiled = golden_compiled(job);
    CHECK(compiled.ignore_index == (job.purpose == Purpose::sample ? std::nullopt : std::optional<std::int64_t>(-100)));
    const Signature* counts = evaluation_runs(compiled.plan, {Op::cross_entropy_count});
    if (counts != nullptr) CHECK(counts->attributes.integer("ignore_index") == compiled.ignore_index);
    CHECK(compiled.counts_correct ==
          (evaluation_runs(compiled.plan, {Op::correct_count, Op::correct_count_gathered}) != nullptr));
    count += compiled.counts_correct ? 1 : 0;
  }
  CHECK(count > 0);
}
