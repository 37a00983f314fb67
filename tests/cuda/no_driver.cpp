// libcuda.so.1 for a machine without a GPU, so that cuDNN makes plans for devices that are described to it: kernels are
// "loaded" and asked about, and whatever else a plan wants of the driver succeeds. Nothing can be run: cuInit finds no
// device. Arguments that nobody looks at are not declared: callers clean up (System V ABI).
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNoDevice = 100, kNotSupported = 801, kVersion = 13000;

}  // namespace

extern "C" {

int cuInit() { return kNoDevice; }
int cuGetExportTable() { return kNotSupported; }
int cuDriverGetVersion(int* version) { return *version = kVersion, kSuccess; }
int cuDeviceGetCount(int* count) { return *count = 1, kSuccess; }
int cuDeviceGet(int* device) { return *device = 0, kSuccess; }
int cuCtxGetCurrent(void** context) { return *context = nullptr, kSuccess; }
int cuCtxGetDevice(int* device) { return *device = 0, kSuccess; }
int cuCtxGetLimit(std::size_t* limit) { return *limit = 0, kSuccess; }
int cuGetErrorName(int, const char** text) { return *text = "none", kSuccess; }
int cuGetErrorString(int, const char** text) { return *text = "none", kSuccess; }

// Handles are never looked into.
#define HANDLE(name) \
  int name(void** handle) { return *handle = handle, kSuccess; }
HANDLE(cuLibraryLoadData)
HANDLE(cuLibraryLoadFromFile)
HANDLE(cuLibraryGetKernel)
HANDLE(cuKernelGetFunction)
HANDLE(cuModuleLoadData)
HANDLE(cuModuleLoadDataEx)
HANDLE(cuModuleLoadFatBinary)
HANDLE(cuModuleGetFunction)
HANDLE(cuDevicePrimaryCtxRetain)

// Of a kernel, as large a number as any of them may have.
#define NUMBER(name) \
  int name(int* value) { return *value = 1024, kSuccess; }
NUMBER(cuKernelGetAttribute)
NUMBER(cuFuncGetAttribute)
NUMBER(cuDeviceGetAttribute)
NUMBER(cuOccupancyMaxPotentialClusterSize)

#define REFUSE(name) \
  int name() { return kNotSupported; }
REFUSE(cuLinkCreate)
REFUSE(cuLinkAddData)
REFUSE(cuLinkComplete)
REFUSE(cuLinkDestroy)

#define SUCCEED(name) \
  int name() { return kSuccess; }
SUCCEED(cuCtxPopCurrent)
SUCCEED(cuCtxPushCurrent)
SUCCEED(cuDevicePrimaryCtxRelease)
SUCCEED(cuDevicePrimaryCtxReset)
SUCCEED(cuFuncSetAttribute)
SUCCEED(cuKernelSetAttribute)
SUCCEED(cuLaunchCooperativeKernel)
SUCCEED(cuLaunchKernel)
SUCCEED(cuLaunchKernelEx)
SUCCEED(cuLibraryUnload)
SUCCEED(cuModuleUnload)
SUCCEED(cuStreamGetCtx)

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks) { return *blocks = 1, kSuccess; }
int cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks) { return *blocks = 1, kSuccess; }

/// Every function that the runtime asks for by name is there.
int cuGetProcAddress_v2(const char* name, void** function, int, std::uint64_t, int* found) {
  static void* const self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  *function = self == nullptr ? nullptr
                              : dlsym(self, std::strcmp(name, "cuGetProcAddress") == 0 ? "cuGetProcAddress_v2" : name);
  if (*function == nullptr) *function = reinterpret_cast<void*>(cuLaunchKernel);
  if (found != nullptr) *found = 0;
  return kSuccess;
}

}  // extern "C"
