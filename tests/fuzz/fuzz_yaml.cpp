// Any bytes as YAML: either a JobError with a place, or a tree whose one-line form reads back to the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/job/yaml.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trainer;
  try {
    const yaml::Node tree = yaml::parse(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    const std::string flow = tree.flow();
    tree.brief();
    // Expanded aliases may make a tree longer than a file may be.
    if (flow.size() <= yaml::kMaxBytes && yaml::parse(flow, "again").flow() != flow) std::abort();
  } catch (const JobError& error) {
    for (const Diagnostic& mistake : error.diagnostics()) {
      if (mistake.file != "fuzz" || mistake.line < 1 || mistake.column < 1) std::abort();
    }
  }
  return 0;
}
