// Manifests that somebody forged: the checksum has no key, so it can be made to fit anything. Each is refused as bad
// data, by whatever reads a checkpoint, and none costs much memory.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"
#include "engine/core/error.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/temporary.h"

namespace trainer::checkpoint {
namespace {

using tests::contains;
using tests::contents_of;
using tests::message_of;
using tests::TemporaryFolder;

std::string sealed(const std::string& body) { return body + ",\n  \"checksum\": \"" + checksum_of(body) + "\"\n}\n"; }

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

// A whole checkpoint, whose manifest may be changed and sealed again.
class Forgery {
 public:
  Forgery() {
    Store store(folder_.path());
    path_ = tests::save_small(store, 4);
    const std::string text = contents_of(path_ + "/" + kManifestName);
    body_ = text.substr(0, text.find(",\n  \"checksum\": \""));
  }

  const std::string& path() const { return path_; }
  std::string folder() const { return folder_.path(); }

  // Replaces `from`, which must be there, by `to`.
  void change(const std::string& from, const std::string& to) const {
    std::string body = body_;
    const std::size_t at = body.find(from);
    REQUIRE(at != std::string::npos);
    folder_.write("step-00000004/manifest.json", sealed(body.replace(at, from.size(), to)));
  }

 private:
  TemporaryFolder folder_;
  std::string path_, body_;
};

TEST_CASE("a forged manifest is refused by everything that reads it, with the offset and the reason") {
  const Forgery forgery;
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& why) {
    CAPTURE(to.substr(0, 100));
    forgery.change(from, to);
    const std::vector<std::string> damage = verify(forgery.path());
    REQUIRE(damage.size() == 1);
    CHECK_MESSAGE(contains(damage[0], why), damage[0]);
    CHECK(contains(message_of<DataError>([&] { open_checkpoint(forgery.path()); }), why));
    const NewestWhole newest = newest_whole(forgery.folder());
    CHECK(!newest.checkpoint);
    CHECK(newest.damaged == damage);
  };
  forgery.change("\"a\"", "\"b\"");
  CHECK(verify(forgery.path()).empty());

  const std::string step = "\"step\": 4", tensors = "\"tensors\": [", pieces = "\"pieces\":[[0,6,0]]",
                    shape = "\"shape\":[2,3]";
  refused(step, "\"step\": -4", "a negative number where none belongs");
  refused(step, "\"step\": 9223372036854775807", "step 9223372036854775807 is too large");
  refused(step, "\"step\": 18446744073709551615", "is too large");
  refused(step, "\"step\": 1e300", "a number that is not whole where none belongs");
  refused(step, "\"step\": 1e999", "not valid JSON");
  refused(step, "\"step\": \"4\"", "a string where none belongs");
  refused(step, "\"step\": 4, \"step\": 4", "a second step");
  refused(step, "\"other\": 4", "unknown key \"other\"");
  refused(step + ",\n", "", "lacks step");
  refused(step, "\"step\": 9", "is of step 9, but its directory is named for step 4");
  refused("\"version\": 1", "\"version\": 2", "has version 2, but this program reads version 1");
  refused("\"trainer-checkpoint\"", "\"other\"", "is not the manifest of a checkpoint");
  refused("{\"name\":\"a\"}", "[]", "a list where none belongs");
  refused("{\"name\":\"a\"}", "null", "null where none belongs");
  refused("{\"name\":\"a\"}", "{\"a\":" + repeated("[", 300000) + repeated("]", 300000) + "}",
          "metadata nested deeper than 64 levels");
  refused("{\"name\":\"a\"}", repeated("{\"a\":", 300000) + "1" + repeated("}", 300000),
          "metadata nested deeper than 64 levels");
  refused("{\"name\":\"a\"}", "{\"name\":\"\xff\"}", "not valid JSON");
  refused("\"files\": [", "\"files\": null, \"x\": [", "null where none belongs");
  refused("\"files\": [", "\"files\": {}, \"x\": [", "an object where none belongs");
  refused(tensors, "\"tensors\": {}, \"x\": [", "an object where none belongs");
  refused(tensors, "\"tensors\": [], \"x\": [", "unknown key \"x\"");
  refused(tensors, "\"tensors\": [" + repeated("[", 300000), "a list where none belongs");
  refused("\"bytes\":", "\"bytes\":-", "a negative number where none belongs");
  refused("\"bytes\":", "\"bytes\":1", "bytes, where the manifest says");
  refused("\"name\":\"model.safetensors\"", "\"name\":\"../step-00000004/model.safetensors\"", "bad file name");
  refused("\"name\":\"model.safetensors\"", "\"name\":\"model.safetensors\\u0000\"", "bad file name");
  refused("\"name\":\"model.safetensors\"", "\"name\":\".\"", "bad file name");
  refused("\"f32\"", "\"f33\"", "unknown dtype \"f33\"");
  refused("\"f32\"", "32", "a number where none belongs");
  refused(shape, "\"shape\":[2,-3]", "tensor w: a negative number where none belongs");
  refused(shape, "\"shape\":[1,1,1,1,1,2,3]", "too many dims");
  refused(shape, "\"shape\":[4294967296,4294967296]", "the shape has more elements than fit any file");
  refused(shape, "\"shape\":[4611686018427387904]", "the shape has more elements than fit any file");
  refused(shape, "\"shape\":[6]", "where the manifest says");
  refused(pieces, "\"pieces\":null", "null where none belongs");
  refused(pieces, "\"pieces\":[]", "elements from 0 on are in no piece");
  refused(pieces, "\"pieces\":[[0,6]]", "a piece of 2 numbers");
  refused(pieces, "\"pieces\":[[0,6,0,1,1]]", "a piece that repeats 1 times");
  refused(pieces, "\"pieces\":[[0,6,0,1,1,1,1,1,1,1]]", "a list that is too long");
  refused(pieces, "\"pieces\":[[0,6,1]]", "a piece in a file that is not listed");
  refused(pieces, "\"pieces\":[[0,3,0],[3,6,0]]", "has no tensor w[0:3], which the manifest lists");
  refused(pieces, "\"pieces\":[[0,1,0,6,1]]", "has no tensor w[0:1:6x1]");
  refused("\"name\":\"w\"", "\"name\":\"v\"", "has no tensor v, which the manifest lists");
}

TEST_CASE("a manifest of many pieces takes little more memory than its pieces do") {
  std::string text =
      "{\n  \"format\": \"trainer-checkpoint\",\n  \"version\": 1,\n  \"step\": 1,\n  \"plan_hash\": \"\",\n  "
      "\"metadata\": {},\n  \"files\": [";
  text +=
      "{\"name\":\"a\",\"bytes\":1,\"checksum\":\"\"}],\n  \"tensors\": "
      "[{\"name\":\"w\",\"dtype\":\"u8\",\"shape\":[600000],\"pieces\":[";
  for (int i = 0; i < 600000; ++i)
    text += (i == 0 ? "[" : ",[") + std::to_string(i) + "," + std::to_string(i + 1) + ",0]";
  text = sealed(text + "]}]");
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  Manifest manifest = parse_manifest(text, "m");
  check_complete(manifest, "m");
  ::getrusage(RUSAGE_SELF, &after);
  CHECK(manifest.tensors.at(0).pieces.size() == 600000);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const auto taken = static_cast<double>(after.ru_maxrss - before.ru_maxrss) * 1024;
  CHECK(taken < 14.0 * static_cast<double>(text.size()));
#endif
}

TEST_CASE("a manifest that is too long is refused before it is read") {
  const Forgery forgery;
  std::filesystem::resize_file(forgery.path() + "/" + kManifestName,
                               static_cast<std::uintmax_t>(kMaxManifestBytes) + 1);
  CHECK(contains(verify(forgery.path()).at(0), "268435457 bytes, where at most 268435456 are allowed"));
}

}  // namespace
}  // namespace trainer::checkpoint
