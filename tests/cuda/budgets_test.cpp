// What kernels take of a multiprocessor, by ptxas: registers of a thread and bytes that it spills to local memory. No
// GPU is needed, so CI sees a kernel that grows. The budgets are budgets.txt, for one version of nvcc and sm_90a: the
// most that the instances of a kernel's template take. TRAINER_WRITE_BUDGETS=1 writes them; say why in the commit.
#include <cxxabi.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

namespace trainer::cuda::budgets_test {
namespace {

namespace fs = std::filesystem;

const fs::path kTable = TRAINER_BUDGETS;
const std::string kVersion = "nvcc " TRAINER_NVCC_VERSION ", sm_90a";

struct Use {
  int registers = 0, spilled = 0;
};
/// By "file kernel".
using Uses = std::map<std::string, Use>;

/// The name of a kernel, without namespaces, template arguments and parameters.
std::string name_of(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  if (status != 0) return symbol;
  std::string name;
  int depth = 0;
  const std::string whole = text.get(), unnamed = "(anonymous namespace)";
  for (std::size_t i = 0; i < whole.size(); ++i) {
    if (whole.compare(i, unnamed.size(), unnamed) == 0) {
      i += unnamed.size() - 1;
      continue;
    }
    depth += whole[i] == '<';
    if (depth == 0 && whole[i] == '(') break;
    if (depth == 0) name += whole[i];
    depth -= whole[i] == '>';
  }
  return name.substr(name.find_last_of(": ") + 1);
}

/// The number in front of `words`.
int number_before(const std::string& line, const std::string& words) {
  const std::size_t end = line.find(words);
  if (end == std::string::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(line[begin - 1]))) --begin;
  return std::stoi(line.substr(begin, end - begin));
}

/// What ptxas said, in the files that tools/gpu/keep_ptxas.sh left beside the objects.
Uses read_uses() {
  const fs::path objects = TRAINER_CUDA_OBJECTS;
  const std::string starts = "Compiling entry function '";
  Uses uses;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(objects)) {
    if (entry.path().extension() != ".ptxas") continue;
    const std::string source =
        fs::relative(entry.path(), objects / "cuda").replace_extension("").replace_extension("").string();
    std::ifstream file(entry.path());
    Use* use = nullptr;  // of the kernel that the lines are about
    for (std::string line; std::getline(file, line);) {
      if (const std::size_t at = line.find(starts); at != std::string::npos) {
        const std::size_t begin = at + starts.size();
        const bool ours = line.find("'sm_90a'") != std::string::npos;
        use = ours ? &uses[source + " " + name_of(line.substr(begin, line.find('\'', begin) - begin))] : nullptr;
      }
      if (!use) continue;
      if (line.find("Used ") != std::string::npos)
        use->registers = std::max(use->registers, number_before(line, " registers"));
      use->spilled = std::max(use->spilled, number_before(line, " bytes spill stores"));
    }
  }
  return uses;
}

}  // namespace

TEST_CASE("no kernel takes more registers, or spills more, than its budget") {
  const Uses uses = read_uses();
  if (uses.empty()) {
    MESSAGE("skipped: no kernels are compiled for sm_90a here");
    return;
  }
  if (const char* write = std::getenv("TRAINER_WRITE_BUDGETS"); write && *write) {
    std::ofstream table(kTable);
    table << "# " << kVersion << ": file, kernel, registers, bytes spilled\n";
    for (const auto& [kernel, use] : uses) table << kernel << ' ' << use.registers << ' ' << use.spilled << '\n';
  }
  std::ifstream table(kTable);
  std::string line;
  REQUIRE(std::getline(table, line));
  if (!line.starts_with("# " + kVersion)) {
    MESSAGE("skipped: the budgets are of ", line.substr(2, line.find(':') - 2), ", this is ", kVersion);
    return;
  }
  Uses budgets;
  for (std::string file, kernel; std::getline(table, line);) {
    std::istringstream words(line);
    Use use;
    REQUIRE((words >> file >> kernel >> use.registers >> use.spilled));
    budgets[file + " " + kernel] = use;
  }
  for (const auto& [kernel, use] : uses) {
    CAPTURE(kernel);
    const auto budget = budgets.find(kernel);
    if (budget == budgets.end()) {
      FAIL_CHECK("this kernel has no budget: TRAINER_WRITE_BUDGETS=1 writes one");
      continue;
    }
    CHECK(use.registers <= budget->second.registers);
    CHECK(use.spilled <= budget->second.spilled);
  }
  for (const auto& [kernel, budget] : budgets) {
    CAPTURE(kernel);
    CHECK_MESSAGE(uses.contains(kernel), "a budget of no kernel: TRAINER_WRITE_BUDGETS=1 drops it");
  }
}

}  // namespace trainer::cuda::budgets_test
