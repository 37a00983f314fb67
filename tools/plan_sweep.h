// trainer plan JOB --sweep key=value,…: one job planned over values of its keys, for people as a table, as JSON with
// each plan in full.
#pragma once

#include <string>
#include <vector>

#include "tools/command.h"

namespace trainer::tools {

/// "cluster.nodes=1,2" as the overrides {"cluster.nodes=1", "cluster.nodes=2"}; commas inside brackets or quotes divide
/// nothing. `nodes`, `devices` and `hardware` stand for the keys of `cluster`. Throws UsageError.
std::vector<std::string> overrides_of(const std::string& sweep);

/// Every combination of the values, the last key's running fastest. Returns the exit code: kDone if one of the jobs
/// fits.
int sweep(const JobArguments& arguments, const std::vector<std::string>& sweeps);

}  // namespace trainer::tools
