// Finding, verifying and opening checkpoints.
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/layout.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;

Manifest read_manifest(const std::string& path) {
  const std::string file = path + "/" + kManifestName;
  Manifest manifest = parse_manifest(read_text(file, kMaxManifestBytes), file);
  check_complete(manifest, file);
  return manifest;
}

void check_file(const std::string& path, const FileInfo& info) {
  const std::int64_t bytes = file_size(open_for_reading(path), path);
  if (bytes != info.bytes) {
    throw DataError(path + ": offset " + std::to_string(std::min(bytes, info.bytes)) + ": has " + std::to_string(bytes) +
                    " bytes, where the manifest says " + std::to_string(info.bytes));
  }
  const std::string checksum = checksum_of_file(path);
  if (checksum != info.checksum) throw DataError(path + ": checksum " + checksum + ", where the manifest says " + info.checksum);
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
  std::sort(found.begin(), found.end(), [](const CheckpointPath& a, const CheckpointPath& b) { return a.step > b.step; });
  return found;
}

std::vector<std::string> verify(const std::string& path) {
  Manifest manifest;
  try {
    manifest = read_manifest(path);
  } catch (const DataError& error) {
    return {error.what()};
  } catch (const IoError& error) {
    return {error.what()};
  }
  std::vector<std::string> damage;
  for (const FileInfo& file : manifest.files) {
    try {
      check_file(path + "/" + file.name, file);
    } catch (const DataError& error) {
      damage.push_back(error.what());
    } catch (const IoError& error) {
      damage.push_back(error.what());
    }
  }
  return damage;
}

Checkpoint open_checkpoint(const std::string& path) {
  Manifest manifest = read_manifest(path);
  TensorStore tensors = TensorStore::from_manifest(path, manifest);
  return {path, std::move(manifest), std::move(tensors)};
}

NewestWhole newest_whole(const std::string& dir) {
  NewestWhole newest;
  for (const CheckpointPath& each : list_checkpoints(dir)) {
    std::vector<std::string> damage = verify(each.path);
    if (damage.empty()) {
      try {
        newest.checkpoint = open_checkpoint(each.path);
        return newest;
      } catch (const DataError& error) {
        damage.push_back(error.what());
      }
    }
    newest.damaged.insert(newest.damaged.end(), damage.begin(), damage.end());
  }
  return newest;
}

}  // namespace trainer::checkpoint
