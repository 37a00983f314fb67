// Patterns are matched name by name with fnmatch(3); only `**` is our own.
#include "engine/data/files.h"

#include <fnmatch.h>

#include <algorithm>
#include <filesystem>

#include "engine/core/error.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

// Below this a map's page and its place among the 65,530 a process may have cost more than a copy.
constexpr std::uintmax_t kMapBytes = std::uintmax_t{1} << 20;

bool has_wildcard(std::string_view text) { return text.find_first_of("*?[") != std::string_view::npos; }

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator each(folder.empty() ? "." : folder, error), end; !error && each != end; each.increment(error)) {
    entries.push_back(*each);
  }
  if (error) throw IoError(folder.string() + ": listing: " + error.message());
  return entries;
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
    const bool last = index + 1 == parts_.size();
    if (part == "**") return match_any_depth(folder, index);
    if (!has_wildcard(part)) return step(folder / part, fs::directory_entry(folder / part), index);
    if (!fs::is_directory(folder.empty() ? "." : folder)) return;
    for (const fs::directory_entry& entry : entries_of(folder)) {
      const std::string name = entry.path().filename().string();
      if (!last && !entry.is_directory()) continue;
      if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) == 0) step(folder / name, entry, index);
    }
  }

  void match_any_depth(const fs::path& folder, std::size_t index) {
    const bool last = index + 1 == parts_.size();
    if (!last) match(folder, index + 1);
    if (!fs::is_directory(folder.empty() ? "." : folder)) return;
    for (const fs::directory_entry& entry : entries_of(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.')) continue;
      if (entry.is_directory() && !entry.is_symlink()) match_any_depth(folder / name, index);
      if (last && entry.is_regular_file()) found_.push_back((folder / name).string());
    }
  }

  void step(const fs::path& path, const fs::directory_entry& entry, std::size_t index) {
    std::error_code missing;
    if (index + 1 < parts_.size()) {
      if (entry.exists(missing)) match(path, index + 1);
    } else if (entry.is_regular_file(missing)) {
      found_.push_back(path.string());
    }
  }

  std::vector<fs::path> parts_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> expand_paths(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code missing;
    const fs::file_status status = fs::status(path, missing);
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
  maps_.reserve(paths.size());
  texts_.reserve(paths.size());
  for (const std::string& path : paths) {
    std::error_code missing;
    const std::uintmax_t size = fs::file_size(path, missing);
    std::string_view text;
    if (missing || size >= kMapBytes) {
      text = maps_.emplace_back(path).text();
    } else {
      text = texts_.emplace_back(read_text(path, INT64_MAX));
    }
    files_.push_back({path, text, bytes_});
    bytes_ += static_cast<std::int64_t>(text.size());
  }
}

std::size_t Corpus::file_at(std::int64_t offset) const {
  const auto after =
      std::upper_bound(files_.begin(), files_.end(), offset, [](std::int64_t at, const File& file) { return at < file.start; });
  return static_cast<std::size_t>(after - files_.begin()) - 1;
}

void Corpus::drop_pages() const {
  for (const MappedFile& map : maps_) map.drop_pages();
}

}  // namespace trainer::data
