// trainer validate: whether jobs are right, all mistakes at once. It plans them too, so a job that passes is one that fits.
#include <nlohmann/json.hpp>

#include "engine/core/error.h"
#include "engine/train/check_files.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

struct Verdict {
  std::string file;
  int code = kDone;
  std::vector<Diagnostic> errors;
};

// The job is right; whether its files are.
Verdict check_files_of(const std::string& file, const LoadedJob& loaded, const CompiledJob& compiled) {
  FileProblems problems = check_files(loaded, compiled);
  const int code = problems.diagnostics.empty() ? kDone : problems.unreadable ? kInputOutput : kBadData;
  return {file, code, std::move(problems.diagnostics)};
}

Verdict check(const std::string& file, bool with_files) {
  Verdict verdict{file, kDone, {}};
  try {
    JobArguments arguments;
    arguments.path = file;
    const LoadedJob loaded = arguments.load();
    const CompiledJob compiled = compile_here(loaded, Purpose::train);
    if (with_files) verdict = check_files_of(file, loaded, compiled);
  } catch (const JobError& error) {
    verdict.code = kBadJob;
    verdict.errors = error.diagnostics();
  } catch (const DataError& error) {
    verdict = {file, kBadData, {{file, 0, 0, "", error.what(), "", "", "", ""}}};
  } catch (const IoError& error) {
    verdict = {file, kInputOutput, {{file, 0, 0, "", error.what(), "", "", "", ""}}};
  }
  return verdict;
}

Json json_of(const Verdict& verdict) {
  Json errors = Json::array();
  for (const Diagnostic& error : verdict.errors)
    errors.push_back({{"file", error.file},
                      {"line", error.line},
                      {"column", error.column},
                      {"path", error.path},
                      {"message", error.message},
                      {"value", error.value},
                      {"allowed", error.allowed},
                      {"suggestion", error.suggestion},
                      {"remedies", error.remedies}});
  return {{"file", verdict.file}, {"ok", verdict.code == kDone}, {"errors", errors}};
}

// A bad job outweighs a file that could not be read.
int worst(const std::vector<Verdict>& verdicts) {
  int code = kDone;
  for (const Verdict& verdict : verdicts) code = std::max(code, verdict.code);
  return code;
}

int validate(const std::vector<std::string>& files, bool with_files, bool json) {
  std::vector<Verdict> verdicts;
  for (const std::string& file : files) verdicts.push_back(check(file, with_files));
  Json jobs = Json::array();
  for (const Verdict& verdict : verdicts) {
    for (const Diagnostic& error : verdict.errors) say("{}\n", error.str());
    if (!json)
      put("{}: {}\n", verdict.file,
          verdict.code == kDone ? "ok" : fmt::format("{} error{}", verdict.errors.size(), verdict.errors.size() == 1 ? "" : "s"));
    jobs.push_back(json_of(verdict));
  }
  if (json) put_document(Json{{"jobs", jobs}});
  return worst(verdicts);
}

}  // namespace

void add_validate(CommandLine& app, Work& work) {
  struct Arguments {
    std::vector<std::string> files;
    bool with_files = false, json = false;
  };
  Subcommand* command = app.add_subcommand("validate", "checks any number of jobs: keys, values, graph, plan and memory");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("JOB", arguments->files, "job files")->required()->type_name("");
  command->add_flag("--files", arguments->with_files, "opens data and initial weights too: are they there, whole, long enough, every id known");
  command->add_flag("--json", arguments->json, "makes stdout one JSON document");
  command->footer(
      "Examples:\n"
      "  trainer validate configs/*.yaml\n"
      "  trainer validate --json job.yaml\n"
      "  trainer validate --files job.yaml\n"
      "\n"
      "Shows every mistake of every file. Exits 78 if a job is bad; with --files, 65 if its data or initial weights are, 74 if they cannot be\n"
      "read. Without --files it reads no data. Changes nothing.\n");
  command->callback([arguments, &work] { work = [arguments] { return validate(arguments->files, arguments->with_files, arguments->json); }; });
}

}  // namespace trainer::tools
