// Writing a page: to a hidden file beside it, then into its place. What is there and no plain file (a terminal, a pipe) is written to.
#include <unistd.h>

#include <filesystem>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/monitor/output.h"
#include "tools/plan_page.h"

namespace trainer::tools {

void write_page(const std::string& path, const std::string& page) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(path, error)) throw IoError(path + ": writing the page: it is a folder");
  const bool plain = !fs::exists(path, error) || fs::is_regular_file(path, error);
  const fs::path place = fs::is_symlink(path, error) && plain && fs::exists(path, error) ? fs::canonical(path, error) : fs::path(path);
  make_folders(place.parent_path());
  const std::string written = plain ? (place.parent_path() / fmt::format(".{}.{}", place.filename().string(), ::getpid())).string() : path;
  try {
    const Descriptor file = create_file(written);
    write_all(file, page.data(), page.size(), written);
  } catch (...) {
    if (plain) fs::remove(written, error);
    throw;
  }
  if (!plain) return;
  fs::rename(written, place, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(written, ignored);
  throw IoError(path + ": writing the page: " + error.message());
}

}  // namespace trainer::tools
