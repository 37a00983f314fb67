// trainer schema: the JSON Schemas, made from the tables that the program reads by.
#include "engine/job/schema.h"
#include "engine/cost/machine_model.h"
#include "tools/command.h"

namespace trainer::tools {

void add_schema(CommandLine& app, Work& work) {
  Subcommand* command = app.add_subcommand("schema", "the JSON Schema of jobs, graph files or hardware files");
  auto which = std::make_shared<std::string>("job");
  command->add_option("WHICH", *which, "job, graph or hardware")
      ->one_of({"job", "graph", "hardware"})
      ->capture_default_str()
      ->type_name("");
  command->footer(
      "Examples:\n"
      "  trainer schema job >schemas/job.schema.json\n"
      "  trainer schema graph >schemas/graph.schema.json\n"
      "  trainer schema hardware >schemas/hardware.schema.json\n"
      "\n"
      "An editor that knows YAML checks a job as you type if its first line is\n"
      "  # yaml-language-server: $schema=<path>/job.schema.json\n");
  command->callback([which, &work] {
    work = [which] {
      const std::string schema = *which == "job"     ? job_schema()
                                 : *which == "graph" ? graph_schema()
                                                     : cost::hardware_schema();
      put("{}{}", schema, schema.ends_with('\n') ? "" : "\n");
      return kDone;
    };
  });
}

}  // namespace trainer::tools
