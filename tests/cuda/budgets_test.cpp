// What kernels take of a multiprocessor. ptxas says how many registers a thread has and how many bytes it spills to
// local memory; the machine code says whether a loop reads or writes local memory and whether it divides 64-bit
// integers, a call of some hundred instructions each (kernels/cuda/runtime/device.cuh has a Divisor). No GPU is needed,
// so CI sees a kernel that grows. The budgets are budgets.txt, for one version of nvcc and sm_90a: the most that the
// instances of a kernel's template take. TRAINER_WRITE_BUDGETS=1 writes them; say why in the commit.
#include <cxxabi.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/parallel.h"
#include "tests/temporary.h"

namespace trainer::cuda::budgets_test {
namespace {

namespace fs = std::filesystem;

const fs::path kTable = TRAINER_BUDGETS;
const std::string kVersion = "nvcc " TRAINER_NVCC_VERSION ", sm_90a";

struct Use {
  int registers = 0, spilled = 0;
  int local = 0, divisions = 0;  // instructions in loops: of local memory, and calls of a 64-bit division
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

const fs::path kObjects = TRAINER_CUDA_OBJECTS;

/// "norm/norm.cu" of the object or the file beside it.
std::string source_of(const fs::path& path) {
  const std::string text = fs::relative(path, kObjects / "cuda").string(), extension = ".cu";
  return text.substr(0, text.rfind(extension + ".o") + extension.size());
}

/// What ptxas said, in the files that tools/gpu/keep_ptxas.sh left beside the objects.
Uses read_uses() {
  const std::string starts = "Compiling entry function '";
  Uses uses;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kObjects)) {
    if (entry.path().extension() != ".ptxas") continue;
    const std::string source = source_of(entry.path());
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

// ---- Machine code -------------------------------------------------------------------------------------------------

const fs::path kTools = TRAINER_SASS_TOOLS;

/// Calls visit(line) for each line that a command writes. False if it fails.
template <typename Visit>
bool for_each_line(const std::string& command, const Visit& visit) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return false;
  std::array<char, 4096> part;
  for (std::string line; std::fgets(part.data(), part.size(), pipe) != nullptr;) {
    line += part.data();
    if (!line.ends_with('\n')) continue;
    visit(line);
    line.clear();
  }
  return pclose(pipe) == 0;
}

/// One kernel's code, line by line as nvdisasm writes it. A branch to what stands before it ends a loop; so does one
/// that comes back from code that is seldom run and stands at the end, so loops are rather too many than too few.
class Code {
 public:
  void read(const std::string& line) {
    if (line.starts_with(".L_")) return void(labels_[line.substr(0, line.find(':'))] = std::ssize(lines_));
    if (line.find("*/ ") == std::string::npos || line.find(';') == std::string::npos) return;
    const std::int64_t here = std::ssize(lines_);
    lines_.push_back(line);
    const std::size_t name = line.find("`(");
    if (name == std::string::npos || line.find(" BRA") == std::string::npos) return;
    const auto to = labels_.find(line.substr(name + 2, line.find(')', name) - name - 2));
    if (to != labels_.end()) loops_.emplace_back(to->second, here);
  }

  void add_to(Use& use) const {
    int local = 0, divisions = 0;
    for (std::int64_t i = 0; i < std::ssize(lines_); ++i) {
      const auto holds = [i](const auto& loop) { return loop.first <= i && i <= loop.second; };
      if (std::none_of(loops_.begin(), loops_.end(), holds)) continue;
      const std::string& line = lines_[static_cast<std::size_t>(i)];
      const auto has = [&](std::string_view word) { return line.find(word) != std::string::npos; };
      local += has(" LDL") || has(" STL");
      divisions += has(" CALL") && (has("_s64)") || has("_u64)"));
    }
    use.local = std::max(use.local, local);
    use.divisions = std::max(use.divisions, divisions);
  }

 private:
  std::vector<std::string> lines_;
  std::map<std::string, std::int64_t> labels_;
  std::vector<std::pair<std::int64_t, std::int64_t>> loops_;  // first and last line
};

/// Adds what the kernels of an object do in loops. False if the tools cannot read it, or know other kernels than ptxas.
bool add_loops(const fs::path& object, Uses& uses, std::mutex& mutex) {
  const tests::TemporaryFolder folder;
  const std::string quiet = " >/dev/null 2>&1", path = "PATH='" + kTools.string() + "':$PATH ";
  const auto nothing = [](const std::string&) {};
  if (!for_each_line("cd '" + folder.path() + "' && " + path + "cuobjdump -xelf all '" + object.string() + "'" + quiet,
                     nothing))
    return false;
  for (const fs::directory_entry& cubin : fs::directory_iterator(folder.path())) {
    if (cubin.path().string().find("sm_90a") == std::string::npos) continue;
    std::string kernel;
    Code code;
    bool known = true;
    const auto end = [&] {
      if (kernel.empty()) return;
      const std::lock_guard lock(mutex);
      const auto use = uses.find(source_of(object) + " " + name_of(kernel));
      known = known && use != uses.end();
      if (known) code.add_to(use->second);
    };
    const std::string section = ".text.";
    const bool read = for_each_line(path + "nvdisasm -c '" + cubin.path().string() + "'", [&](const std::string& line) {
      if (!line.starts_with(section)) return code.read(line);
      end();
      kernel = line.substr(section.size(), line.find(':') - section.size());
      code = {};
    });
    end();
    if (!read || !known) return false;
  }
  return true;
}

/// False where the tools are not.
bool add_loops(Uses& uses) {
  if (!fs::exists(kTools / "nvdisasm") || !fs::exists(kTools / "cuobjdump")) return false;
  std::vector<fs::path> objects;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kObjects))
    if (entry.path().string().ends_with(".cu.o")) objects.push_back(entry.path());
  std::mutex mutex;
  std::vector<char> read(objects.size());
  for_each_index(objects.size(), [&](std::size_t i) { read[i] = add_loops(objects[i], uses, mutex); });
  for (std::size_t i = 0; i < objects.size(); ++i) CHECK_MESSAGE(read[i], "nobody could read ", objects[i].string());
  return true;
}

}  // namespace

TEST_CASE("no kernel takes more registers, spills more, or does more of what is slow in loops than its budget") {
  Uses uses = read_uses();
  if (uses.empty()) {
    MESSAGE("skipped: no kernels are compiled for sm_90a here");
    return;
  }
  const bool loops = add_loops(uses);
  if (!loops)
    MESSAGE("skipped: what loops do, for cuobjdump and nvdisasm are not in ", kTools.string(),
            " (tools/setup.sh unpacks them where CUDAARCHS is set)");
  if (const char* write = std::getenv("TRAINER_WRITE_BUDGETS"); write && *write) {
    REQUIRE(loops);
    std::ofstream table(kTable);
    table << "# " << kVersion << ": file, kernel, registers, bytes spilled; in loops: local memory, 64-bit divisions\n";
    for (const auto& [kernel, use] : uses)
      table << kernel << ' ' << use.registers << ' ' << use.spilled << ' ' << use.local << ' ' << use.divisions << '\n';
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
    REQUIRE((words >> file >> kernel >> use.registers >> use.spilled >> use.local >> use.divisions));
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
    CHECK(use.local <= budget->second.local);
    CHECK(use.divisions <= budget->second.divisions);
  }
  for (const auto& [kernel, budget] : budgets) {
    CAPTURE(kernel);
    CHECK_MESSAGE(uses.contains(kernel), "a budget of no kernel: TRAINER_WRITE_BUDGETS=1 drops it");
  }
}

}  // namespace trainer::cuda::budgets_test
