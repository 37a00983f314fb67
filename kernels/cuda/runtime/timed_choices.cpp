// Choices by time: the file, and how something is timed.
#include "kernels/cuda/runtime/timed_choices.h"

#include <cublasLt.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/environment.h"
#include "engine/core/error.h"
#include "engine/core/file.h"
#include "kernels/cuda/runtime/runtime.h"

namespace trainer::kernels::cuda {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kRandomWords = std::size_t{1} << 19;  // that fill scratch memory, again and again
constexpr std::int64_t kLongestFile = std::int64_t{16} << 20;

/// None where the file is not there or cannot be read.
std::map<std::string, std::string> choices_in(const std::string& path) {
  try {
    if (exists(path)) return choices_of(read_text(path, kLongestFile));
  } catch (const std::exception&) {
  }
  return {};
}

/// Replaces the file as a whole. False where the system refuses.
bool write_choices(const std::string& path, const std::map<std::string, std::string>& choices) {
  const std::string text = text_of(choices);
  const std::string unfinished = path + "." + std::to_string(::getpid());
  try {
    const Descriptor file = create_file(unfinished);
    write_all(file, text.data(), text.size(), unfinished);
    if (::rename(unfinished.c_str(), path.c_str()) == 0) return true;
  } catch (const std::exception&) {
  }
  ::unlink(unfinished.c_str());
  return false;
}

/// Words of 16 bits: a sign and 0x3C00 to 0x3F7F, which are 0.008 to 1 as bf16, 1 to 1.9 as f16, and two of them 0.008
/// to 1 as f32.
std::vector<std::uint16_t> random_words() {
  std::vector<std::uint16_t> words(kRandomWords);
  std::minstd_rand random;
  for (std::uint16_t& word : words)
    word = static_cast<std::uint16_t>((random() >> 8 & 0x8000u) | (0x3C00u + random() % 0x380u));
  return words;
}

}  // namespace

std::string kind_of(const cudaDeviceProp& device) {
  std::string name = device.name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  return name + "-" + std::to_string(device.multiProcessorCount) + "-cublaslt-" + std::to_string(cublasLtGetVersion());
}

std::string text_of(const std::map<std::string, std::string>& choices) {
  std::string text;
  for (const auto& [key, choice] : choices) text.append(key).append("\t").append(choice).append("\n");
  return text;
}

std::map<std::string, std::string> choices_of(const std::string& text) {
  std::map<std::string, std::string> choices;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (const std::size_t tab = line.rfind('\t'); tab != std::string::npos)
      choices.emplace(line.substr(0, tab), line.substr(tab + 1));
    at = end + 1;
  }
  return choices;
}

TimedChoices* TimedChoices::of(const cudaDeviceProp& device) {
  const std::optional<std::string> asked = environment::value_of(environment::kCudaTune);
  if (asked == "0") return nullptr;
  const std::string folder = environment::cache_folder();
  if (folder.empty() && asked != "1") return nullptr;
  if (environment::value_of(environment::kShareGpu) == "1") return nullptr;  // times among other ranks' work
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<TimedChoices>> all;  // by file, or by name where there is none
  const std::lock_guard lock(mutex);
  const std::string path = folder.empty() ? "" : folder + "/products/" + kind_of(device) + ".txt";
  std::unique_ptr<TimedChoices>& one = all[path.empty() ? kind_of(device) : path];
  if (one == nullptr) one = std::make_unique<TimedChoices>(path, asked != "1");
  return one.get();
}

void TimedChoices::read() {
  if (read_) return;
  read_ = true;
  if (!path_.empty()) choices_ = choices_in(path_);
}

std::optional<std::string> TimedChoices::choose(const std::string& key,
                                                const std::function<bool(const std::string&)>& accepts,
                                                const std::function<std::optional<std::string>()>& measure) {
  const std::lock_guard lock(mutex_);
  read();
  if (const auto known = choices_.find(key); known != choices_.end() && accepts(known->second)) return known->second;
  if (unwritable_ && keeps_) return std::nullopt;
  const auto begin = std::chrono::steady_clock::now();
  ++depth_;
  std::optional<std::string> found;
  try {
    found = measure();
  } catch (...) {
    --depth_;
    throw;
  }
  if (--depth_ == 0) seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!found || !accepts(*found)) {
    if (depth_ == 0) unmeasured_.insert(key);
    return std::nullopt;
  }
  found = publish(key, *found, accepts);
  if (!found) return found;
  unmeasured_.erase(key);
  ++measured_;
  return choices_[key] = *found;
}

// Under a lock that other processes respect: what one of them has written meanwhile counts. What cannot be written is
// not taken: ranks, and runs, would each go their own way.
std::optional<std::string> TimedChoices::publish(const std::string& key, const std::string& choice,
                                                 const std::function<bool(const std::string&)>& accepts) {
  if (path_.empty()) return choice;
  std::error_code ignored;
  fs::create_directories(fs::path(path_).parent_path(), ignored);
  const Descriptor lock(::open((path_ + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  int locked = -1;
  while (lock && (locked = ::flock(lock.get(), LOCK_EX)) != 0 && errno == EINTR) {
  }
  const std::optional<std::string> unkept = keeps_ ? std::nullopt : std::optional(choice);
  if (locked != 0) {
    unwritable_ = true;
    return unkept;
  }
  std::map<std::string, std::string> now = choices_in(path_);
  if (const auto theirs = now.find(key); theirs != now.end() && accepts(theirs->second)) return theirs->second;
  now[key] = choice;
  if (write_choices(path_, now)) return choice;
  unwritable_ = true;
  return unkept;
}

std::optional<std::string> TimedChoices::take_note() {
  const std::lock_guard lock(mutex_);
  if (unwritable_ && keeps_ && !std::exchange(told_, true))
    return path_ +
           " cannot be written: matrix products take the library's first algorithms, since what was timed could "
           "not be kept";
  const int measured = std::exchange(measured_, 0);
  const std::size_t unmeasured = std::exchange(unmeasured_, {}).size();
  const double seconds = std::exchange(seconds_, 0);
  if (measured == 0 && unmeasured == 0) return std::nullopt;
  std::string note;
  if (measured > 0) {
    char text[160];
    std::snprintf(text, sizeof text,
                  "%d choices for matrix products were timed in %.1f s to find the fastest way of each, ", measured,
                  seconds);
    note = text;
    note += path_.empty() ? "for this run: there is no folder for a cache (TRAINER_CACHE)"
            : unwritable_ ? "for this run: " + path_ + " cannot be written"
                          : "which is kept in " + path_;
  }
  if (unmeasured > 0)
    note += (note.empty() ? "" : "; ") + std::to_string(unmeasured) + (unmeasured == 1 ? " choice" : " choices") +
            " for matrix products could not be timed, and the library's first ways are taken: the plan's memory has no "
            "room for their operands, or every way failed";
  return note;
}

void* Scratch::take(std::int64_t bytes) {
  const std::int64_t size = aligned(std::max<std::int64_t>(bytes, 1));
  if (size > bytes_) return nullptr;
  std::byte* const begin = left_;
  left_ += size;
  bytes_ -= size;
  static const std::vector<std::uint16_t> words = random_words();
  const auto whole = static_cast<std::size_t>(size);
  std::size_t filled = std::min(whole, 2 * words.size());
  check(cudaMemcpy(begin, words.data(), filled, cudaMemcpyHostToDevice), "cudaMemcpy");
  for (std::size_t more = 0; filled < whole; filled += more) {
    more = std::min(filled, whole - filled);
    check(cudaMemcpy(begin + filled, begin, more, cudaMemcpyDeviceToDevice), "cudaMemcpy");
  }
  return begin;
}

float time_on_device(const std::function<void(cudaStream_t)>& run) {
  constexpr int kRuns = 3;
  const auto event = [] {
    cudaEvent_t created = nullptr;
    check(cudaEventCreate(&created), "cudaEventCreate");
    return Handle<cudaEvent_t, cudaEventDestroy>(created);
  };
  const auto from = event(), to = event();
  cudaStream_t created = nullptr;
  check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  const Handle<cudaStream_t, cudaStreamDestroy> stream(created);
  check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // scratch memory is filled
  float least = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    check(cudaEventRecord(from.get(), stream.get()), "cudaEventRecord");
    run(stream.get());
    check(cudaEventRecord(to.get(), stream.get()), "cudaEventRecord");
    check(cudaEventSynchronize(to.get()), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, from.get(), to.get()), "cudaEventElapsedTime");
    if (i > 0) least = std::min(least, ms);  // the first one loads the code
  }
  return least;
}

}  // namespace trainer::kernels::cuda
