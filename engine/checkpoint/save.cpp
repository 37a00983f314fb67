// Saving. A rank's file leaves a record `<file>.record` (its checksum and pieces) next to it, so that rank 0 needs no
// message from the others but the barrier; commit() turns the records into the manifest.
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/layout.h"
#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecord = ".record";
constexpr std::int64_t kMaxRecordBytes = std::int64_t{1} << 30;

[[noreturn]] void fail(const std::string& path, const std::string& doing, const std::error_code& error) {
  throw IoError(path + ": " + doing + ": " + error.message());
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(path, "removing", error);
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(from, "renaming to " + to, error);
}

// A kill between the two steps leaves a hidden name, never a checkpoint with files missing.
void remove_checkpoint(const std::string& dir, std::int64_t step) {
  const std::string trash = dir + "/" + hidden_name(step, kTrash);
  remove_tree(trash);
  rename_path(dir + "/" + step_name(step), trash);
  remove_tree(trash);
}

// Puts `from` in the place of the checkpoint `to`, which may exist. The exchange is atomic; where the file system has
// none, the old one steps aside first, and clear_leftovers() brings it back if the run dies in between.
void replace(const std::string& from, const std::string& to, const std::string& aside) {
  if (!fs::exists(to)) return rename_path(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return remove_tree(from);
  if (errno != EINVAL && errno != ENOSYS) fail_io(from, "exchanging with " + to);
  rename_path(to, aside);
  rename_path(from, to);
  remove_tree(aside);
}

void clear_leftovers(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& each : fs::directory_iterator(dir)) names.push_back(each.path().filename().string());
  for (const std::string& name : names) {
    const auto hidden = hidden_of(name);
    if (!hidden) continue;
    const std::string home = dir + "/" + step_name(hidden->step);
    if (hidden->suffix == kReplaced && !fs::exists(home)) {
      rename_path(dir + "/" + name, home);
    } else {
      remove_tree(dir + "/" + name);
    }
  }
}

// A record is a manifest of one file.
void add_record(Manifest& whole, std::map<std::string, std::size_t>& index, const Manifest& record) {
  const std::size_t file = whole.files.size();
  whole.files.push_back(record.files.at(0));
  for (const StoredTensor& tensor : record.tensors) {
    const auto [at, is_new] = index.emplace(tensor.info.name, whole.tensors.size());
    if (is_new) whole.tensors.push_back({tensor.info, {}});
    StoredTensor& known = whole.tensors[at->second];
    CHECK(known.info == tensor.info, "two ranks save " + tensor.info.name + " with different dtypes or shapes");
    for (const Piece& piece : tensor.pieces) known.pieces.push_back({piece.range, file});
  }
}

Manifest gather_records(const std::string& directory) {
  std::vector<std::string> records;
  for (const auto& each : fs::directory_iterator(directory)) {
    if (each.path().extension() == kRecord) records.push_back(each.path().string());
  }
  std::sort(records.begin(), records.end());
  Manifest whole;
  std::map<std::string, std::size_t> index;
  for (const std::string& path : records) {
    add_record(whole, index, parse_manifest(read_text(path, kMaxRecordBytes), path));
    remove_tree(path);
  }
  return whole;
}

std::vector<TensorSpec> specs_of(const std::vector<FileWriter::Entry>& entries) {
  std::vector<TensorSpec> specs;
  for (const FileWriter::Entry& entry : entries) specs.push_back({piece_key(entry.tensor, entry.range), entry.tensor.dtype, piece_shape(entry.tensor, entry.range)});
  return specs;
}

std::vector<FileWriter::Entry> ordered(std::vector<FileWriter::Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const FileWriter::Entry& a, const FileWriter::Entry& b) {
    return size_of(a.tensor.dtype) > size_of(b.tensor.dtype);
  });
  return entries;
}

void write_durably(const std::string& path, const std::string& text) {
  const Descriptor file = create_file(path);
  write_all(file, text.data(), text.size(), path);
  sync_file(file, path);
}

}  // namespace

std::string file_name(const std::string& stem, int owner, int num_owners) {
  if (num_owners == 1) return stem + ".safetensors";
  const auto padded = [](int number) {
    const std::string digits = std::to_string(number);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return stem + "-" + padded(owner) + "-of-" + padded(num_owners) + ".safetensors";
}

FileWriter::FileWriter(const std::string& dir, std::int64_t step, const std::string& name, std::vector<Entry> entries)
    : directory_(dir + "/" + hidden_name(step, kUnfinished)),
      name_(name),
      entries_(ordered(std::move(entries))),
      writer_(directory_ + "/" + name_, specs_of(entries_), {{"format", "pt"}}) {}

void FileWriter::write(const Entry& entry, const void* data, std::int64_t count) {
  writer_.write(piece_key(entry.tensor, entry.range), data, count * size_of(entry.tensor.dtype));
}

void FileWriter::finish() {
  const SafetensorsWriter::Written written = writer_.finish();
  Manifest record;
  record.files.push_back({name_, written.bytes, written.checksum});
  for (const Entry& entry : entries_) record.tensors.push_back({entry.tensor, {{entry.range, 0}}});
  const std::string path = directory_ + "/" + name_ + std::string(kRecord), text = print_manifest(record);
  const Descriptor file = create_file(path);
  write_all(file, text.data(), text.size(), path);
}

Store::Store(std::string dir) : dir_(std::move(dir)) {
  std::error_code error;
  fs::create_directories(dir_, error);
  if (error) fail(dir_, "making the directory", error);
  lock_ = Descriptor(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_) fail_io(dir_, "opening");
  // The kernel drops the lock when the run ends, however it ends. A file system without locks is used without.
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) throw IoError(dir_ + ": another run saves its checkpoints here");
    if (errno != ENOLCK && errno != ENOSYS && errno != EOPNOTSUPP) fail_io(dir_, "locking");
  }
  clear_leftovers(dir_);
}

void Store::begin(std::int64_t step) {
  const std::string path = dir_ + "/" + hidden_name(step, kUnfinished);
  remove_tree(path);
  std::error_code error;
  fs::create_directory(path, error);
  if (error) fail(path, "making the directory", error);
}

std::string Store::commit(std::int64_t step, const std::string& plan_hash, const std::string& metadata, int keep) {
  const std::string unfinished = dir_ + "/" + hidden_name(step, kUnfinished), home = dir_ + "/" + step_name(step);
  Manifest manifest = gather_records(unfinished);
  manifest.step = step;
  manifest.plan_hash = plan_hash;
  manifest.metadata = metadata;
  check_complete(manifest, unfinished);
  write_durably(unfinished + "/" + kManifestName, print_manifest(manifest));
  sync_directory(unfinished);
  replace(unfinished, home, dir_ + "/" + hidden_name(step, kReplaced));
  sync_directory(dir_);
  remove_older(step, keep);
  return home;
}

void Store::remove_older(std::int64_t step, int keep) {
  int newer = 0;
  for (const CheckpointPath& each : list_checkpoints(dir_)) {
    if (keep > 0 && each.step <= step && ++newer > keep) remove_checkpoint(dir_, each.step);
  }
}

}  // namespace trainer::checkpoint
