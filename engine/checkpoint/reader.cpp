// Finding, verifying and opening checkpoints.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/layout.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

// The last name of a path; empty for "." and "..", which do not tell it.
std::string last_name(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  const std::string name = (normal.has_filename() ? normal : normal.parent_path()).filename().string();
  return name == "." || name == ".." ? "" : name;
}

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/" + kManifestName;
  Manifest manifest = parse_manifest(read_text(file, kMaxManifestBytes), file);
  check_complete(manifest, file);
  const std::optional<std::int64_t> named = step_of(last_name(path));
  if (named && *named != manifest.step) {
    throw DataError(file + ": is of step " + std::to_string(manifest.step) + ", but its directory is named for step " +
                    std::to_string(*named) + ": renamed or copied from another checkpoint");
  }
  return manifest;
}

void check_file(const std::string& path, const FileInfo& info) {
  const std::int64_t bytes = file_size(open_for_reading(path), path);
  if (bytes != info.bytes) {
    throw DataError(path + ": offset " + std::to_string(std::min(bytes, info.bytes)) + ": has " +
                    std::to_string(bytes) + " bytes, where the manifest says " + std::to_string(info.bytes));
  }
  const std::string checksum = checksum_of_file(path);
  if (checksum != info.checksum)
    throw DataError(path + ": checksum " + checksum + ", where the manifest says " + info.checksum);
}

// Which directory a path names at the moment; nothing if none.
std::optional<std::pair<dev_t, ino_t>> identity_of(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) return std::pair(status.st_dev, status.st_ino);
  if (errno != ENOENT) fail_io(path, "reading");
  return std::nullopt;
}

// Nothing if a checkpoint was replaced or removed meanwhile.
std::optional<NewestWhole> try_newest_whole(const std::string& dir) {
  NewestWhole newest;
  for (const CheckpointPath& each : list_checkpoints(dir)) {
    std::optional<Examined> examined = examine_unless_replaced(each.path);
    if (!examined) return std::nullopt;
    newest.damaged.insert(newest.damaged.end(), examined->damage.begin(), examined->damage.end());
    if (!examined->tensors) continue;
    newest.checkpoint = Checkpoint{each.path, std::move(*examined->manifest), std::move(*examined->tensors)};
    break;
  }
  return newest;
}

}  // namespace

std::vector<CheckpointPath> list_checkpoints(const std::string& dir) {
  std::vector<CheckpointPath> found;
  std::error_code error;
  for (fs::directory_iterator each(dir, error), end; !error && each != end; each.increment(error)) {
    const auto step = step_of(each->path().filename().string());
    if (step) found.push_back({*step, each->path().string()});
  }
  if (error && error != std::errc::no_such_file_or_directory) throw IoError(dir + ": listing: " + error.message());
  std::sort(found.begin(), found.end(),
            [](const CheckpointPath& a, const CheckpointPath& b) { return a.step > b.step; });
  return found;
}

Examined examine(const std::string& path) {
  Examined examined;
  try {
    examined.manifest = read_manifest(path);
  } catch (const DataError& error) {
    examined.damage.push_back(error.what());
    return examined;
  }
  for (const FileInfo& file : examined.manifest->files) {
    try {
      check_file(path + "/" + file.name, file);
    } catch (const DataError& error) {
      examined.damage.push_back(error.what());
    }
  }
  if (!examined.damage.empty()) return examined;
  try {
    examined.tensors = TensorStore::from_manifest(path, *examined.manifest);
  } catch (const DataError& error) {
    examined.damage.push_back(error.what());
  }
  return examined;
}

std::vector<std::string> verify(const std::string& path) { return examine(path).damage; }

std::optional<Examined> examine_unless_replaced(const std::string& path) {
  const auto before = identity_of(path);
  if (!before) return std::nullopt;
  try {
    Examined examined = examine(path);
    if (examined.damage.empty() || identity_of(path) == before) return examined;
  } catch (const IoError&) {
    if (identity_of(path) == before) throw;
  }
  return std::nullopt;
}

Checkpoint open_checkpoint(const std::string& path) {
  Manifest manifest = read_manifest(path);
  TensorStore tensors = TensorStore::from_manifest(path, manifest);
  return {path, std::move(manifest), std::move(tensors)};
}

NewestWhole newest_whole(const std::string& dir) {
  try {
    return while_replaced(dir, [&] { return try_newest_whole(dir); });
  } catch (const IoError& error) {
    throw IoError(std::string(error.what()) +
                  "; the checkpoint may be whole, so no older one is used in its place. Try again, name an older one, "
                  "or move this one away");
  }
}

void fail_replaced(const std::string& dir) {
  throw IoError(dir +
                ": a run that saves here replaces its checkpoints faster than they can be read; read it when the run "
                "has ended, or let it keep more (checkpoint.keep)");
}

}  // namespace trainer::checkpoint
