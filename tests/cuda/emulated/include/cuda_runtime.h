// Stands before the Toolkit's header of this name where device code is compiled for the emulated GPU.
#pragma once

// The Toolkit's launches by address alone; here a kernel is called as what it is.
#define cudaLaunchKernelEx cudaLaunchKernelEx_by_address
#include_next <cuda_runtime.h>
#undef cudaLaunchKernelEx

#include "tests/cuda/emulated/device.h"
