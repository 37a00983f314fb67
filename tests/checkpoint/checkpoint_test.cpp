// Checkpoints: what is saved is read back under any cut; what is damaged is named; a killed run leaves what was there.
#include "engine/checkpoint/checkpoint.h"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/core/error.h"
#include "tests/temporary.h"

namespace trainer::checkpoint {
namespace {

namespace fs = std::filesystem;
using tests::contains;
using tests::contents_of;
using tests::message_of;
using tests::TemporaryFolder;

const TensorInfo kMatrix{"h.0.weight", DType::f32, Shape{5, 7}};
const TensorInfo kBias{"h.0.bias", DType::bf16, Shape{3}};
const TensorInfo kMoment{"h.0.weight.exp_avg", DType::f32, Shape{5, 7}};

// Element i of a tensor in step s is s + i (f32), or the bits s + i (bf16).
std::vector<std::byte> values_of(const TensorInfo& tensor, Range range, std::int64_t step) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(range.size() * size_of(tensor.dtype)));
  std::byte* to = bytes.data();
  for (std::int64_t r = 0; r < range.repeat; ++r)
    for (std::int64_t i = range.first + r * range.stride; i < range.last + r * range.stride;
         ++i, to += size_of(tensor.dtype)) {
      const float value = static_cast<float>(step + i);
      const auto bits = static_cast<std::uint16_t>(step + i);
      tensor.dtype == DType::f32 ? std::memcpy(to, &value, 4) : std::memcpy(to, &bits, 2);
    }
  return bytes;
}

void write_file(const std::string& dir, std::int64_t step, const std::string& name,
                const std::vector<FileWriter::Entry>& entries) {
  FileWriter writer(dir, step, name, entries);
  for (const FileWriter::Entry& entry : writer.order()) {
    const std::int64_t half = entry.range.size() / 2;
    const auto bytes = values_of(entry.tensor, entry.range, step);
    writer.write(entry, bytes.data(), half);
    writer.write(entry, bytes.data() + half * size_of(entry.tensor.dtype), entry.range.size() - half);
  }
  writer.finish();
}

Range whole(const TensorInfo& tensor) { return {0, tensor.shape.elements()}; }

std::string save(Store& store, std::int64_t step, int keep = 0) {
  store.begin(step);
  write_file(store.dir(), step, "model.safetensors", {{kBias, whole(kBias)}, {kMatrix, whole(kMatrix)}});
  write_file(store.dir(), step, "optimizer.safetensors", {{kMoment, whole(kMoment)}});
  std::string path = store.commit(step, "0123abcd", R"({"samples":7,"tokenizer":{"alphabet":"ab"}})");
  store.remove_older(step, keep);
  return path;
}

std::vector<std::int64_t> steps_in(const std::string& dir) {
  std::vector<std::int64_t> steps;
  for (const CheckpointPath& each : list_checkpoints(dir)) steps.push_back(each.step);
  return steps;
}

// Without the mark of the run that holds the directory.
std::vector<std::string> names_in(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& each : fs::directory_iterator(dir))
    if (each.path().filename() != ".owner") names.push_back(each.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Reads the tensor in ranges of `stride` elements.
bool reads_back(const TensorStore& store, const TensorInfo& tensor, std::int64_t step, std::int64_t stride) {
  for (std::int64_t first = 0; first < tensor.shape.elements(); first += stride) {
    const Range range{first, std::min(first + stride, tensor.shape.elements())};
    std::vector<std::byte> got(static_cast<std::size_t>(range.size() * size_of(tensor.dtype)));
    store.read(tensor.name, range.first, range.size(), got.data());
    if (got != values_of(tensor, range, step)) return false;
  }
  return true;
}

void flip(const std::string& path, std::size_t at, int bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const char byte = static_cast<char>(file.get() ^ (1 << bit));
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

TEST_CASE("a full checkpoint has the layout, and gives back every tensor under any cut") {
  TemporaryFolder folder;
  Store store(folder.path("runs/a"));
  const std::string path = save(store, 500);
  CHECK(path == folder.path("runs/a/step-00000500"));
  CHECK(names_in(path) == std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"});
  CHECK(verify(path).empty());
  const Checkpoint checkpoint = open_checkpoint(path);
  CHECK(checkpoint.manifest.step == 500);
  CHECK(checkpoint.manifest.plan_hash == "0123abcd");
  CHECK(checkpoint.manifest.metadata == R"({"samples":7,"tokenizer":{"alphabet":"ab"}})");
  for (const TensorInfo& tensor : {kMatrix, kBias, kMoment}) {
    REQUIRE(checkpoint.tensors.find(tensor.name) != nullptr);
    CHECK(*checkpoint.tensors.find(tensor.name) == tensor);
    for (std::int64_t stride : {1, 2, 3, 34, 35}) CHECK(reads_back(checkpoint.tensors, tensor, 500, stride));
  }
  CHECK(checkpoint.tensors.find("none") == nullptr);
  std::byte ignored[4];
  CHECK_THROWS_AS(checkpoint.tensors.read("none", 0, 1, ignored), DataError);
}

TEST_CASE("files of many ranks, written at once in uneven pieces, are one checkpoint") {
  TemporaryFolder folder;
  Store store(folder.path());
  store.begin(3);
  const std::vector<std::vector<FileWriter::Entry>> shards{{{kMatrix, {30, 35}}, {kMatrix, {0, 1}}},
                                                           {{kMatrix, {1, 30}}, {kBias, {1, 3}}},
                                                           {{kBias, {0, 1}}},
                                                           {{kMoment, {0, 35}}}};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      write_file(folder.path(), 3, file_name("model", rank, 4), shards[static_cast<std::size_t>(rank)]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  const std::string path = store.commit(3, "", "{}");
  CHECK(fs::exists(path + "/model-00002-of-00004.safetensors"));
  CHECK(verify(path).empty());
  const Checkpoint checkpoint = open_checkpoint(path);
  for (const TensorInfo& tensor : {kMatrix, kBias, kMoment}) {
    for (std::int64_t stride : {1, 2, 7, 35}) CHECK(reads_back(checkpoint.tensors, tensor, 3, stride));
  }
  CHECK(SafetensorsFile(path + "/model-00001-of-00004.safetensors").find("h.0.weight[1:30]") != nullptr);
}

TEST_CASE("a checkpoint with an element missing or saved twice is never made") {
  TemporaryFolder folder;
  Store store(folder.path());
  for (const auto& [second, why] : {std::pair<Range, std::string>{{11, 35}, "elements from 10 on are in no piece"},
                                    {{9, 35}, "elements from 9 on are in two pieces"},
                                    {{10, 34}, "elements from 34 on are in no piece"}}) {
    store.begin(1);
    write_file(folder.path(), 1, "a.safetensors", {{kMatrix, {0, 10}}});
    write_file(folder.path(), 1, "b.safetensors", {{kMatrix, second}});
    CHECK(contains(message_of<DataError>([&] { store.commit(1, "", "{}"); }), why));
  }
  CHECK(steps_in(folder.path()).empty());
}

TEST_CASE("a checkpoint of more files than a process may hold open is read all the same") {
  TemporaryFolder folder;
  Store store(folder.path());
  store.begin(6);
  for (int rank = 0; rank < 35; ++rank)
    write_file(folder.path(), 6, file_name("model", rank, 35), {{kMatrix, {rank, rank + 1}}});
  const std::string path = store.commit(6, "", "{}");
  const std::size_t before = names_in("/proc/self/fd").size();
  const Checkpoint checkpoint = open_checkpoint(path);
  CHECK(names_in("/proc/self/fd").size() <= before + 16);
  for (std::int64_t stride : {1, 4, 35}) CHECK(reads_back(checkpoint.tensors, kMatrix, 6, stride));
}

TEST_CASE("columns of a matrix are one piece, however many rows it has, and are read in any cut") {
  TemporaryFolder folder;
  Store store(folder.path());
  store.begin(4);
  write_file(folder.path(), 4, file_name("model", 0, 3), {{kMatrix, {0, 3, 4, 7}}, {kBias, whole(kBias)}});
  write_file(folder.path(), 4, file_name("model", 1, 3), {{kMatrix, {3, 7, 4, 7}}});
  write_file(folder.path(), 4, file_name("model", 2, 3), {{kMatrix, {28, 35}}});
  const std::string path = store.commit(4, "", "{}");
  const SafetensorsFile file(path + "/model-00000-of-00003.safetensors");
  const TensorEntry* entry = file.find("h.0.weight[0:3:4x7]");
  REQUIRE(entry != nullptr);
  CHECK(entry->shape == std::vector<std::int64_t>{4, 3});
  const Checkpoint checkpoint = open_checkpoint(path);
  for (std::int64_t stride : {1, 2, 3, 6, 7, 8, 34, 35}) CHECK(reads_back(checkpoint.tensors, kMatrix, 4, stride));
  for (const std::int64_t stride : {5, 7})  // rows of the matrix, and others
    for (std::int64_t first = 0; first < stride; ++first)
      for (std::int64_t last = first + 1; last <= stride; ++last)
        for (std::int64_t repeat = 2; repeat <= 35 / stride; ++repeat) {
          const Range range{first, last, repeat, stride};
          std::vector<std::byte> got(static_cast<std::size_t>(range.size() * 4));
          checkpoint.tensors.read(kMatrix.name, range, got.data());
          CHECK(got == values_of(kMatrix, range, 4));
        }
}

TEST_CASE("pieces that repeat cover every element once, or there is no checkpoint") {
  const auto refused = [](const std::vector<Range>& ranges) {
    Manifest manifest;
    manifest.files.push_back({"a", 0, ""});
    manifest.tensors.push_back({kMatrix, {}});
    for (const Range& range : ranges) manifest.tensors[0].pieces.push_back({range, 0});
    return message_of<DataError>([&] { check_complete(manifest, "m"); });
  };
  CHECK(refused({{0, 3, 5, 7}, {3, 7, 5, 7}}).empty());
  CHECK(refused({{0, 3, 2, 7}, {3, 7, 2, 7}, {14, 20}, {20, 35}}).empty());
  CHECK(contains(refused({{0, 3, 5, 7}, {2, 7, 5, 7}}), "elements from 2 on are in two pieces"));
  CHECK(contains(refused({{0, 3, 5, 7}, {4, 7, 5, 7}}), "elements from 3 on are in no piece"));
  CHECK(contains(refused({{0, 3, 4, 7}, {3, 7, 5, 7}}), "elements from 28 on are in no piece"));
  CHECK(contains(refused({{0, 3, 5, 7}, {3, 7, 5, 7}, {16, 18}}), "elements from 16 on are in two pieces"));
  CHECK(contains(refused({{0, 3, 6, 7}, {3, 7, 5, 7}}), "has no elements [0:3:6x7]"));
  CHECK(contains(refused({{5, 8, 4, 7}}), "has no elements [5:8:4x7]"));
  CHECK(contains(refused({{0, 3, 5, 7}, {3, 4, 7, 5}}), "pieces of different strides"));
  CHECK(contains(refused({{0, 3, 2, std::int64_t{1} << 62}}), "has no elements"));
  CHECK(contains(refused({{0, 1, std::int64_t{1} << 62, 1}}), "has no elements"));
}

TEST_CASE("the N newest are kept, and later ones of another run stay") {
  TemporaryFolder folder;
  Store store(folder.path());
  for (std::int64_t step : {100, 200, 300}) save(store, step, 2);
  CHECK(steps_in(folder.path()) == std::vector<std::int64_t>{300, 200});
  save(store, 250, 1);
  CHECK(steps_in(folder.path()) == std::vector<std::int64_t>{300, 250});
  save(store, 123456789012, 0);
  CHECK(steps_in(folder.path()) == std::vector<std::int64_t>{123456789012, 300, 250});
}

TEST_CASE("a step that is saved again replaces the one before") {
  TemporaryFolder folder;
  Store store(folder.path());
  const std::string path = save(store, 5);
  folder.write("step-00000005/stray", "x");
  CHECK(save(store, 5) == path);
  CHECK(names_in(path) == std::vector<std::string>{"manifest.json", "model.safetensors", "optimizer.safetensors"});
  CHECK(names_in(folder.path()) == std::vector<std::string>{"step-00000005"});
  CHECK(verify(path).empty());
}

TEST_CASE("what a killed run left behind is cleared, and nothing else") {
  TemporaryFolder folder;
  {
    Store store(folder.path());
    save(store, 1);
  }
  folder.write(".step-00000002.tmp/model.safetensors", "half");
  folder.write(".step-00000003.trash/manifest.json", "x");
  folder.write("notes.txt", "mine");
  folder.write(".step-2.tmp/mine", "x");  // not a name of ours: digits are missing
  fs::copy(folder.path("step-00000001"), folder.path(".step-00000001.old"), fs::copy_options::recursive);
  fs::copy(folder.path("step-00000001"), folder.path(".step-00000004.old"), fs::copy_options::recursive);
  CHECK(steps_in(folder.path()) == std::vector<std::int64_t>{1});
  Store store(folder.path());
  CHECK(names_in(folder.path()) ==
        std::vector<std::string>{".step-2.tmp", "notes.txt", "step-00000001", "step-00000004"});
}

TEST_CASE("a second run on one directory is refused, until the first ends") {
  TemporaryFolder folder;
  {
    Store store(folder.path());
    CHECK(contains(message_of<IoError>([&] { Store second(folder.path()); }), "another run"));
  }
  CHECK_NOTHROW(Store(folder.path()));
}

TEST_CASE("the newest whole checkpoint is taken, and the damaged ones before it are named") {
  TemporaryFolder folder;
  Store store(folder.path());
  CHECK(!newest_whole(folder.path("none")).checkpoint);
  CHECK(!newest_whole(folder.path()).checkpoint);
  for (std::int64_t step : {1, 2, 3, 4}) save(store, step);
  flip(folder.path("step-00000004/optimizer.safetensors"), 200, 3);
  fs::remove(folder.path("step-00000003/manifest.json"));
  const NewestWhole newest = newest_whole(folder.path());
  REQUIRE(newest.checkpoint);
  CHECK(newest.checkpoint->manifest.step == 2);
  REQUIRE(newest.damaged.size() == 2);
  CHECK(contains(newest.damaged[0], "step-00000004/optimizer.safetensors: checksum "));
  CHECK(contains(newest.damaged[1], "step-00000003/manifest.json: no such file"));
}

TEST_CASE("every flipped bit and every truncation of every file is found and named") {
  TemporaryFolder folder;
  Store store(folder.path());
  const std::string path = save(store, 9);
  for (const std::string& name : names_in(path)) {
    const std::string file = path + "/" + name, good = contents_of(file);
    for (std::size_t at = 0; at < good.size(); ++at) {
      const int bit = static_cast<int>(at % 8);
      flip(file, at, bit);
      const std::vector<std::string> damage = verify(path);
      REQUIRE(damage.size() == 1);
      REQUIRE(contains(damage[0], file + ": "));
      flip(file, at, bit);
    }
    for (std::size_t length = 0; length < good.size(); length += 1 + length / 3) {
      fs::resize_file(file, length);
      const std::vector<std::string> damage = verify(path);
      REQUIRE(damage.size() == 1);
      REQUIRE(contains(damage[0], file + ": "));
      std::ofstream(file, std::ios::binary) << good;
    }
    std::ofstream(file, std::ios::binary) << good << "x";
    CHECK(contains(verify(path).at(0), file + ": "));
    std::ofstream(file, std::ios::binary) << good;
    CHECK(verify(path).empty());
  }
}

// A run of its own, which saves step after step from `first` on until it is killed.
pid_t start_run(const std::string& dir, std::int64_t first) {
  const pid_t run = ::fork();
  if (run != 0) return run;
  try {
    Store store(dir);
    for (std::int64_t step = first;; ++step) save(store, step, 2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  ::_exit(1);
}

TEST_CASE("a run killed at any moment leaves a whole checkpoint, none that is not, and no way back") {
  TemporaryFolder folder;
  std::int64_t newest_step = 0;
  for (int kill = 0; kill < 20; ++kill) {
    const pid_t run = start_run(folder.path(), newest_step + 1);
    REQUIRE(run > 0);
    while (list_checkpoints(folder.path()).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(1379 * kill));
    ::kill(run, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(run, &status, 0) == run);
    REQUIRE(WIFSIGNALED(status));
    const NewestWhole newest = newest_whole(folder.path());
    REQUIRE(newest.checkpoint);
    CHECK(newest.damaged.empty());
    CHECK(newest.checkpoint->manifest.step >= newest_step);
    newest_step = newest.checkpoint->manifest.step;
    CHECK(reads_back(newest.checkpoint->tensors, kMatrix, newest_step, 35));
  }
  Store store(folder.path());
  save(store, newest_step + 1, 2);  // removes, too, what the killed runs had no time to
  CHECK(names_in(folder.path()).size() == 2);
  CHECK(steps_in(folder.path()) == std::vector<std::int64_t>{newest_step + 1, newest_step});
}

// The limit on a file's size stands for a full disk: the write fails in the middle.
TEST_CASE("a write that the system refuses is an error that names the file, and leaves the checkpoint before") {
  TemporaryFolder folder;
  Store store(folder.path());
  save(store, 1);
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  const rlimit small{1000, before.rlim_max};
  const TensorInfo large{"large", DType::f32, Shape{1000}};
  store.begin(2);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string error = message_of<IoError>([&] {
    write_file(folder.path(), 2, "model.safetensors", {{large, whole(large)}});
  });
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CHECK(contains(error, "model.safetensors: writing: "));
  CHECK(newest_whole(folder.path()).checkpoint->manifest.step == 1);
  CHECK(save(store, 2) == folder.path("step-00000002"));
}

TEST_CASE("a checkpoint whose files disagree with its manifest does not open") {
  TemporaryFolder folder;
  Store store(folder.path());
  const std::string path = save(store, 9), manifest = path + "/manifest.json";
  const Manifest good = parse_manifest(contents_of(manifest), manifest);
  const auto error_with = [&](auto&& change) {
    Manifest bad = good;
    change(bad);
    std::ofstream(manifest) << print_manifest(bad);
    return message_of<DataError>([&] { open_checkpoint(path); });
  };
  CHECK(error_with([](Manifest&) {}) == "");
  CHECK(contains(error_with([](Manifest& bad) { bad.files[0].bytes += 1; }), "bytes, where the manifest says"));
  CHECK(contains(error_with([](Manifest& bad) { bad.files[0].name = "../model.safetensors"; }), "bad file name"));
  CHECK(contains(error_with([](Manifest& bad) { bad.files[0].name = "gone.safetensors"; }),
                 "gone.safetensors: no such file"));
  CHECK(contains(error_with([](Manifest& bad) { bad.files[1] = bad.files[0]; }), "listed twice"));
  CHECK(contains(error_with([](Manifest& bad) { bad.tensors[0].info.name = "other"; }), "has no tensor other"));
  CHECK(contains(error_with([](Manifest& bad) { bad.tensors[0].info.dtype = DType::f16; }),
                 ", where the manifest says f16"));
  CHECK(contains(error_with([](Manifest& bad) {
                   bad.tensors[0].info.shape = Shape{7, 5};
                 }),
                 "where the manifest says"));
  CHECK(contains(error_with([](Manifest& bad) { bad.tensors[0].pieces[0].file = 9; }), "not listed"));
  CHECK(
      contains(error_with([](Manifest& bad) { bad.tensors[0].pieces.clear(); }), "elements from 0 on are in no piece"));
  CHECK(contains(error_with([](Manifest& bad) { bad.tensors.push_back(bad.tensors[0]); }), "listed twice"));
}

TEST_CASE("manifests come back as they were, whatever their strings hold") {
  Manifest manifest;
  manifest.step = 1234567890123;
  manifest.plan_hash = "a\"b\\c\n\u00e9";
  manifest.metadata = R"({"checksum":"\"\n}\n","nested":[1,2.5,null,{"a":"\u0000"}]})";
  manifest.files = {{"a.safetensors", 10, "00"}};
  const TensorInfo scalar{"s", DType::f64, Shape{}}, empty{"empty", DType::u8, Shape{0, 4}};
  manifest.tensors = {{scalar, {{{0, 1}, 0}}}, {empty, {{{0, 0}, 0}}}};
  CHECK(parse_manifest(print_manifest(manifest), "m") == manifest);
}

TEST_CASE("one safetensors file is a store of its own, and names what the engine cannot hold") {
  TemporaryFolder folder;
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"mask":{"dtype":"BOOL","shape":[1,2],"data_offsets":[8,10]}})";
  const std::string length{static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0}, data("\0\0\x80?\0\0\0@\1\1", 10);
  const TensorStore store = TensorStore::from_safetensors(folder.write("m.safetensors", length + header + data));
  REQUIRE(store.tensors().size() == 1);
  CHECK(store.foreign() == std::vector<std::string>{"mask: BOOL [1, 2]"});
  float second = 0;
  store.read("w", 1, 1, &second);
  CHECK(second == 2.0f);
}

}  // namespace
}  // namespace trainer::checkpoint
