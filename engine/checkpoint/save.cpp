// Saving. A rank's file leaves a record `<file>.record` (its checksum and pieces) next to it, so that rank 0 needs no
// message from the others but the barrier; commit() turns the records into the manifest.
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/copy.h"
#include "engine/checkpoint/layout.h"
#include "engine/core/check.h"
#include "engine/core/error.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecord = ".record";

[[noreturn]] void fail(const std::string& path, const std::string& doing, const std::error_code& error) {
  throw IoError(path + ": " + doing + ": " + error.message());
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(path, "removing", error);
}

void make_directory(const std::string& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error) fail(path, "creating the directory", error);
}

std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator each(dir, error), end; !error && each != end; each.increment(error))
    names.push_back(each->path().filename().string());
  if (error) fail(dir, "listing", error);
  return names;
}

void write_durably(const std::string& path, const std::string& text) {
  const Descriptor file = create_file(path);
  write_all(file, text.data(), text.size(), path);
  sync_file(file, path);
}

void rename_path(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(from, "renaming to " + to, error);
}

// A save that the system refuses; the user learns what is left of the run.
template <typename Action>
auto saving(Action&& action) {
  try {
    return action();
  } catch (const IoError& error) {
    throw IoError(
        std::string(error.what()) +
        "; earlier checkpoints are whole: when the cause is removed, the same command goes on from the newest");
  }
}

// Does away with what is no longer needed. What cannot be removed (as files of another user) is no reason to lose a
// run.
template <typename Action>
void discard(const HeldDirectory& held, Action&& action) {
  try {
    action();
  } catch (const IoError& error) {
    held.warn(std::string(error.what()) + "; the run goes on, but this takes space until it is removed by hand");
  }
}

void discard_tree(const HeldDirectory& held, const std::string& path) {
  discard(held, [&] { remove_tree(path); });
}

// A kill between the two steps leaves a hidden name, never a checkpoint with files missing.
void discard_checkpoint(const HeldDirectory& held, std::int64_t step) {
  const std::string trash = held.path() + "/" + hidden_name(step, kTrash);
  discard(held, [&] {
    remove_tree(trash);
    rename_path(held.path() + "/" + step_name(step), trash);
    remove_tree(trash);
  });
}

// Puts `from` in the place of the checkpoint `to`, which may exist. The exchange is atomic; where the file system has
// none, the old one steps aside first, and clear_leftovers() brings it back if the run dies in between.
void replace(const HeldDirectory& held, const std::string& from, const std::string& to, const std::string& aside) {
  if (!exists(to)) return rename_path(from, to);
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return discard_tree(held, from);
  if (errno != EINVAL && errno != ENOSYS) fail_io(from, "exchanging with " + to);
  rename_path(to, aside);
  rename_path(from, to);
  discard_tree(held, aside);
}

void clear_leftovers(const HeldDirectory& held) {
  for (const std::string& name : names_in(held.path())) {
    if (name == kCarried) discard_tree(held, held.path() + "/" + name);
    const auto hidden = hidden_of(name);
    if (!hidden) continue;
    const std::string path = held.path() + "/" + name, home = held.path() + "/" + step_name(hidden->step);
    hidden->suffix == kReplaced && !exists(home) ? rename_path(path, home) : discard_tree(held, path);
  }
}

// What a save does, in small, under the longest names that it uses: what the system refuses is known before the first
// step.
void try_writing(const std::string& dir) {
  const std::string folder = dir + "/" + hidden_name(0, kUnfinished);
  try {
    make_directory(folder);
    write_durably(folder + "/" + file_name("optimizer", 0, 2) + std::string(kRecord), "tried");
    remove_tree(folder);
  } catch (const IoError& error) {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    throw IoError(dir + ": checkpoints cannot be saved here: " + error.what());
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
  for (const std::string& name : names_in(directory))
    if (name.ends_with(kRecord)) records.push_back(directory + "/" + name);
  std::sort(records.begin(), records.end());
  Manifest whole;
  std::map<std::string, std::size_t> index;
  for (const std::string& path : records) {
    add_record(whole, index, parse_manifest(read_text(path, kMaxManifestBytes), path));
    remove_tree(path);
  }
  return whole;
}

std::vector<TensorSpec> specs_of(const std::vector<FileWriter::Entry>& entries) {
  std::vector<TensorSpec> specs;
  for (const FileWriter::Entry& entry : entries)
    specs.push_back({piece_key(entry.tensor, entry.range), entry.tensor.dtype, piece_shape(entry.tensor, entry.range)});
  return specs;
}

std::vector<FileWriter::Entry> ordered(std::vector<FileWriter::Entry> entries) {
  std::stable_sort(entries.begin(), entries.end(), [](const FileWriter::Entry& a, const FileWriter::Entry& b) {
    return size_of(a.tensor.dtype) > size_of(b.tensor.dtype);
  });
  return entries;
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
      writer_(saving([&] {
        return SafetensorsWriter(directory_ + "/" + name_, specs_of(entries_), {{"format", "pt"}});
      })) {}

void FileWriter::write(const Entry& entry, const void* data, std::int64_t count) {
  saving([&] { writer_.write(piece_key(entry.tensor, entry.range), data, count * size_of(entry.tensor.dtype)); });
}

void FileWriter::finish() {
  saving([&] { close(); });
}

void FileWriter::close() {
  const SafetensorsWriter::Written written = writer_.finish();
  Manifest record;
  record.files.push_back({name_, written.bytes, written.checksum});
  for (const Entry& entry : entries_) record.tensors.push_back({entry.tensor, {{entry.range, 0}}});
  const std::string path = directory_ + "/" + name_ + std::string(kRecord), text = print_manifest(record);
  const Descriptor file = create_file(path);
  write_all(file, text.data(), text.size(), path);
}

Store::Store(std::string dir, Warn warn) : held_(std::move(dir), std::move(warn)) {
  clear_leftovers(held_);
  try_writing(held_.path());
}

// A save that failed leaves nothing behind on a disk that may be full.
Store::~Store() {
  std::error_code ignored;
  if (unfinished_ && held_.is_in_place()) fs::remove_all(dir() + "/" + hidden_name(*unfinished_, kUnfinished), ignored);
  if (!carried_.empty() && held_.is_in_place()) fs::remove_all(carried_folder(), ignored);
}

void Store::begin(std::int64_t step) {
  saving([&] {
    held_.ensure();
    const std::string path = dir() + "/" + hidden_name(step, kUnfinished);
    remove_tree(path);
    make_directory(path);
    unfinished_ = step;
  });
}

bool Store::has_all_records() const {
  const std::vector<std::string> names =
      unfinished_ ? names_in(dir() + "/" + hidden_name(*unfinished_, kUnfinished)) : std::vector<std::string>{};
  return std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.ends_with(kRecord) || std::find(names.begin(), names.end(), name + std::string(kRecord)) != names.end();
  });
}

std::string Store::commit(std::int64_t step, const std::string& plan_hash, const std::string& metadata) {
  const std::string home = dir() + "/" + step_name(step);
  saving([&] { make_checkpoint(step, plan_hash, metadata, home); });
  return home;
}

void Store::make_checkpoint(std::int64_t step, const std::string& plan_hash, const std::string& metadata,
                            const std::string& home) {
  const std::string unfinished = dir() + "/" + hidden_name(step, kUnfinished);
  Manifest manifest = gather_records(unfinished);
  manifest.step = step;
  manifest.plan_hash = plan_hash;
  manifest.metadata = metadata;
  put_carried(unfinished, manifest);
  check_complete(manifest, unfinished);
  const std::string text = print_manifest(manifest);
  CHECK(step <= kMaxStep && static_cast<std::int64_t>(text.size()) <= kMaxManifestBytes,
        "a manifest of step " + std::to_string(step) + " and " + std::to_string(text.size()) +
            " bytes, which no reader takes");
  write_durably(unfinished + "/" + kManifestName, text);
  sync_directory(unfinished);
  if (!held_.is_in_place())
    throw IoError(dir() + ": was moved, replaced or removed while a checkpoint was written there");
  replace(held_, unfinished, home, dir() + "/" + hidden_name(step, kReplaced));
  unfinished_.reset();
  sync_directory(dir());
}

std::string Store::carried_folder() const { return dir() + "/" + std::string(kCarried); }

void Store::carry(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) carry_as(path, fs::path(path).filename().string());
}

void Store::carry_as(const std::string& path, const std::string& name) {
  saving([&] {
    make_directory(carried_folder());
    const Copied copied = copy_durably(path, carried_folder() + "/" + name);
    carried_.push_back({name, copied.bytes, copied.checksum});
    CHECK(name != kManifestName && !holds_tensors(carried_.back()), name + " has the name of a checkpoint's own file");
    sync_directory(carried_folder());
  });
}

void Store::put_carried(const std::string& unfinished, Manifest& manifest) const {
  for (const FileInfo& file : carried_) {
    const std::string from = carried_folder() + "/" + file.name, to = unfinished + "/" + file.name;
    if (::link(from.c_str(), to.c_str()) != 0) copy_durably(from, to);
    manifest.files.push_back(file);
  }
}

void Store::remove_older(std::int64_t step, std::int64_t keep, const std::vector<std::int64_t>& besides) {
  std::int64_t newer = 0;
  for (const CheckpointPath& each : list_checkpoints(dir())) {
    if (keep == 0 || each.step > step || ++newer <= keep) continue;
    if (std::find(besides.begin(), besides.end(), each.step) == besides.end()) discard_checkpoint(held_, each.step);
  }
}

std::string Store::set_aside(std::int64_t step) {
  const std::string home = dir() + "/" + step_name(step), aside = home + std::string(kDiverged);
  remove_tree(aside);
  rename_path(home, aside);
  sync_directory(dir());
  return aside;
}

}  // namespace trainer::checkpoint
