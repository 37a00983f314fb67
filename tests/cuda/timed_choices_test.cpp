// Choices by time: what is kept of them, by whom, what ranks agree on, and that products take them.
#include "kernels/cuda/runtime/timed_choices.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/core/file.h"
#include "kernels/cuda/gemm/products.h"
#include "kernels/cuda/runtime/device_choices.h"
#include "kernels/cuda/runtime/runtime.h"
#include "tests/cuda/emulated/emulated.h"
#include "tests/temporary.h"

#undef CHECK  // the program's; the rest is doctest's
#include <doctest/doctest.h>

namespace trainer::kernels::cuda {
namespace {

/// A switch of the environment for as long as a test lasts.
class Set {
 public:
  Set(const char* name, const std::string& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    REQUIRE(setenv(name, value.c_str(), 1) == 0);
  }
  ~Set() {
    if (before_)
      setenv(name_, before_->c_str(), 1);
    else
      unsetenv(name_);
  }
  Set(const Set&) = delete;
  Set& operator=(const Set&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class DeviceMemory {
 public:
  explicit DeviceMemory(std::int64_t bytes) : bytes(bytes) {
    check(cudaMalloc(&at_, static_cast<std::size_t>(bytes)), "cudaMalloc");
  }
  ~DeviceMemory() { cudaFree(at_); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  std::byte* get() const { return static_cast<std::byte*>(at_); }

  const std::int64_t bytes;

 private:
  void* at_ = nullptr;
};

/// One process's choice: what it gets, and whether it measured.
struct Asked {
  std::optional<std::string> got;
  bool measured = false;
};
template <typename Choices>
Asked ask(Choices& choices, const std::string& key, const std::optional<std::string>& finds,
          const std::string& refused = "") {
  Asked asked;
  asked.got = choices.choose(
      key, [&](const std::string& choice) { return choice != refused; },
      [&] {
        asked.measured = true;
        return finds;
      });
  return asked;
}

/// What a rank takes for a product of which `way` is measured to be the fastest one, and a product inside of that way.
void prepare(DeviceChoices& choices, const std::string& way) {
  const auto all = [](const std::string&) { return true; };
  choices.choose("a product", all, [&] {
    for (const char* one : {"one way", "another way"})
      choices.choose("a product inside of " + std::string(one), all, [&] { return "as measured for " + way; });
    return way;
  });
  choices.choose("a product inside of " + way, all, [&] { return "as measured for " + way; });
}

/// The one file of choices in a folder, beside its lock.
std::filesystem::path choices_file(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".txt") return entry.path();
  return {};
}

ProductSpec some_product() {
  return {.rows = 16,
          .columns = 64,
          .inner = 24,
          .operands = DType::bf16,
          .result = DType::bf16,
          .workspace_bytes = std::int64_t{1} << 20};
}

}  // namespace

TEST_CASE("a choice is measured once, and another process finds it") {
  const tests::TemporaryFolder folder;
  const std::string path = folder.path("products/gpu.txt");
  TimedChoices first(path);
  CHECK(ask(first, "a product", "one way").measured);
  CHECK_FALSE(ask(first, "a product", "another way").measured);
  CHECK(ask(first, "what cannot be measured", std::nullopt).got == std::nullopt);
  CHECK(ask(first, "what cannot be measured", std::nullopt).measured);
  CHECK(ask(first, "what is refused", "no way", "no way").got == std::nullopt);
  CHECK(ask(first, "what is refused", "some way", "no way").measured);

  TimedChoices second(path);
  const Asked asked = ask(second, "a product", "another way");
  CHECK_FALSE(asked.measured);
  CHECK(asked.got == "one way");
  CHECK_FALSE(second.take_note().has_value());
  const std::string note = first.take_note().value();
  CHECK(note.find("2 choices for matrix products were timed") == 0);
  CHECK(note.find("; 1 choice for matrix products could not be timed") !=
        std::string::npos);  // nor was what is refused
  CHECK(note.find(path) != std::string::npos);
  CHECK_FALSE(first.take_note().has_value());
}

TEST_CASE("of processes that measure at once, the first to write decides for all") {
  const tests::TemporaryFolder folder;
  TimedChoices first(folder.path("gpu.txt")), second(folder.path("gpu.txt"));
  CHECK(ask(first, "another", "some way").measured);  // both have read the file now
  CHECK(ask(second, "a third", "some way").measured);
  CHECK(ask(first, "a product", "one way").got == "one way");
  const Asked asked = ask(second, "a product", "another way");
  CHECK(asked.measured);
  CHECK(asked.got == "one way");
  TimedChoices third(folder.path("gpu.txt"));
  for (const char* key : {"another", "a third", "a product"}) CHECK_FALSE(ask(third, key, "no way").measured);
}

TEST_CASE("a choice that is not accepted, and a file that is damaged, are measured again") {
  const tests::TemporaryFolder folder;
  const std::string path = folder.path("gpu.txt");
  std::ofstream(path) << "a product\tan old way\nno tab\n\nanother\tone way";
  TimedChoices choices(path);
  const Asked asked = ask(choices, "a product", "a new way", "an old way");
  CHECK(asked.measured);
  CHECK(asked.got == "a new way");
  CHECK(ask(choices, "another", "no way").got == "one way");
  TimedChoices after(path);
  CHECK(ask(after, "a product", "no way").got == "a new way");
  std::ofstream(path, std::ios::binary) << std::string(100, '\0');
  TimedChoices damaged(path);
  CHECK(ask(damaged, "a product", "one way").measured);
}

TEST_CASE("what cannot be kept is not taken, and the user hears of it; without a file a choice counts for the run") {
  const tests::TemporaryFolder folder;
  std::ofstream(folder.path("file")) << "not a folder";
  TimedChoices nowhere(folder.path("file/products/gpu.txt")), unnamed("");
  CHECK(ask(nowhere, "a product", "one way").got == std::nullopt);
  CHECK_FALSE(ask(nowhere, "another product", "one way").measured);
  CHECK(nowhere.take_note().value().find("cannot be written") != std::string::npos);
  CHECK_FALSE(nowhere.take_note().has_value());
  TimedChoices asked_for(folder.path("file/products/gpu.txt"), false);
  CHECK(ask(asked_for, "a product", "one way").got == "one way");
  CHECK_FALSE(ask(asked_for, "a product", "another way").measured);
  CHECK(asked_for.take_note().value().find("for this run") != std::string::npos);
  CHECK(ask(unnamed, "a product", "one way").got == "one way");
  CHECK_FALSE(ask(unnamed, "a product", "another way").measured);
  CHECK(unnamed.take_note().value().find("for this run") != std::string::npos);
}

TEST_CASE("choices are made where a cache can keep them, or where they are asked for") {
  const tests::TemporaryFolder folder;
  cudaDeviceProp device{};
  std::snprintf(device.name, sizeof device.name, "Some GPU 80GB/x");
  device.multiProcessorCount = 132;
  const auto made = [&](const char* tune, const std::string& cache) {
    const Set first("TRAINER_CUDA_TUNE", tune), second("TRAINER_CACHE", cache);
    return TimedChoices::of(device);
  };
  CHECK(made("0", folder.path("cache")) == nullptr);
  CHECK(made("", "off") == nullptr);
  CHECK(made("1", "off") != nullptr);
  TimedChoices* const kept = made("", folder.path("cache"));
  REQUIRE(kept != nullptr);
  CHECK(made("1", folder.path("cache")) == kept);
  {
    const Set shared("TRAINER_SHARE_GPU", "1");
    CHECK(made("", folder.path("cache")) == nullptr);
    CHECK(made("1", folder.path("cache")) == nullptr);
  }
  ask(*kept, "a product", "one way");
  CHECK(choices_file(folder.path("cache/products")).filename().string().find("Some-GPU-80GB-x-132-cublaslt-") == 0);
}

TEST_CASE("ranks that took different choices agree on those of the first, also where nothing was timed") {
  TimedChoices here(""), there("");
  DeviceChoices first("some GPU", &here), second("some GPU", &there), untimed("some GPU", nullptr);
  prepare(first, "one way");
  prepare(second, "another way");
  prepare(untimed, "no way");
  CHECK(first.str() != second.str());
  CHECK(untimed.str().empty());
  const std::string all = first.str() + second.str() + untimed.str();
  for (DeviceChoices* const rank : {&first, &second, &untimed}) {
    const std::size_t asked = rank->asked();
    CHECK_FALSE(rank->changed(0, asked));
    rank->agree(all);
    CHECK(rank->changed(0, asked) == (rank != &first));
    prepare(*rank, "a third way");
    CHECK(ask(*rank, "a product", "a third way").got == "one way");
    CHECK(ask(*rank, "a product inside of one way", "a third way").got == "as measured for one way");
    CHECK(ask(*rank, "a product that no rank had", "a third way").got == std::nullopt);
    CHECK(ask(*rank, "a product", "a third way", "one way").got == std::nullopt);
    CHECK_FALSE(ask(*rank, "a product", "a third way").measured);
  }
}

TEST_CASE("choices count for one kind of GPU") {
  TimedChoices here(""), there("");
  DeviceChoices first("some GPU", &here), other("another GPU", &there);
  prepare(first, "one way");
  prepare(other, "another way");
  const std::size_t asked = other.asked();
  const std::string all = first.str() + other.str();
  other.agree(all);
  CHECK_FALSE(other.changed(0, asked));
  CHECK(ask(other, "a product", "no way").got == "another way");
  DeviceChoices third("a third GPU", &here);
  prepare(third, "one way");
  third.agree(all);
  CHECK(third.changed(0, third.asked()));
  CHECK(ask(third, "a product", "no way").got == std::nullopt);
}

TEST_CASE("products of ranks with different caches take the same algorithm once they agree") {
  const tests::TemporaryFolder one, other;
  const Set tune("TRAINER_CUDA_TUNE", "1");
  const DeviceMemory memory(std::int64_t{4} << 20);
  Device first(0), second(0);
  const auto prepared = [&](Device& device, const tests::TemporaryFolder& cache) -> DeviceChoices& {
    const Set at("TRAINER_CACHE", cache.path());
    DeviceChoices& choices = device.begin_choices(memory.get(), memory.bytes);
    REQUIRE(Product::make(some_product(), device.context()));
    return choices;
  };
  DeviceChoices& mine = prepared(first, one);
  // The other machine kept another of the algorithms that the library takes.
  const std::filesystem::path file = choices_file(one.path("products"));
  const std::string text = read_text(file, 1 << 20), key = text.substr(0, text.find('\t'));
  std::filesystem::create_directories(other.path("products"));
  std::string another;
  for (const int parts : {1, 2, 3}) {
    const tests::TemporaryFolder third;
    emulated::settings().parts_fail = parts;
    Device device(0);
    prepared(device, third);
    device.end_choices();
    emulated::settings().parts_fail = 0;
    const std::string kept = read_text(choices_file(third.path("products")), 1 << 20);
    if (kept != text) another = kept;
  }
  REQUIRE(another.substr(0, another.find('\t')) == key);
  std::ofstream(other.path("products") + "/" + file.filename().string()) << another;
  DeviceChoices& theirs = prepared(second, other);
  CHECK(theirs.str() != mine.str());
  const std::string all = mine.str() + theirs.str();
  theirs.agree(all);
  CHECK(theirs.changed(0, 1));
  const std::size_t asked = theirs.asked();
  REQUIRE(Product::make(some_product(), second.context()));
  CHECK(theirs.asked() == asked + 1);
  CHECK_FALSE(theirs.changed(asked, asked + 1));
  first.end_choices();
  second.end_choices();
  CHECK(read_text(choices_file(other.path("products")), 1 << 20) == another);
}

TEST_CASE("scratch memory is random numbers, and ends where it ends") {
  const DeviceMemory memory((std::int64_t{3} << 20) + 256);
  Context context;
  context.scratch = memory.get();
  context.scratch_bytes = memory.bytes;
  Scratch scratch(context);
  const std::int64_t bytes = (std::int64_t{3} << 20) - 250;
  const void* const at = scratch.take(bytes);
  REQUIRE(at != nullptr);
  const std::span<const std::uint16_t> words(static_cast<const std::uint16_t*>(at),
                                             static_cast<std::size_t>(bytes) / 2);
  const std::set<std::uint16_t> different(words.begin(), words.end());
  CHECK(different.size() == 2 * 0x380);
  CHECK(std::ranges::all_of(
      words, [](std::uint16_t word) { return (word & 0x7FFFu) >= 0x3C00u && (word & 0x7FFFu) < 0x3F80u; }));
  CHECK(scratch.take(256) != nullptr);
  CHECK(scratch.take(1) == nullptr);
}

TEST_CASE("products take the kept algorithm, and measure again where the library does not") {
  const tests::TemporaryFolder folder;
  const Set tune("TRAINER_CUDA_TUNE", "1"), cache("TRAINER_CACHE", folder.path("cache"));
  const DeviceMemory memory(std::int64_t{4} << 20);
  Device device(0);
  const auto make = [&](std::int64_t bytes) {
    device.begin_choices(memory.get(), bytes);
    const std::unique_ptr<Product> product = Product::make(some_product(), device.context());
    device.end_choices();
    REQUIRE(product);
    return product->workspace_bytes();
  };
  // Without room nothing is chosen by time, or kept.
  make(1024);
  const std::vector<std::string> notes = device.take_notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("1 choice for matrix products could not be timed") == 0);
  CHECK_FALSE(std::filesystem::exists(folder.path("cache/products")));
  const std::int64_t workspace = make(memory.bytes);
  CHECK(device.take_notes().size() == 1);
  CHECK(make(memory.bytes) == workspace);
  CHECK(device.take_notes().empty());

  // What is no algorithm, or one of another problem, is replaced.
  const std::filesystem::path file = choices_file(folder.path("cache/products"));
  const std::string text = read_text(file, 1 << 20), key = text.substr(0, text.find('\t'));
  CHECK(text.size() == key.size() + 2 * sizeof(cublasLtMatmulAlgo_t) + 2);
  for (const std::string& wrong : {std::string("no algorithm"), std::string(128, '0'), std::string(128, 'x')}) {
    CAPTURE(wrong);
    const tests::TemporaryFolder other;
    const Set elsewhere("TRAINER_CACHE", other.path("cache"));
    std::filesystem::create_directories(other.path("cache/products"));
    std::ofstream(other.path("cache/products/" + file.filename().string())) << key << '\t' << wrong << '\n';
    CHECK(make(memory.bytes) >= 0);
    CHECK(device.take_notes().size() == 1);
  }

  // A candidate that fails when it runs is none, and another one is taken.
  for (const int parts : {1, 2, 3}) {
    CAPTURE(parts);
    const tests::TemporaryFolder other;
    const Set elsewhere("TRAINER_CACHE", other.path("cache"));
    emulated::settings().parts_fail = parts;
    make(memory.bytes);
    emulated::settings().parts_fail = 0;
    CHECK(device.take_notes().size() == 1);
  }
}

}  // namespace trainer::kernels::cuda
