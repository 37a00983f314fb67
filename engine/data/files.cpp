// Patterns are matched name by name with fnmatch(3); only `**` is our own.
#include "engine/data/files.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostOpen = 256;  // a process may usually have 1024 files open

bool has_wildcard(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

// What is at a path; nothing where a link goes round or leads nowhere. Raises IoError where the system does not let us
// look.
fs::file_status status_of(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (error == std::errc::too_many_symbolic_link_levels || error == std::errc::filename_too_long)
    return fs::file_status(fs::file_type::not_found);
  if (error && status.type() != fs::file_type::not_found)
    throw IoError(path.string() + ": looking it up: " + error.message());
  return status;
}

// Names in a folder, with their paths.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> entries;
  for (fs::directory_iterator each(folder.empty() ? "." : folder, error), end; !error && each != end;
       each.increment(error)) {
    entries.push_back(folder / each->path().filename());
  }
  if (error) throw IoError(folder.string() + ": listing: " + error.message());
  return entries;
}

bool is_link(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored));
}

class Matcher {
 public:
  explicit Matcher(const fs::path& pattern) : parts_(pattern.begin(), pattern.end()) {}

  std::vector<std::string> files() {
    match(fs::path(), 0);
    return std::move(found_);
  }

 private:
  // All files below `folder` whose path matches the parts from `index` on.
  void match(const fs::path& folder, std::size_t index) {
    const std::string part = parts_[index].string();
    if (part == "**") return match_any_depth(folder, index);
    if (!has_wildcard(part)) return step(folder / part, index);
    if (!is_folder(folder)) return;
    for (const fs::path& path : entries_of(folder))
      if (::fnmatch(part.c_str(), path.filename().c_str(), FNM_PERIOD) == 0) step(path, index);
  }

  void match_any_depth(const fs::path& folder, std::size_t index) {
    const bool last = index + 1 == parts_.size();
    if (!last) match(folder, index + 1);
    if (!is_folder(folder)) return;
    for (const fs::path& path : entries_of(folder)) {
      if (path.filename().string().starts_with('.')) continue;
      const fs::file_status status = status_of(path);
      if (fs::is_directory(status) && !is_link(path)) match_any_depth(path, index);
      if (last && fs::is_regular_file(status)) found_.push_back(path.string());
    }
  }

  // `path` matches the parts up to `index`.
  void step(const fs::path& path, std::size_t index) {
    const fs::file_status status = status_of(path);
    if (index + 1 < parts_.size()) {
      if (fs::exists(status)) match(path, index + 1);
    } else if (fs::is_regular_file(status)) {
      found_.push_back(path.string());
    }
  }

  static bool is_folder(const fs::path& path) { return fs::is_directory(status_of(path.empty() ? "." : path)); }

  std::vector<fs::path> parts_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    const fs::file_status status = status_of(path);
    if (fs::is_directory(status)) throw DataError(path + ": is a folder; for all files in it write " + path + "/**");
    if (fs::exists(status)) {
      files.push_back(path);
      continue;
    }
    if (!has_wildcard(path)) throw DataError(path + ": no such file");
    const std::vector<std::string> found = Matcher(path).files();
    if (found.empty()) throw DataError(path + ": no file matches");
    files.insert(files.end(), found.begin(), found.end());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

Corpus::Corpus(const std::vector<std::string>& paths) {
  files_.reserve(paths.size());
  for (const std::string& path : paths) {
    files_.push_back(
        {DataFile(path, files_.size() < kMostOpen ? DataFile::Keep::open : DataFile::Keep::closed), bytes_});
    bytes_ += files_.back().data.bytes();
  }
}

std::size_t Corpus::file_at(std::int64_t offset) const {
  const auto after = std::upper_bound(files_.begin(), files_.end(), offset,
                                      [](std::int64_t at, const File& file) { return at < file.start; });
  return static_cast<std::size_t>(after - files_.begin()) - 1;
}

}  // namespace trainer::data
