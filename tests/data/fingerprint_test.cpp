// Fingerprints: what changes them, what does not, and how a difference reads.
#include "engine/data/fingerprint.h"

#include <doctest/doctest.h>

#include "engine/core/error.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::TemporaryFolder;
using Differences = std::vector<std::string>;

DataJob job_of(std::vector<std::string> train) {
  DataJob job;
  job.train.paths = std::move(train);
  return job;
}

TEST_CASE("data that is moved to another folder has no differences") {
  TemporaryFolder here, there;
  const std::string text(200'000, 'x');
  const std::string saved = fingerprint(job_of({here.write("a.txt", text), here.write("b.txt", "b")}));
  CHECK(fingerprint_differences(saved, fingerprint(job_of({there.write("a.txt", text), there.write("b.txt", "b")})))
            .empty());
}

TEST_CASE("a file that is longer, shorter, or has another byte at either end is a difference that names it") {
  TemporaryFolder folder;
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{70'000}, std::size_t{1} << 20}) {
    const std::string text(bytes, 'x');
    const DataJob job = job_of({folder.write("a.txt", "a"), folder.write("b.txt", text)});
    const std::string saved = fingerprint(job), path = folder.path("b.txt");
    const auto after = [&](const std::string& changed) {
      folder.write("b.txt", changed);
      return fingerprint_differences(saved, fingerprint(job));
    };
    const std::string size = std::to_string(bytes);
    CHECK(after(text + "y") ==
          Differences{"data.train: " + path + " has " + std::to_string(bytes + 1) + " bytes, where it had " + size});
    CHECK(after("") == Differences{"data.train: " + path + " has 0 bytes, where it had " + size});
    CHECK(after("y" + text.substr(1)) ==
          Differences{"data.train: " + path + " has the same size as before, but other contents"});
    CHECK(after(text.substr(1) + "y") ==
          Differences{"data.train: " + path + " has the same size as before, but other contents"});
    CHECK(after(text).empty());
  }
}

TEST_CASE("another number of files and other validation data are differences") {
  TemporaryFolder folder;
  const std::string a = folder.write("a.txt", "a"), b = folder.write("b.txt", "b");
  DataJob job = job_of({a});
  const std::string saved = fingerprint(job);
  CHECK(fingerprint_differences(saved, fingerprint(job_of({a, b}))) ==
        Differences{"data.train: 2 files, where there were 1"});
  job.val = DataFiles{{b}, {}, {}};
  const std::string with_val = fingerprint(job);
  CHECK(fingerprint_differences(saved, with_val) ==
        Differences{"data.val: 1 bytes in 1 files, where there were no files"});
  CHECK(fingerprint_differences(with_val, saved) == Differences{"data.val: no files, where there were 1 with 1 bytes"});
}

TEST_CASE("of many files a change in any size counts") {
  TemporaryFolder folder;
  for (int i = 0; i < 2000; ++i) folder.write("f" + std::to_string(10000 + i), "x");
  const DataJob job = job_of({folder.path("*")});
  const std::string saved = fingerprint(job);
  CHECK(saved.size() < 4000);
  folder.write("f11999", "xy");
  CHECK(contains(fingerprint_differences(saved, fingerprint(job)).at(0), "2001 bytes in all, where there were 2000"));
}

TEST_CASE("images and labels are both part of the data") {
  TemporaryFolder folder;
  DataJob job;
  job.format = DataFormat::idx;
  job.train.images = folder.write("images", "i");
  job.train.labels = folder.write("labels", "l");
  const std::string saved = fingerprint(job);
  folder.write("labels", "m");
  CHECK(contains(fingerprint_differences(saved, fingerprint(job)).at(0), job.train.labels));
}

TEST_CASE("a text that is no fingerprint is a difference, whatever it is") {
  TemporaryFolder folder;
  const std::string now = fingerprint(job_of({folder.write("a.txt", "a")}));
  for (const char* saved :
       {"", "{", "null", "7", "[]", "{\"train\":7}", "{\"train\":[1]}", "{\"train\":{\"hash\":7,\"first\":7}}",
        "{\"train\":{\"files\":1,\"first\":[7]}}", "{\"train\":{\"files\":1,\"first\":{\"file\":1}}}"})
    CHECK(fingerprint_differences(saved, now).size() == 1);
}

}  // namespace
}  // namespace trainer::data
