// A file of its own: a new commit compiles this and nothing else.
#include "tools/version.h"

namespace trainer::tools {

std::string version_text() {
  const std::string commit = TRAINER_COMMIT;
  return std::string("trainer ") + TRAINER_VERSION + (commit.empty() ? "" : " (" + commit + ")");
}

}  // namespace trainer::tools
