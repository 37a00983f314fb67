// To a hidden file beside it, then into its place. What is there and no plain file (a terminal, a pipe) is written to.
#include "tools/page_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/core/error.h"
#include "engine/core/file.h"
#include "engine/monitor/output.h"

namespace trainer::tools {

namespace {

// The generator that every page names in its head. An empty file holds nothing that could be lost.
bool may_replace(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return true;
  std::string head(1024, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return head.empty() || head.find("content=\"trainer plan --html\"") != std::string::npos;
}

}  // namespace

void write_page(const std::string& path, const std::string& page) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_directory(path, error)) throw IoError(path + ": writing the page: it is a folder");
  if (!may_replace(path))
    throw UsageError(
        path +
        ": --html replaces only pages that trainer wrote, and this is another file: remove it, or name another one");
  const bool plain = !fs::exists(path, error) || fs::is_regular_file(path, error);
  const fs::path place =
      fs::is_symlink(path, error) && plain && fs::exists(path, error) ? fs::canonical(path, error) : fs::path(path);
  make_folders(place.parent_path());
  const std::string written =
      plain ? (place.parent_path() / fmt::format(".{}.{}", place.filename().string(), ::getpid())).string() : path;
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
