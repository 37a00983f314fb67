// trainer validate: whether jobs are right, all mistakes at once. It plans them too, so a job that passes is one that
// fits.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/check_files.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

struct ValidateArguments {
  std::vector<std::string> words;  ///< jobs and overrides
  bool with_files = false, json = false;
  std::string format = "text";
};

/// What was found in a job: errors, then warnings.
struct Verdict {
  std::string file;
  int code = kDone;
  std::vector<Diagnostic> found;
};

Diagnostic unreadable(const std::string& file, const std::string& why) {
  Diagnostic mistake;
  mistake.file = file;
  mistake.message = why;
  return mistake;
}

// The job is right; whether its files are.
Verdict check_files_of(const std::string& file, const LoadedJob& loaded, const CompiledJob& compiled) {
  FileProblems problems = check_files(loaded, compiled);
  const int code = problems.diagnostics.empty() ? kDone : problems.unreadable ? kInputOutput : kBadData;
  return {file, code, std::move(problems.diagnostics)};
}

Verdict check(const std::string& file, const std::vector<std::string>& overrides, bool with_files) {
  Verdict verdict{file, kDone, {}};
  try {
    JobArguments arguments;
    arguments.path = file;
    arguments.overrides = overrides;
    const LoadedJob loaded = arguments.load_silently();
    const CompiledJob compiled = compile_here(loaded, Purpose::train);
    if (with_files) verdict = check_files_of(file, loaded, compiled);
    verdict.found.insert(verdict.found.end(), loaded.warnings.begin(), loaded.warnings.end());
  } catch (const JobError& error) {
    verdict.code = kBadJob;
    verdict.found = error.diagnostics();
  } catch (const DataError& error) {
    verdict.code = kBadData;
    verdict.found = {unreadable(file, error.what())};
  } catch (const IoError& error) {
    verdict.code = kInputOutput;
    verdict.found = {unreadable(file, error.what())};
  }
  return verdict;
}

bool is_warning(const Diagnostic& one) { return one.severity == Diagnostic::Severity::warning; }

Json json_of(const Diagnostic& one) {
  // Of a job that does not fit, what would is the suggestion.
  const std::string suggestion =
      one.suggestion.empty() && !one.remedies.empty() ? one.remedies.front() : one.suggestion;
  return {{"file", one.file},         {"line", one.line},   {"column", one.column},   {"path", one.path},
          {"message", one.message},   {"value", one.value}, {"allowed", one.allowed}, {"suggestion", suggestion},
          {"remedies", one.remedies}, {"note", one.note}};
}

Json json_of(const Verdict& verdict) {
  Json errors = Json::array(), warnings = Json::array();
  for (const Diagnostic& one : verdict.found) (is_warning(one) ? warnings : errors).push_back(json_of(one));
  return {{"file", verdict.file}, {"ok", verdict.code == kDone}, {"errors", errors}, {"warnings", warnings}};
}

/// Text inside of an annotation: GitHub's own escapes.
std::string escaped(const std::string& text, std::string_view characters) {
  std::string out;
  for (const char c : text)
    out += characters.find(c) == std::string_view::npos ? std::string(1, c)
                                                        : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  return out;
}

/// `::error file=job.yaml,line=3,col=7,title=train.steps::what is wrong`.
std::string annotation(Diagnostic one) {
  const std::string kind = is_warning(one) ? "warning" : "error";
  std::string place = "file=" + escaped(one.file, "%\r\n:,");
  if (one.line > 0) place += fmt::format(",line={},col={}", one.line, one.column);
  if (!one.path.empty()) place += ",title=" + escaped(one.path, "%\r\n:,");
  one.source.clear();
  const std::string text = one.str();
  const std::string head = kind + ": " + (one.path.empty() ? "" : one.path + ": ");
  const std::size_t at = text.find(head);
  return fmt::format("::{} {}::{}", kind, place,
                     escaped(at == std::string::npos ? text : text.substr(at + head.size()), "%\r\n"));
}

std::string counted(const Verdict& verdict) {
  const auto warnings = std::ranges::count_if(verdict.found, is_warning);
  const auto errors = static_cast<std::ptrdiff_t>(verdict.found.size()) - warnings;
  const std::string text = errors == 0 ? "ok" : fmt::format("{} error{}", errors, errors == 1 ? "" : "s");
  return warnings == 0 ? text : fmt::format("{}, {} warning{}", text, warnings, warnings == 1 ? "" : "s");
}

void tell(const Verdict& verdict, const ValidateArguments& arguments) {
  if (arguments.format == "github") {
    for (const Diagnostic& one : verdict.found) put("{}\n", annotation(one));
    return;
  }
  for (const Diagnostic& one : verdict.found) say("{}\n", one.str());
  if (!arguments.json) put("{}: {}\n", verdict.file, counted(verdict));
}

int validate(const ValidateArguments& arguments) {
  std::vector<std::string> files, overrides;
  for (const std::string& word : arguments.words) {
    const bool is_override = word.find('=') != std::string::npos && !std::filesystem::exists(word);
    (is_override ? overrides : files).push_back(word);
  }
  if (files.empty()) throw UsageError("no job is named, only overrides");
  Json jobs = Json::array();
  int code = kDone;
  for (const std::string& file : files) {
    const Verdict verdict = check(file, overrides, arguments.with_files);
    tell(verdict, arguments);
    jobs.push_back(json_of(verdict));
    code = std::max(code, verdict.code);  // a bad job outweighs a file that cannot be read
  }
  if (arguments.json) put_document(Json{{"jobs", jobs}});
  return code;
}

}  // namespace

void add_validate(CommandLine& app, Work& work) {
  Subcommand* command =
      app.add_subcommand("validate", "checks any number of jobs: keys, values, graph, plan and memory");
  auto arguments = std::make_shared<ValidateArguments>();
  command->add_option("JOB", arguments->words, "job files, and overrides key.path=value that are applied to each")
      ->required()
      ->type_name("");
  command->add_flag(
      "--files", arguments->with_files,
      "opens data and initial weights too: are they there, whole, long enough, every id known; and is there "
      "space for checkpoints");
  Option* json = command->add_flag("--json", arguments->json, "makes stdout one JSON document");
  command->add_option("--format", arguments->format, "of what stdout gets: text, or annotations for GitHub Actions")
      ->one_of({"text", "github"})
      ->excludes(json);
  command->footer(
      "Examples:\n"
      "  trainer validate configs/*.yaml\n"
      "  trainer validate --json job.yaml\n"
      "  trainer validate job.yaml other.yaml train.steps=100 cluster.hardware=h100-sxm\n"
      "  trainer validate --files job.yaml\n"
      "  trainer validate --format github configs/*.yaml\n"
      "\n"
      "Shows every mistake of every file. Exits 78 if a job is bad; with --files, 65 if its data or initial weights "
      "are, 74 if they cannot be\n"
      "read or the disk has too little space for checkpoints. Without --files it reads no data. Changes nothing.\n");
  command->callback([arguments, &work] { work = [arguments] { return validate(*arguments); }; });
}

}  // namespace trainer::tools
