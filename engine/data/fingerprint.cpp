// XXH3-128 of sizes and ends.
#include "engine/data/fingerprint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "engine/chat/chat_format.h"
#include "engine/core/file.h"
#include "engine/data/files.h"
#include "engine/data/row_parts.h"

// The hash is compiled in.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace trainer::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kEndBytes = 64 << 10;  // at each end
constexpr std::size_t kMostRead = 1024, kMostListed = 16;

std::string hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

struct FilePrint {
  std::string path;
  std::int64_t bytes = 0;
  XXH128_hash_t hash{};
};

FilePrint print_of(const std::string& path, bool with_contents) {
  const Descriptor file = open_for_reading(path);
  FilePrint print{path, file_size(file, path), {}};
  std::string ends(static_cast<std::size_t>(std::min(print.bytes, 2 * kEndBytes)), '\0');
  if (!with_contents) ends.clear();
  const std::size_t first = std::min(ends.size(), static_cast<std::size_t>(kEndBytes));
  read_at(file, 0, ends.data(), first, path);
  read_at(file, print.bytes - static_cast<std::int64_t>(ends.size() - first), ends.data() + first, ends.size() - first,
          path);
  print.hash = XXH3_128bits_withSeed(ends.data(), ends.size(), static_cast<XXH64_hash_t>(print.bytes));
  return print;
}

OrderedJson json_of(const std::vector<std::string>& paths) {
  const std::size_t stride = (paths.size() + kMostRead - 1) / kMostRead;
  std::vector<XXH128_hash_t> hashes;
  std::int64_t bytes = 0;
  OrderedJson first = OrderedJson::array();
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const FilePrint print = print_of(paths[i], i % stride == 0);
    hashes.push_back(print.hash);
    bytes += print.bytes;
    if (i < kMostListed) first.push_back({{"file", print.path}, {"bytes", print.bytes}, {"hash", hex(print.hash)}});
  }
  const XXH128_hash_t all = XXH3_128bits(hashes.data(), hashes.size() * sizeof hashes.front());
  return {{"files", paths.size()}, {"bytes", bytes}, {"hash", hex(all)}, {"first", first}};
}

std::vector<std::string> paths_of(const DataFiles& files) {
  return files.paths.empty() ? std::vector<std::string>{files.images, files.labels} : expand_paths(files.paths);
}

// ---- Comparing. Members are taken only where they have the type that fingerprint() writes. ----

std::int64_t integer(const OrderedJson& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_number_integer() ? json[key].get<std::int64_t>() : -1;
}
std::string text(const OrderedJson& json, const char* key) {
  return json.is_object() && json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}
OrderedJson member(const OrderedJson& json, const char* key) {
  return json.is_object() && json.contains(key) ? json[key] : OrderedJson();
}

std::string difference(const OrderedJson& saved, const OrderedJson& now) {
  if (saved.is_null())
    return fmt::format("{} bytes in {} files, where there were no files", integer(now, "bytes"), integer(now, "files"));
  if (now.is_null())
    return fmt::format("no files, where there were {} with {} bytes", integer(saved, "files"), integer(saved, "bytes"));
  if (integer(saved, "files") != integer(now, "files"))
    return fmt::format("{} files, where there were {}", integer(now, "files"), integer(saved, "files"));
  const OrderedJson before = member(saved, "first"), after = member(now, "first");
  for (std::size_t i = 0; i < std::min(before.size(), after.size()) && before.is_array(); ++i) {
    const std::string file = text(after[i], "file");
    if (integer(before[i], "bytes") != integer(after[i], "bytes"))
      return fmt::format("{} has {} bytes, where it had {}", file, integer(after[i], "bytes"),
                         integer(before[i], "bytes"));
    if (text(before[i], "hash") != text(after[i], "hash"))
      return file + " has the same size as before, but other contents";
  }
  return fmt::format("a file behind the first {} has changed: {} bytes in all, where there were {}", after.size(),
                     integer(now, "bytes"), integer(saved, "bytes"));
}

}  // namespace

std::string fingerprint(const DataJob& job) {
  OrderedJson json{{"train", json_of(paths_of(job.train))}};
  if (const auto* val = std::get_if<DataFiles>(&job.val)) json["val"] = json_of(paths_of(*val));
  const bool of_file = job.tokenizer == trainer::Tokenizer::file;
  if (job.format == DataFormat::chat || (job.format == DataFormat::preference && of_file)) {
    const std::string facts = chat::facts_of_folder(folder_of_tokenizer(job), job.chat_template);
    json["template"] = {{"hash", hex(XXH3_128bits(facts.data(), facts.size()))}};
  }
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::vector<std::string> fingerprint_differences(const std::string& saved, const std::string& now) {
  const OrderedJson before = OrderedJson::parse(saved, nullptr, /*allow_exceptions=*/false),
                    after = OrderedJson::parse(now, nullptr, false);
  std::vector<std::string> differences;
  for (const char* part : {"train", "val"}) {
    const OrderedJson from = member(before, part), to = member(after, part);
    if (from.is_null() && to.is_null()) continue;
    if (!text(from, "hash").empty() && text(from, "hash") == text(to, "hash")) continue;
    differences.push_back(fmt::format("data.{}: {}", part, difference(from, to)));
  }
  const OrderedJson from = member(before, "template"), to = member(after, "template");
  if (!from.is_null() && !to.is_null() && text(from, "hash") != text(to, "hash"))
    differences.emplace_back(
        "data.template: the chat template, its special tokens, or the date that it writes is another one");
  return differences;
}

}  // namespace trainer::data
