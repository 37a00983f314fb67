// trainer sample: text from saved weights, shown as it comes.
#include <nlohmann/json.hpp>

#include "engine/train/train.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

struct Arguments : JobArguments {
  std::string checkpoint;
  SampleOptions options;
};

int sample_text(const Arguments& arguments) {
  const LoadedJob loaded = arguments.load_to_run();
  const std::string checkpoint = checkpoint_of(loaded, arguments.checkpoint);
  const CompiledJob compiled = compile_here(loaded, Purpose::sample);
  std::string text;
  const auto emit = [&](const std::string& more) {
    text += more;
    if (arguments.json) return;
    put("{}", more);
    flush_results();
  };
  const Sampled sampled = sample(loaded, compiled, checkpoint, arguments.options, emit, say_line);
  if (!arguments.json) {
    put("\n");
    return kDone;
  }
  Json document{{"prompt", arguments.options.prompt}};
  if (sampled.text) document["text"] = text;
  document["ids"] = sampled.ids;
  document["checkpoint"] = checkpoint;
  put_document(document);
  return kDone;
}

}  // namespace

void add_sample(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("sample", "generates text, or token ids, from a checkpoint");
  auto arguments = std::make_shared<Arguments>();
  arguments->add_to(*command);
  add_checkpoint_option(*command, arguments->checkpoint);
  add_base_option(*command, *arguments);
  SampleOptions& options = arguments->options;
  command->add_option("--prompt", options.prompt, "what the text begins with; of `format: tokens` ids, as \"12 44 5\"")
      ->type_name("TEXT");
  command->add_option("--tokens", options.num_tokens, "how many tokens are added")
      ->at_least(1)
      ->capture_default_str()
      ->type_name("N");
  command
      ->add_option("--temperature", options.temperature,
                   "below 1 sharpens, above 1 flattens; 0 always takes the likeliest token")
      ->at_least(0)
      ->capture_default_str()
      ->type_name("T");
  command->add_option("--top-k", options.top_k, "draws from the k likeliest tokens; 0: from all")
      ->at_least(0)
      ->capture_default_str()
      ->type_name("K");
  command
      ->add_option("--top-p", options.top_p,
                   "draws from the likeliest tokens whose probabilities add up to p; 1: from all")
      ->within(0, 1)
      ->capture_default_str()
      ->type_name("P");
  command->add_option("--stop", options.stop, "a token id that ends the text; it is not written itself")
      ->at_least(0)
      ->type_name("ID");
  command->add_option("--seed", options.seed, "of the draws: the same seed, the same text")
      ->capture_default_str()
      ->type_name("S");
  command->footer(
      "Examples:\n"
      "  trainer sample configs/quickstart.yaml --prompt 'template <typename' --tokens 400\n"
      "  trainer sample job.yaml --checkpoint runs/job/step-00000500 --temperature 0\n"
      "  trainer sample gpt2.yaml --prompt '464 2068 7586' --top-p 0.9 --stop 50256 --json\n");
  command->callback([arguments, &work] { work = [arguments] { return sample_text(*arguments); }; });
}

}  // namespace trainer::tools
