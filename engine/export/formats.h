// What a Source becomes. Each writes everything under `path`, synced, and says in `report` what it wrote.
#pragma once

#include <string>

#include "engine/core/disk_names.h"
#include "engine/export/export.h"
#include "engine/export/source.h"

namespace trainer::exporting {

void write_hf_folder(const Source& source, const std::string& path, const Options& options, Report& report);
void write_gguf_file(const Source& source, const std::string& path, const Options& options, Report& report);
/// An adapter as PEFT saves it, of the checkpoint that the options name.
void write_adapter_folder(const std::string& path, const Options& options, Report& report);

/// Bytes that are done, told as they are.
class Progress {
 public:
  Progress(const Options& options, std::int64_t total) : options_(options), total_(total) {}
  void add(std::int64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

 private:
  const Options& options_;
  std::int64_t total_, done_ = 0;
};

/// What the files of a model folder call a parameter: behind their prefix, but for names that stay as they are.
std::string with_prefix(const DiskNames& names, const std::string& name);

/// A file of this text, synced.
void write_text(const std::string& path, const std::string& text);

/// Floats in a 2-byte or 4-byte dtype, each rounded once. Raises DataError, naming the tensor, where one does not fit.
void narrow(const std::vector<float>& values, DType dtype, const std::string& tensor, std::vector<std::byte>& out);

}  // namespace trainer::exporting
