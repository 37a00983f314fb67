// Names of what times are bound by.
#include "engine/cost/estimate.h"

namespace trainer::cost {

std::string_view name_of(Bound bound) {
  switch (bound) {
    case Bound::compute:
      return "compute";
    case Bound::memory:
      return "memory";
    case Bound::latency:
      return "latency";
    case Bound::network:
      return "network";
  }
  return "?";
}

}  // namespace trainer::cost
