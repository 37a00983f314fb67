// Checkpoints of a run: directories `<dir>/step-00000500/` of a manifest and safetensors files.
//
// Invariant: a directory of that name is whole, or was damaged later; never half written. A save fills
// `<dir>/.step-00000500.tmp` (every file, then the manifest, each synced), renames it, syncs `<dir>`, and only then
// removes what `keep` no longer wants. So a run killed at any moment leaves the checkpoints it had before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/held_directory.h"
#include "engine/checkpoint/manifest.h"
#include "engine/checkpoint/safetensors.h"
#include "engine/checkpoint/tensor_store.h"

namespace trainer::checkpoint {

struct CheckpointPath {
  std::int64_t step = 0;
  std::string path;
};

/// The checkpoints in `dir`, by falling step, whole or not; none if there is no such directory.
std::vector<CheckpointPath> list_checkpoints(const std::string& dir);

/// What is known of a checkpoint, damaged or not.
struct Examined {
  std::optional<Manifest> manifest;    ///< if it can be read and is complete
  std::optional<TensorStore> tensors;  ///< if the checkpoint is whole
  std::vector<std::string> damage;     ///< per damaged file what is wrong, as "path: …"
};

/// Reads every byte of a checkpoint. Damage is what is missing or wrong in its files; where the system refuses to read
/// them (no permission, a read error) nothing is known about them, and IoError is raised.
Examined examine(const std::string& path);
/// The same of a checkpoint that a live run may replace or remove: nothing where it did.
std::optional<Examined> examine_unless_replaced(const std::string& path);
/// The damage that examine() finds; empty if the checkpoint is whole.
std::vector<std::string> verify(const std::string& path);

/// An opened checkpoint.
struct Checkpoint {
  std::string path;
  Manifest manifest;
  TensorStore tensors;
};

/// Opens without checksums of the files (the manifest's own is checked). Raises DataError if it does not fit together.
Checkpoint open_checkpoint(const std::string& path);

struct NewestWhole {
  std::optional<Checkpoint> checkpoint;  ///< nothing if there is no whole one
  std::vector<std::string> damaged;      ///< what is wrong with the newer ones that were passed over
};

/// Examines from the newest on, until one is whole. Raises IoError where one cannot be read: it may be whole.
NewestWhole newest_whole(const std::string& dir);

/// IoError: a live run replaces the checkpoints in `dir` faster than they can be read.
[[noreturn]] void fail_replaced(const std::string& dir);

/// Calls `attempt` until it returns something: it returns nothing where a live run replaced what it was reading.
template <typename Attempt>
auto while_replaced(const std::string& dir, Attempt&& attempt) {
  constexpr int kMostAttempts = 100;
  for (int i = 0; i < kMostAttempts; ++i)
    if (auto found = attempt()) return std::move(*found);
  fail_replaced(dir);
}

// ---- Writing. Every rank writes its own files, then rank 0 commits. Ranks are threads or processes that share the
// file system; the caller puts a barrier after begin() and one before commit(). ----

/// One file of one rank: some pieces of global tensors.
class FileWriter {
 public:
  struct Entry {
    TensorInfo tensor;
    Range range;
  };

  /// Creates `name` (as model.safetensors, optimizer-00001-of-00004.safetensors) in the unfinished checkpoint of
  /// `step`.
  FileWriter(const std::string& dir, std::int64_t step, const std::string& name, std::vector<Entry> entries);

  /// The order in which write() wants them: by falling element size, else as given.
  const std::vector<Entry>& order() const { return entries_; }
  /// Appends `count` elements to the entry whose turn it is; an entry may come in any number of parts.
  void write(const Entry& entry, const void* data, std::int64_t count);
  /// Waits until the file is on the disk, and leaves its record for commit().
  void finish();

 private:
  void close();

  std::string directory_, name_;
  std::vector<Entry> entries_;
  SafetensorsWriter writer_;
};

/// File names by the layout of section 7: `model.safetensors` for one owner, else `model-00001-of-00004.safetensors`.
std::string file_name(const std::string& stem, int owner, int num_owners);

/// Rank 0's hold on a directory of checkpoints that a run writes to.
class Store {
 public:
  /// Makes the directory, refuses (IoError) one that another run holds or that cannot be written, and clears what
  /// killed runs left behind. `warn` hears of what does not end the run, as a checkpoint that cannot be removed.
  explicit Store(std::string dir, Warn warn = {});
  ~Store();
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;

  const std::string& dir() const { return held_.path(); }
  /// Copies files that every checkpoint from now on holds beside its tensors, listed in its manifest: as they are now,
  /// whatever becomes of them later. They lie on the disk once: checkpoints hold hard links, or copies where the file
  /// system has none.
  void carry(const std::vector<std::string>& paths);
  /// The same of one file, under another name.
  void carry_as(const std::string& path, const std::string& name);
  /// Starts the unfinished checkpoint of `step`, empty.
  void begin(std::int64_t step);
  /// Whether every file that was created since begin() is finished: for when ranks cannot meet before commit().
  bool has_all_records() const;
  /// Makes the checkpoint of all files finished since begin(): checks that their pieces cover every tensor once,
  /// writes the manifest, renames, replaces one of the same step. `metadata` is JSON. Returns its path.
  std::string commit(std::int64_t step, const std::string& plan_hash, const std::string& metadata);
  /// Removes checkpoints up to `step`, except the `keep` newest (0 keeps all) and those whose steps are in `besides`.
  /// Later ones stay: they belong to a run that was resumed before them. It is not a part of commit(), because a run
  /// may be killed between the two.
  void remove_older(std::int64_t step, std::int64_t keep, const std::vector<std::int64_t>& besides = {});
  /// Renames the checkpoint of `step` so that no run resumes from it by itself. Returns its new path.
  std::string set_aside(std::int64_t step);

 private:
  void make_checkpoint(std::int64_t step, const std::string& plan_hash, const std::string& metadata,
                       const std::string& home);
  void put_carried(const std::string& unfinished, Manifest& manifest) const;
  std::string carried_folder() const;

  HeldDirectory held_;
  std::vector<FileInfo> carried_;
  std::optional<std::int64_t> unfinished_;  // the step between begin() and commit()
};

}  // namespace trainer::checkpoint
