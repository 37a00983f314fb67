// Whole rounds are timed: a disk takes some parts into a cache of its own and makes others wait for it.
#include "tools/calibrate/disk_bench.h"

#include <chrono>
#include <vector>

#include "engine/run/offload_file.h"
#include "tools/calibrate/median.h"

namespace trainer::tools {
namespace {

constexpr std::int64_t kPart = std::int64_t{16} << 20;

template <typename Work>
double seconds_of(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

cost::DiskModel disk_speed(const std::string& folder, Effort effort) {
  const bool quick = effort == Effort::quick;
  const std::int64_t bytes = std::int64_t{quick ? 128 : 1024} << 20;
  const OffloadFile file(folder, 0, bytes);
  std::vector<unsigned char> part(static_cast<std::size_t>(kPart));
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<unsigned char>(i * 2654435761U >> 13);
  std::vector<double> read, written;
  for (int round = 0; round < (quick ? 2 : 5); ++round) {
    written.push_back(static_cast<double>(bytes) / seconds_of([&] {
                        for (std::int64_t at = 0; at < bytes; at += kPart) file.write(at, part.data(), kPart);
                        file.forget();
                      }));
    read.push_back(static_cast<double>(bytes) / seconds_of([&] {
                     for (std::int64_t at = 0; at < bytes; at += kPart) file.read(at, part.data(), kPart);
                   }));
  }
  return {median_of(std::move(read)), median_of(std::move(written))};
}

}  // namespace trainer::tools
