// JSON whose keys keep the order in which they were set. Who makes one includes nlohmann/json.hpp.
#pragma once

#include <nlohmann/json_fwd.hpp>

namespace trainer::report {

using Json = nlohmann::ordered_json;

}  // namespace trainer::report
