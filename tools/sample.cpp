// trainer sample: text from saved weights, shown as it comes.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/data/data.h"
#include "engine/data/row_format.h"
#include "engine/train/train.h"
#include "tools/command.h"
#include "tools/model_text.h"

namespace trainer::tools {
namespace {

constexpr std::int64_t kSpecialTokens = 8;  // at most, that a tokenizer adds to a text

struct SampleArguments : JobArguments {
  std::string checkpoint;
  std::int64_t stop = -1;
  SampleOptions options;
};

/// Of a job that is made up: a sequence as long as the text is to be, if the model goes so far.
void fit_length(LoadedJob& loaded, const SampleOptions& options) {
  const Setting* length = loaded.setting("data.seq_len");
  if (length != nullptr && length->from == Setting::From::command_line) return;
  const auto most = static_cast<std::int64_t>(options.prompt.size()) + kSpecialTokens + options.num_tokens;
  loaded.job.data.seq_len = std::min(most, longest_text(loaded).value_or(most));
}

/// Rows end their texts; those of a model folder end where the folder says.
std::vector<std::int32_t> usual_stops(const LoadedJob& loaded) {
  if (loaded.job.data.is_rows() && !loaded.job.model.folder) return data::ends_of_text(loaded.job.data);
  if (!loaded.job.model.folder || !data::is_tokenized(loaded.job.data)) return {};
  const auto tokenizer = tokenizer::TextTokenizer::read(loaded.job.data.tokenizer_file);
  return chat::stop_ids_of_folder(loaded.job.model.folder->path, *tokenizer);
}

int sample_text(const SampleArguments& arguments) {
  LoadedJob loaded = arguments.load_to_run();
  const std::string checkpoint = weights_of(arguments, loaded, arguments.checkpoint);
  SampleOptions options = arguments.options;
  options.special = loaded.job.model.folder.has_value();
  if (arguments.is_made_up()) fit_length(loaded, options);
  options.stop = arguments.stop < 0 ? usual_stops(loaded) : std::vector{static_cast<std::int32_t>(arguments.stop)};
  const std::vector<CompiledJob> plans = plans_for_text(loaded);
  std::string text;
  const auto emit = [&](const std::string& more) {
    text += more;
    if (arguments.json) return;
    put("{}", more);
    flush_results();
  };
  const Sampled sampled = sample(loaded, plans, checkpoint, options, emit, say_line);
  if (!arguments.json) {
    put("\n");
    return kDone;
  }
  Json document{{"prompt", options.prompt}};
  if (sampled.text) document["text"] = text;
  document["ids"] = sampled.ids;
  document["checkpoint"] = checkpoint;
  put_document(document);
  return kDone;
}

}  // namespace

void add_sample(CommandLine& app, Work& work) {
  Subcommand* command =
      app.add_subcommand("sample", "generates text, or token ids, from a checkpoint or a model folder");
  auto arguments = std::make_shared<SampleArguments>();
  arguments->or_checkpoint = true;
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
      ->add_option("--stop", arguments->stop,
                   "a token id that ends the text; it is not written itself. Default: of a model folder those that it "
                   "names, of rows the one that ends them")
      ->at_least(0)
      ->type_name("ID");
  add_drawing_options(*command, options.drawing);
  command->footer(
      "Examples:\n"
      "  trainer sample configs/quickstart.yaml --prompt 'template <typename' --tokens 400\n"
      "  trainer sample job.yaml --checkpoint runs/job/step-00000500 --temperature 0\n"
      "  trainer sample gpt2.yaml --prompt '464 2068 7586' --top-p 0.9 --stop 50256 --json\n"
      "  trainer sample models/Qwen2.5-0.5B --prompt 'The sea is' precision.compute=f32\n"
      "\n"
      "Keys and values of what is there are kept, so that a token costs one pass of one token. A text that has filled\n"
      "the sequence (data.seq_len; of a model folder its longest) goes on from its second half.\n");
  command->callback([arguments, &work] { work = [arguments] { return sample_text(*arguments); }; });
}

}  // namespace trainer::tools
