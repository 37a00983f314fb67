// configs/cluster/: that the manifest says one thing in all the places where it says it, and that what the page names
// is there.
#include <doctest/doctest.h>

#include <map>
#include <sstream>
#include <string>

#include "engine/core/environment.h"
#include "engine/job/yaml.h"
#include "tests/temporary.h"

namespace trainer::cluster_files_test {

using trainer::tests::contains;
using trainer::tests::contents_of;

namespace {

const std::string kCluster = std::string(TRAINER_SOURCE_DIR) + "/configs/cluster/";

// The node at "spec.template.spec"; a number is a place in a sequence. Fails where there is none.
const yaml::Node& at(const yaml::Node& node, const std::string& path) {
  const yaml::Node* here = &node;
  std::istringstream words(path);
  for (std::string word; std::getline(words, word, '.');) {
    INFO(path, " at ", word);
    here = here->is_sequence() ? &here->items.at(std::stoul(word)) : here->find(word);
    REQUIRE(here != nullptr);
  }
  return *here;
}

}  // namespace

TEST_CASE("the manifest for Kubernetes gives every pod its number and a name at which rank 0 is found") {
  const yaml::Node list = yaml::read_file(kCluster + "kubernetes.yaml");
  const yaml::Node &service = at(list, "items.0"), &job = at(list, "items.1"), &pod = at(job, "spec.template.spec"),
                   &container = at(pod, "containers.0");
  const std::string name = at(job, "metadata.name").text, nodes = at(job, "spec.parallelism").text;
  CHECK(at(job, "spec.completionMode").text == "Indexed");
  CHECK(at(job, "spec.completions").text == nodes);
  CHECK(at(service, "spec.clusterIP").text == "None");
  CHECK(at(service, "spec.publishNotReadyAddresses").as_bool() == true);
  CHECK(at(service, "spec.selector.job-name").text == name);
  CHECK(at(pod, "subdomain").text == at(service, "metadata.name").text);
  CHECK(at(pod, "restartPolicy").text == "Never");
  std::map<std::string, std::string> variables;
  for (const yaml::Node& one : at(container, "env").items)
    if (const yaml::Node* value = one.find("value")) {
      CHECK(value->as_string());  // Kubernetes refuses numbers here
      variables[at(one, "name").text] = value->text;
    }
  CHECK(variables["NNODES"] == nodes);
  CHECK(variables["MASTER_ADDR"] == name + "-0." + at(service, "metadata.name").text);
  CHECK(variables["MASTER_PORT"] == at(service, "spec.ports.0.port").text);
  CHECK(variables["MASTER_PORT"] == at(container, "ports.0.containerPort").text);
  const std::string command = at(container, "command").flow();
  CHECK(contains(command, "cluster.nodes=" + nodes));
  CHECK(
      contains(command, "cluster.devices_per_node=" + at(container, "resources.limits").find("nvidia.com/gpu")->text));
}

TEST_CASE("the page of launchers names every file beside it and every variable of the program that launching takes") {
  const std::string page = contents_of(kCluster + "README.md");
  for (const char* file : {"slurm.sbatch", "open_mpi.sh", "ssh.sh", "kubernetes.yaml", "trainer@.service"}) {
    CAPTURE(std::string(file));
    CHECK(contains(page, file));
    CHECK(!contents_of(kCluster + file).empty());
  }
  for (const environment::Switch& one : {environment::kToken, environment::kPort, environment::kRendezvous,
                                         environment::kShareGpu, environment::kSilent}) {
    CAPTURE(std::string(one.name));
    CHECK(contains(page, one.name));
  }
  for (const char* variable : {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_DEBUG", "NCCL_COMM_ID", "NNODES", "NODE_RANK",
                               "JOB_COMPLETION_INDEX", "CUDA_VISIBLE_DEVICES"})
    CHECK(contains(page, variable));
}

}  // namespace trainer::cluster_files_test
