// trainer verify: a person's own job, under its strategy and on one rank, side by side.
#include <nlohmann/json.hpp>
#include <set>

#include "engine/core/error.h"
#include "engine/launch/launcher.h"
#include "engine/report/plan_report.h"
#include "engine/report/table.h"
#include "engine/train/compare.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

struct VerifyArguments : JobArguments {
  std::int64_t steps = 5;
};

struct Meaning {
  const char* name;
  const char* what;  ///< is compared with one rank's
};

Meaning meaning_of(const Quantity& quantity) {
  if (quantity.name == "losses") return {"losses", "relative difference, worst step"};
  if (quantity.name == "gradients") return {"gradient norms", "relative difference, worst step"};
  if (quantity.name == "weights")
    return {"weights together", "root mean square difference / how far the optimizer moved them"};
  if (quantity.name == "replicas")
    return {"replicas", "tensors of which ranks hold the same elements, and not the same bits"};
  if (quantity.name == "sums")
    return {"sums before codes", "norm of the ranks' gradients together - one rank's, relative, worst step"};
  if (quantity.name == "dropped") return {"dropped", "choices of experts that one side alone left out, worst step"};
  return {"each weight", "largest absolute difference"};
}

// Why the bound of the weights together is wide.
void explain_weights(const CompiledJob& compiled) {
  std::set<std::string_view> dividing;
  bool muon = false;
  for (const OptimizerJob& optimizer : compiled.optimizers) {
    muon = muon || optimizer.name == OptimizerName::muon;
    if (optimizer.name != OptimizerName::sgd && optimizer.name != OptimizerName::muon)
      dividing.insert(name_of(optimizer.name));
  }
  if (!dividing.empty())
    put("That of the weights together is wide because a gradient is divided by its own size ({}): where it is almost "
        "zero,\n"
        "rounding decides in which direction the weight moves. Losses and gradient norms have the tight bounds.\n",
        fmt::join(dividing, ", "));
  if (muon)
    put("Steps of muon make the smallest singular values of a momentum up to 485 times as large, and its rounding with "
        "them: in bf16\n"
        "the bound of the weights together decides nothing.\n");
}

// Ranks have buffers of a planned size for the tokens that they send each other; one rank has no need of any.
void explain_dropped(const Comparison& comparison) {
  for (const Quantity& quantity : comparison.quantities)
    if (quantity.name == "dropped" && !quantity.holds())
      put("dropped: what ranks of strategy.expert had no room for was left out, and so this is other training than one "
          "rank's. A larger `bound` of the `experts` in the graph, or a smaller degree, leaves room.\n");
}

void put_text(const CompiledJob& compiled, const Comparison& comparison, const std::string& other) {
  report::Table table({"quantity", "difference from " + other, "bound", "verdict", "compared is the"});
  for (const Quantity& quantity : comparison.quantities) {
    const Meaning meaning = meaning_of(quantity);
    table.add({meaning.name, fmt::format("{:.2e}", quantity.difference), fmt::format("{:.2e}", quantity.bound),
               quantity.holds() ? "holds" : "DOES NOT HOLD", meaning.what});
  }
  put("{}\nA bound is the most that rounding alone can do in sums of this length over a model of this depth.\n",
      table.str());
  explain_weights(compiled);
  explain_dropped(comparison);
  if (!comparison.different_replicas.empty())
    put("replicas: ranks went on from different {}\n", fmt::join(comparison.different_replicas, ", "));
  if (comparison.holds())
    put("the same training as {}{}, within rounding, after {} steps\n", other == "one rank" ? "on " : "that of ", other,
        comparison.steps);
  else
    put("NOT the training of {} after {} steps\n", other, comparison.steps);
}

void put_json(const CompiledJob& compiled, const Comparison& comparison) {
  Json json{{"ok", comparison.holds()},
            {"steps", comparison.steps},
            {"strategy", report::strategy_json(compiled)},
            {"mesh", report::mesh_json(compiled.plan.mesh)},
            {"world_size", compiled.plan.mesh.world_size()}};
  for (const Quantity& quantity : comparison.quantities)
    json[quantity.name] = {{"difference", quantity.difference}, {"bound", quantity.bound}, {"ok", quantity.holds()}};
  put_document(json);
}

int verify(const VerifyArguments& arguments) {
  if (const std::optional<Launcher> launcher = detect_launcher(process_environment());
      launcher && launcher->world_size > 1)
    throw UsageError(launcher->source +
                     " started several processes, but verify runs all ranks as threads of one: start it alone");
  const Compiler compiler = [](const LoadedJob& job) { return compile_here(job, Purpose::train); };
  const LoadedJob loaded = arguments.load_to_run();
  if (loaded.job.train.steps == 0) throw JobError({loaded.at("train.steps", "there is no step to compare")});
  const LoadedJob ranks = on_threads(loaded, compiler);
  const CompiledJob compiled = compiler(ranks);
  const std::string other = is_simulated(ranks) ? "a serial simulation" : "one rank";
  say("{}: {} against {}, {}\n", loaded.job.name, report::strategy_line(compiled), other,
      report::batch_line(compiled.batch));
  const LoadedJob one = on_one_rank(loaded, micro_of_one_rank(ranks, compiled));
  const Comparison comparison = compare(ranks, one, arguments.steps, compiler);
  if (arguments.json)
    put_json(compiled, comparison);
  else
    put_text(compiled, comparison, other);
  return comparison.holds() ? kDone : kBug;
}

}  // namespace

void add_verify(CommandLine& app, Work& work) {
  Subcommand* command =
      app.add_subcommand("verify", "proves on your own job that its strategy trains as one rank does");
  auto arguments = std::make_shared<VerifyArguments>();
  arguments->add_to(*command);
  command->add_option("--steps", arguments->steps, "steps to compare")
      ->within(1, 1000000)
      ->capture_default_str()
      ->type_name("N");
  command->footer(
      "Examples:\n"
      "  trainer verify job.yaml cluster.devices_per_node=4 strategy=fsdp\n"
      "  trainer verify job.yaml 'strategy={tensor: {degree: 2}, pipeline: {degree: 2}}' cluster.devices_per_node=8 "
      "--steps 10\n"
      "\n"
      "Trains the job's first steps twice, under its strategy with ranks as threads of this process and on one rank "
      "with\n"
      "the same global batch, and compares losses, gradient norms and final weights, and among ranks the bits of what "
      "they\n"
      "hold alike. Bounds come from the dtype's epsilon, the length of the sums and the depth of the model. What "
      "trains\n"
      "differently by design (local_sgd, codes of gradients or weights) is compared with a serial simulation of it "
      "instead;\n"
      "of codes, `sums` is what the ranks' gradients make together before they are codes, against one rank. The job's\n"
      "checkpoints and logs are left alone; final weights go through the system's temporary folder (TMPDIR). Exits 0 "
      "if "
      "all\n"
      "bounds hold and 70 if not: that is a bug of trainer, unless `dropped` is among them.\n");
  command->callback([arguments, &work] { work = [arguments] { return verify(*arguments); }; });
}

}  // namespace trainer::tools
