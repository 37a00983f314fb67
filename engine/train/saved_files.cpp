// A file that is written behind the step is its FileWriter, created in the step, and a run of elements of the copy.
#include "engine/train/saved_files.h"

#include <system_error>
#include <utility>

#include "engine/core/check.h"
#include "engine/core/dtype.h"
#include "engine/core/error.h"
#include "engine/core/system_error.h"

namespace trainer {

void FilesAtOnce::begin(const std::string& name, std::vector<Entry> entries) {
  file_.emplace(dir_, step_, name, std::move(entries));
}

float* FilesAtOnce::room(std::int64_t count) {
  const auto size = static_cast<std::size_t>(count);
  if (part_.capacity() < size) {  // resize() alone would take up to twice as much, beside the old part
    part_ = std::vector<float>();
    part_.reserve(size);
  }
  part_.resize(size);
  return part_.data();
}

void FilesAtOnce::end() {
  file_->finish();
  file_.reset();
}

FilesBehind::FilesBehind(std::int64_t bytes)
    : elements_(bytes / size_of(DType::f32)),
      copy_(std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements_))) {}

void FilesBehind::stage(const std::string& dir, std::int64_t step) {
  CHECK(!thread_.joinable(), "a checkpoint is staged while another is written");
  dir_ = dir;
  step_ = step;
  filled_ = 0;
  files_.clear();
}

void FilesBehind::begin(const std::string& name, std::vector<Entry> entries) {
  files_.push_back({std::make_unique<checkpoint::FileWriter>(dir_, step_, name, std::move(entries)), filled_});
}

float* FilesBehind::room(std::int64_t count) {
  CHECK(filled_ + count <= elements_, "a checkpoint is larger than the plan says");
  return copy_.get() + filled_;
}

void FilesBehind::filled(const Entry& /*entry*/, std::int64_t count) { filled_ += count; }

void FilesBehind::start() {
  if (files_.empty()) return;
  ended_ = false;
  try {
    thread_ = std::jthread([this] {
      try {
        write();
      } catch (...) {
        error_ = std::current_exception();
      }
      ended_.store(true, std::memory_order_release);
    });
  } catch (const std::system_error&) {
    throw IoError("starting the thread that writes a checkpoint: " + threads_refused());
  }
}

void FilesBehind::write() {
  for (const File& file : files_) {
    const float* next = copy_.get() + file.first;
    for (const Entry& entry : file.writer->order()) {
      file.writer->write(entry, next, entry.range.size());
      next += entry.range.size();
    }
    file.writer->finish();
  }
}

void FilesBehind::finish() {
  if (thread_.joinable()) thread_.join();
  files_.clear();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace trainer
