// Training runs that others published (published_runs.yaml), each as a job of this project.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trainer {

struct PublishedRun {
  std::string id, software, hardware, certainty, differs;
  bool is_long = false;       ///< planned only when asked for
  bool materialised = false;  ///< attention wrote its scores to memory
  int nodes = 1, devices_per_node = 1;
  double network_bytes = 0;          ///< per second, device and direction between nodes; 0: that of the hardware file
  double step_ms = 0;                ///< as published; 0 where it ended for want of memory
  std::optional<double> memory_gib;  ///< of the fullest device, as published
  std::string study;                 ///< runs of one study differ in the strategy alone; empty: none
  std::string job;                   ///< a job file's text; the network is the hardware file's

  int devices() const { return nodes * devices_per_node; }
};

/// In the order of the file. Throws JobError, IoError for a file that cannot be read.
std::vector<PublishedRun> read_published_runs(const std::string& path);

}  // namespace trainer
