// Parts are counted by name: stages that share a unit both list it.
#include "engine/report/quantized.h"

#include <set>
#include <string>

namespace trainer::report {

std::optional<QuantizedCost> quantized_of(const CompiledJob& compiled) {
  QuantizedCost cost;
  std::set<std::string> seen;
  for (const Role& role : compiled.plan.roles)
    for (const Unit& unit : role.units)
      for (const UnitTensor& tensor : unit.tensors) {
        const QuantizedPart& part = tensor.init.quantized;
        if (!part || !seen.insert(tensor.name).second) continue;
        cost.as = part.as;
        cost.bytes += tensor.spec.whole.elements();
        if (part.kind != QuantizedPart::Kind::codes) continue;
        ++cost.matrices;
        cost.elements += part.shape.elements();
      }
  return cost.as == Quantization::none ? std::nullopt : std::optional(cost);
}

}  // namespace trainer::report
