// The files of a checkpoint as a rank saves them: at once, or from a copy in host memory while the next steps run.
//
// Invariant: both write the same bytes. The files are created in the step either way, so that a directory that cannot
// be written is found there; what differs is when their elements reach them. Every tensor of a checkpoint has elements
// of 4 bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/checkpoint/checkpoint.h"

namespace trainer {

/// One file after another: begin, then room and filled for every part of its entries in order, then end.
class SavedFiles {
 public:
  using Entry = checkpoint::FileWriter::Entry;

  virtual ~SavedFiles() = default;
  /// Creates a file.
  virtual void begin(const std::string& name, std::vector<Entry> entries) = 0;
  /// The order in which it wants the elements of its entries.
  virtual const std::vector<Entry>& order() const = 0;
  /// Where the next `count` elements go, until filled().
  virtual float* room(std::int64_t count) = 0;
  /// They are there, and belong to `entry`.
  virtual void filled(const Entry& entry, std::int64_t count) = 0;
  virtual void end() = 0;
};

/// Writes in the step: end() returns when the file is on the disk. Takes the memory of the largest part.
class FilesAtOnce final : public SavedFiles {
 public:
  FilesAtOnce(std::string dir, std::int64_t step) : dir_(std::move(dir)), step_(step) {}
  void begin(const std::string& name, std::vector<Entry> entries) override;
  const std::vector<Entry>& order() const override { return file_->order(); }
  float* room(std::int64_t count) override;
  void filled(const Entry& entry, std::int64_t count) override { file_->write(entry, part_.data(), count); }
  void end() override;

 private:
  const std::string dir_;
  const std::int64_t step_;
  std::optional<checkpoint::FileWriter> file_;
  std::vector<float> part_;
};

/// Keeps a copy of one checkpoint, and writes it on a thread of its own. For one thread, the rank's.
class FilesBehind final : public SavedFiles {
 public:
  /// `bytes`: of the copy, at most. They are touched by the first checkpoint.
  explicit FilesBehind(std::int64_t bytes);

  /// Begins the checkpoint of `step`. REQUIRES: nothing is being written.
  void stage(const std::string& dir, std::int64_t step);
  void begin(const std::string& name, std::vector<Entry> entries) override;
  const std::vector<Entry>& order() const override { return files_.back().writer->order(); }
  float* room(std::int64_t count) override;
  void filled(const Entry& entry, std::int64_t count) override;
  void end() override {}

  /// Starts to write what was staged. Throws IoError where the system allows no thread.
  void start();
  /// Whether nothing is being written any more.
  bool ended() const { return !thread_.joinable() || ended_.load(std::memory_order_acquire); }
  /// Whether that is because something failed.
  bool failed() const { return ended() && error_; }
  /// Waits until all is on the disk. Throws what the writing threw, once.
  void finish();

 private:
  struct File {
    std::unique_ptr<checkpoint::FileWriter> writer;
    std::int64_t first = 0;  // element
  };

  void write();

  const std::int64_t elements_;
  std::unique_ptr<float[]> copy_;
  std::int64_t filled_ = 0;  // elements
  std::string dir_;
  std::int64_t step_ = 0;
  std::vector<File> files_;
  std::atomic<bool> ended_{false};
  std::exception_ptr error_;
  std::jthread thread_;  // last: it is joined before what it uses goes
};

}  // namespace trainer
