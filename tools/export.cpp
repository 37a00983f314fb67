// trainer export: a checkpoint or a model folder as a folder of Hugging Face's layout, or as a GGUF file.
#include "engine/export/export.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/core/amounts.h"
#include "engine/core/error.h"
#include "engine/core/printable.h"
#include "tools/command.h"
#include "tools/machine.h"

namespace trainer::tools {
namespace {

struct ExportArguments {
  std::string checkpoint, out, format = "hf", dtype, shard_size = "5GB", base;
  bool merge = false, json = false;
};

/// "5GB", "500MB", "5GiB", "1000000": bytes; as others write the size of files, GB is 10^9.
std::int64_t bytes_of(const std::string& text) {
  constexpr std::array<std::pair<std::string_view, double>, 9> kUnits{{{"", 1},
                                                                       {"KB", 1e3},
                                                                       {"MB", 1e6},
                                                                       {"GB", 1e9},
                                                                       {"TB", 1e12},
                                                                       {"KiB", 0x1p10},
                                                                       {"MiB", 0x1p20},
                                                                       {"GiB", 0x1p30},
                                                                       {"TiB", 0x1p40}}};
  std::size_t digits = 0;
  while (digits < text.size() && (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.'))
    ++digits;
  for (const auto& [unit, factor] : kUnits) {
    if (digits == 0 || digits > 12 || std::string_view(text).substr(digits) != unit) continue;
    const std::string count = text.substr(0, digits);
    char* end = nullptr;
    const double number = std::strtod(count.c_str(), &end);
    if (*end == '\0' && number * factor >= 1 && number * factor < 1e18)
      return static_cast<std::int64_t>(number * factor);
  }
  throw UsageError("--shard-size " + text + " is no size; as 5GB or 500MB");
}

exporting::Options options_of(const ExportArguments& arguments) {
  exporting::Options options;
  options.checkpoint = arguments.checkpoint;
  options.out = arguments.out;
  options.merge = arguments.merge;
  options.base = arguments.base;
  options.shard_bytes = bytes_of(arguments.shard_size);
  options.configs_dir = configs_dir();
  using exporting::Format;
  const std::map<std::string, Format> formats{{"hf", Format::hf}, {"gguf", Format::gguf}, {"adapter", Format::adapter}};
  const auto format = formats.find(arguments.format);
  if (format == formats.end())
    throw UsageError("--format " + arguments.format + " is not known; it is one of hf, gguf, adapter");
  options.format = format->second;
  if (!arguments.dtype.empty()) {
    options.precision = exporting::precision_named(arguments.dtype);
    if (!options.precision)
      throw UsageError("--dtype " + arguments.dtype + " is not known; it is one of f32, bf16, f16, q8_0");
  }
  return options;
}

constexpr std::size_t kMostMatrices = 5;  // that are named of those that lost most

/// All matrices together.
exporting::MergedMatrix all_of(const std::vector<exporting::MergedMatrix>& merged) {
  exporting::MergedMatrix all;
  for (const exporting::MergedMatrix& one : merged) {
    all.change = std::hypot(all.change, one.change);
    all.error = std::hypot(all.error, one.error);
  }
  return all;
}

void say_merged(const exporting::Report& report) {
  if (report.merged.empty()) return;
  const exporting::MergedMatrix all = all_of(report.merged);
  const std::string_view dtype = exporting::name_of(report.precision);
  say("merged {} matrices: ‖ΔW‖ = {:.4g}, of which rounding to {} lost {:.2g}%\n", report.merged.size(), all.change,
      dtype, 100 * all.lost());
  if (all.error == 0) return;
  for (std::size_t i = 0; i < std::min(kMostMatrices, report.merged.size()); ++i) {
    const exporting::MergedMatrix& one = report.merged[i];
    say("  {}: ‖ΔW‖ = {:.4g}, lost {:.2g}%\n", printable(one.tensor), one.change, 100 * one.lost());
  }
}

Json json_of(const std::vector<exporting::MergedMatrix>& merged) {
  if (merged.empty()) return nullptr;
  const exporting::MergedMatrix all = all_of(merged);
  Json matrices = Json::array();
  for (const exporting::MergedMatrix& one : merged)
    matrices.push_back({{"name", one.tensor}, {"change", one.change}, {"lost", one.lost()}});
  return {{"change", all.change}, {"lost", all.lost()}, {"matrices", std::move(matrices)}};
}

int export_model(const ExportArguments& arguments) {
  exporting::Options options = options_of(arguments);
  options.progress = progress_line("writing weights");
  const exporting::Report report = exporting::export_model(options);
  std::int64_t bytes = 0;
  for (const auto& [name, size] : report.files) bytes += size;
  for (const std::string& note : report.notes) say("note: {}\n", note);
  if (arguments.json) {
    Json files = Json::array();
    for (const auto& [name, size] : report.files) files.push_back({{"name", name}, {"bytes", size}});
    put_document(Json{{"source", report.source},
                      {"out", arguments.out},
                      {"format", arguments.format},
                      {"dtype", std::string(exporting::name_of(report.precision))},
                      {"tensors", report.tensors},
                      {"parameters", report.parameters},
                      {"bytes", bytes},
                      {"files", std::move(files)},
                      {"merged", json_of(report.merged)},
                      {"notes", report.notes}});
  } else {
    say("{}: {} tensors, {} parameters in {}, {} bytes, from {}\n", printable(arguments.out), report.tensors,
        grouped(report.parameters), exporting::name_of(report.precision), grouped(bytes), printable(report.source));
    say_merged(report);
  }
  return kDone;
}

}  // namespace

void add_export(CommandLine& app, Work& work) {
  Subcommand* command =
      app.add_subcommand("export", "a checkpoint as a Hugging Face folder, a GGUF file or an adapter of peft");
  auto arguments = std::make_shared<ExportArguments>();
  command
      ->add_option(
          "CHECKPOINT", arguments->checkpoint,
          "a step's directory, a directory of them (the newest whole is taken), a model folder, or with --merge a "
          "folder with an adapter of peft")
      ->required()
      ->type_name("");
  command->add_option("OUT", arguments->out, "the new folder; of gguf the new file")->required()->type_name("");
  command
      ->add_option("--format", arguments->format,
                   "hf: what from_pretrained opens; gguf: what llama.cpp opens; adapter: an adapter as peft saves it")
      ->capture_default_str()
      ->type_name("hf|gguf|adapter");
  command
      ->add_option("--dtype", arguments->dtype,
                   "of the weights; left out: the model folder's, else f32; of an adapter f32")
      ->type_name("f32|bf16|f16|q8_0");
  command->add_option("--shard-size", arguments->shard_size, "hf: the largest file of weights")
      ->capture_default_str()
      ->type_name("SIZE");
  command->add_flag("--merge", arguments->merge, "adds an adapter to its base, in f32: W + s B A");
  command->add_option("--base", arguments->base, "of an adapter: where the base is, if not where it was")
      ->type_name("DIR");
  command->add_flag("--json", arguments->json, "makes stdout one JSON document");
  command->footer(
      "Examples:\n"
      "  trainer export runs/qwen exported/qwen\n"
      "  trainer export runs/qwen/step-00000500 exported/qwen-bf16 --dtype bf16 --shard-size 2GB\n"
      "  trainer export runs/lora exported/merged --merge\n"
      "  trainer export runs/lora exported/adapter --format adapter\n"
      "  trainer export adapters/theirs exported/merged --merge --base models/Qwen2.5-0.5B\n"
      "  trainer export runs/qwen qwen.gguf --format gguf --dtype q8_0\n"
      "  trainer export models/Qwen2.5-0.5B qwen.gguf --format gguf\n"
      "\n"
      "Weights are rounded once, to --dtype; where that is what they are in, they stay as they are, bit for bit. "
      "Config,\n"
      "tokenizer and chat template come from the model folder: checkpoints of a job with model.from carry them. gguf "
      "has\n"
      "them inside; there vectors stay f32, and q8_0 keeps blocks of 32 weights. OUT appears whole or not at all; one "
      "that\n"
      "exists is never overwritten.\n"
      "--merge says how large the change of all matrices is, and how much of it rounding to --dtype lost; --json of "
      "each "
      "matrix.\n");
  command->callback([arguments, &work] { work = [arguments] { return export_model(*arguments); }; });
}

}  // namespace trainer::tools
