// Going on: what may differ between the job that wrote a checkpoint and the one that goes on from it. One table
// (going_on.cpp) says which keys may change; whatever decides what is trained, and on what, may not, unless
// checkpoint.accept names it.
#pragma once

#include <string>
#include <vector>

#include "engine/job/job.h"
#include "engine/train/saved_facts.h"

namespace trainer {

enum class Change : std::uint8_t {
  never,     ///< an error, unless accepted
  training,  ///< may change while a run goes on; a finished run would have ended differently
  output,    ///< changes nothing that is trained
};

/// What the table says of a key path, and the word of checkpoint.accept that covers it (of Change::never).
struct ChangeRule {
  Change change = Change::never;
  std::string_view accept{};
};
ChangeRule change_rule(std::string_view path);

struct Difference {
  std::string path;           ///< of the job
  std::string before, after;  ///< "(not set)" where one lacks it
  ChangeRule rule;
  std::string note{};        ///< in place of the two values: how data files differ
  std::string parameters{};  ///< whose optimizer it is, where the values are names of optimizers

  std::string values() const {
    if (!note.empty()) return note;
    return before + " → " + after + (parameters.empty() ? "" : " (" + parameters + ")");
  }
  std::string str() const { return path + " " + values(); }
};

/// This job as a checkpoint would describe it: settings, graph, data files.
SavedJob describe_job(const LoadedJob& loaded);

/// Every difference, in the order of the job's keys. Values that mean the same (4 and 4.0) do not differ; neither do
/// data files and graphs at another place with the same contents, nor a key that `before` lacks and that has its
/// default now. The names of optimizers are compared for each parameter, however the job's groups are written.
std::vector<Difference> differences(const SavedFacts& before, const SavedFacts& after);

/// Throws JobError with every difference that may not be and is not accepted; `before` is read from `checkpoint`.
void require_same_run(const LoadedJob& loaded, const SavedFacts& before, const std::vector<Difference>& differences,
                      const std::string& checkpoint);

/// Throws JobError where a run that has finished would have ended differently under this job.
void require_same_end(const LoadedJob& loaded, const std::vector<Difference>& differences,
                      const std::string& checkpoint);

}  // namespace trainer
