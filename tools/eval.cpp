// trainer eval: the loss of saved weights on held-out data.
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/ranks.h"
#include "engine/train/train.h"
#include "tools/command.h"
#include "tools/own_rank.h"

namespace trainer::tools {
namespace {

struct EvalArguments : JobArguments {
  std::string checkpoint;
  std::int64_t batches = -1;
};

std::int64_t batches_of(const EvalArguments& arguments, const Job& job) {
  return arguments.batches >= 0 || !job.eval ? std::max<std::int64_t>(arguments.batches, 0) : job.eval->batches;
}

int eval(const EvalArguments& arguments) {
  if (const std::optional<int> code = run_as_ranks(arguments, Reads::data)) return *code;
  const OwnRank own = join_ranks(arguments, Reads::data);
  const LoadedJob& loaded = own.loaded;
  std::string checkpoint;
  EvaluationRecord record;
  abort_on_error(own.process.get(), [&] {
    checkpoint = checkpoint_of(loaded, arguments.checkpoint);
    const CompiledJob compiled = compile_here(loaded, Purpose::evaluate, own.threads);
    check_same_plan(own.process.get(), compiled.plan);
    tokenize_alone(own, compiled);
    record = evaluate(loaded, compiled, checkpoint, batches_of(arguments, loaded.job),
                      {own.process.get(), own.threads, say_line});
  });
  if (!speaks()) return kDone;
  if (arguments.json) {
    Json document{{"step", record.step},
                  {"val_loss", record.val_loss},
                  {"val_accuracy", record.val_accuracy ? Json(*record.val_accuracy) : Json(nullptr)},
                  {"exact_match", record.exact_match ? Json(*record.exact_match) : Json(nullptr)},
                  {"checkpoint", checkpoint}};
    for (const auto& [name, value] : record.figures) document[name] = value;
    put_document(document);
    return kDone;
  }
  say("{} after {} steps\n", checkpoint, record.step);
  put("validation loss: {:.4f}\n", record.val_loss);
  if (record.val_accuracy) put("validation accuracy: {:.2f}%\n", 100 * *record.val_accuracy);
  if (record.exact_match) put("exact match: {:.2f}%\n", 100 * *record.exact_match);
  for (const auto& [name, value] : record.figures) put("{}: {:.4f}\n", name, value);
  return kDone;
}

}  // namespace

void add_eval(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("eval", "loss (and accuracy) on held-out data");
  auto arguments = std::make_shared<EvalArguments>();
  arguments->add_to(*command);
  add_checkpoint_option(*command, arguments->checkpoint);
  add_base_option(*command, *arguments);
  command
      ->add_option("--batches", arguments->batches,
                   "global batches; 0: all the validation data. Default: the job's eval.batches")
      ->at_least(0)
      ->type_name("N");
  command->footer(
      "Examples:\n"
      "  trainer eval configs/quickstart.yaml\n"
      "  trainer eval job.yaml --checkpoint runs/job/step-00000500 --batches 0 --json\n"
      "\n"
      "A job with eval.generate also answers its prompts: exact_match is the share that it gets right.\n");
  command->callback([arguments, &work] { work = [arguments] { return eval(*arguments); }; });
}

}  // namespace trainer::tools
