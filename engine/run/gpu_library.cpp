// The command's side: finds the library, opens it once, and asks it.
#include "engine/run/gpu_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "engine/core/error.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "libtrainer_cuda.so";

// Beside the command in a build, in ../lib where it is installed.
fs::path library_path() {
  std::error_code error;
  const fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& path : {folder / kName, folder / ".." / "lib" / kName})
    if (fs::exists(path, error)) return path;
  return {};
}

// Without a driver there is no GPU, whatever else is installed. /dev/dxg: Windows' subsystem for Linux.
bool has_driver() {
  std::error_code error;
  return fs::exists("/dev/nvidiactl", error) || fs::exists("/dev/dxg", error) ||
         fs::exists("/proc/driver/nvidia/version", error);
}

struct Opened {
  const GpuLibrary* library = nullptr;
  std::string why_not;
};

Opened open_library() {
  const fs::path path = library_path();
  if (path.empty())
    return {nullptr, "this build has no CUDA (there is no " + std::string(kName) + " beside the command)"};
  void* const handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return {nullptr, "cannot open " + path.string() + ": " + ::dlerror()};
  void* const entry = ::dlsym(handle, kGpuLibraryEntry);
  if (entry == nullptr) return {nullptr, path.string() + " is no library of trainer's"};
  const GpuLibrary* const library = reinterpret_cast<decltype(&trainer_gpu_library)>(entry)();
  if (std::string(library->build) != kGpuLibraryBuild)
    return {nullptr, path.string() + " is of another build (" + library->build + ") than this command (" +
                         kGpuLibraryBuild + ")"};
  return {library, ""};
}

const Opened& opened() {
  static const Opened one = open_library();
  return one;
}

const GpuLibrary& library() {
  if (opened().library == nullptr) throw UsageError(opened().why_not);
  return *opened().library;
}

}  // namespace

bool has_cuda() { return !library_path().empty(); }

bool has_nccl() { return opened().library != nullptr && library().has_nccl(); }

int num_gpus() { return has_driver() && opened().library != nullptr ? library().num_gpus() : 0; }

std::optional<Gpu> describe_gpu(int ordinal) { return library().describe_gpu(ordinal); }

CudaFound find_cuda() {
  if (opened().library != nullptr) return library().find_cuda();
  CudaFound found;
  found.no_gpu = opened().why_not;
  return found;
}

std::unique_ptr<DeviceBackend> cuda_device(const CudaOptions& options) { return library().cuda_device(options); }

std::unique_ptr<GpuBench> gpu_bench(int ordinal) { return library().gpu_bench(ordinal); }

std::string nccl_version() { return opened().library != nullptr ? library().nccl_version() : ""; }

std::string nccl_unique_id() { return library().nccl_unique_id(); }

std::unique_ptr<StreamCommunicator> nccl_communicator(const NcclPlace& place, Connections connections, OnLoss on_loss) {
  return library().nccl_communicator(place, std::move(connections), std::move(on_loss));
}

}  // namespace trainer
