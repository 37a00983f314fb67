// Any bytes as a hardware file: an error that says so, or a machine with figures that can be.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "engine/core/error.h"
#include "engine/cost/machine_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const trainer::cost::MachineModel machine =
        trainer::cost::parse_machine(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml");
    if (machine.usable_bytes() <= 0 || !(machine.device.memory_bandwidth.value > 0) ||
        !machine.device.peak.contains(trainer::DType::f32))
      std::abort();
  } catch (const trainer::JobError&) {
  } catch (const trainer::IoError&) {  // a base that is a folder
  }
  return 0;
}
