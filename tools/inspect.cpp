// trainer inspect: what a checkpoint or a safetensors file holds, every checksum verified.
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "engine/checkpoint/checkpoint.h"
#include "engine/core/error.h"
#include "engine/core/printable.h"
#include "engine/report/table.h"
#include "tools/command.h"

namespace trainer::tools {
namespace {

using checkpoint::Manifest;
using checkpoint::TensorInfo;

// What is known of a path, damaged or not.
struct Contents {
  std::string path;
  std::optional<Manifest> manifest;  ///< of a checkpoint that can be read so far
  std::vector<TensorInfo> tensors;
  std::vector<std::string> foreign;
  std::vector<std::string> damaged;
  std::vector<std::string> others;  ///< older checkpoints of the same directory
};

Contents contents_of_checkpoint(const std::string& path, checkpoint::Examined examined) {
  Contents contents;
  contents.path = path;
  contents.manifest = std::move(examined.manifest);
  contents.damaged = std::move(examined.damage);
  if (!contents.manifest) return contents;
  for (const checkpoint::StoredTensor& tensor : contents.manifest->tensors) contents.tensors.push_back(tensor.info);
  return contents;
}

// The newest, whole or not; nothing if a live run replaced it meanwhile.
std::optional<Contents> contents_of_newest(const std::string& dir) {
  const std::vector<checkpoint::CheckpointPath> steps = checkpoint::list_checkpoints(dir);
  if (steps.empty()) throw DataError(dir + ": no checkpoint here");
  std::optional<checkpoint::Examined> examined = checkpoint::examine_unless_replaced(steps.front().path);
  if (!examined) return std::nullopt;
  Contents contents = contents_of_checkpoint(steps.front().path, std::move(*examined));
  for (std::size_t i = 1; i < steps.size(); ++i) contents.others.push_back(steps[i].path);
  return contents;
}

Contents contents_of(const std::string& path) {
  if (!exists(path)) throw DataError(path + ": there is no such file or directory");
  if (!is_directory(path)) {
    const checkpoint::TensorStore store = checkpoint::TensorStore::from_safetensors(path);
    return {path, std::nullopt, store.tensors(), store.foreign(), {}, {}};
  }
  if (!exists(path + "/" + checkpoint::kManifestName))
    return checkpoint::while_replaced(path, [&] { return contents_of_newest(path); });
  std::optional<checkpoint::Examined> examined = checkpoint::examine_unless_replaced(path);
  if (!examined) throw DataError(path + ": was removed or replaced while it was read; does a run save there?");
  return contents_of_checkpoint(path, std::move(*examined));
}

Json metadata_of(const Contents& contents) {
  return contents.manifest ? Json::parse(contents.manifest->metadata, nullptr, false) : Json::object();
}

Json member(const Json& object, const char* key) {
  return object.is_object() && object.contains(key) ? object[key] : Json(nullptr);
}

/// Of a checkpoint of an adapter: hash of its base, and where that was.
Json base_json(const Json& metadata) {
  const Json base = member(metadata, "base");
  return base.is_object() ? Json{{"hash", member(base, "hash")}, {"from", member(base, "from")}} : Json(nullptr);
}

void put_json(const Contents& contents) {
  const Json metadata = metadata_of(contents);
  Json files = Json::array(), tensors = Json::array();
  if (contents.manifest)
    for (const checkpoint::FileInfo& file : contents.manifest->files)
      files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  for (const TensorInfo& tensor : contents.tensors)
    tensors.push_back(
        {{"name", tensor.name}, {"dtype", std::string(name_of(tensor.dtype))}, {"shape", tensor.shape.sizes()}});
  put_document(Json{{"path", contents.path},
                    {"ok", contents.damaged.empty()},
                    {"damaged", contents.damaged},
                    {"step", contents.manifest ? Json(contents.manifest->step) : Json(nullptr)},
                    {"strategy", member(metadata, "strategy")},
                    {"world_size", member(metadata, "world_size")},
                    {"base", base_json(metadata)},
                    {"plan_hash", contents.manifest ? Json(contents.manifest->plan_hash) : Json(nullptr)},
                    {"files", files},
                    {"tensors", tensors},
                    {"other_checkpoints", contents.others}});
}

// Which tensors lie in optimizer files: their names say little that those of the model's tensors do not.
std::set<std::string> optimizer_tensors(const Contents& contents) {
  std::set<std::string> names;
  if (!contents.manifest) return names;
  for (const checkpoint::StoredTensor& tensor : contents.manifest->tensors)
    for (const checkpoint::Piece& piece : tensor.pieces)
      if (contents.manifest->files[piece.file].name.starts_with("optimizer")) names.insert(tensor.info.name);
  return names;
}

std::string tensors_text(const Contents& contents) {
  const std::set<std::string> optimizer = optimizer_tensors(contents);
  report::Table table({"tensor", "dtype", "shape"});
  std::int64_t elements = 0, optimizer_elements = 0;
  for (const TensorInfo& tensor : contents.tensors) {
    if (optimizer.contains(tensor.name)) {
      optimizer_elements += tensor.shape.elements();
      continue;
    }
    table.add({printable(tensor.name), std::string(name_of(tensor.dtype)), tensor.shape.str()});
    elements += tensor.shape.elements();
  }
  std::string text = table.str() + fmt::format("  {} tensors, {} elements\n",
                                               contents.tensors.size() - optimizer.size(), grouped(elements));
  if (!optimizer.empty())
    text += fmt::format("  optimizer: {} tensors, {} elements\n", optimizer.size(), grouped(optimizer_elements));
  return text;
}

void put_text(const Contents& contents) {
  put("{}\n", printable(contents.path));
  if (contents.manifest) {
    const Json metadata = metadata_of(contents), strategy = member(metadata, "strategy"),
               world = member(metadata, "world_size");
    put("step {}, saved by {} on {} rank(s), plan {}\n", contents.manifest->step,
        strategy.is_string() ? printable(strategy.get<std::string>()) : "?",
        printable(world.dump(-1, ' ', true, Json::error_handler_t::replace)), printable(contents.manifest->plan_hash));
    if (const Json base = base_json(metadata); base.is_object() && base["hash"].is_string() && base["from"].is_string())
      put("an adapter of the base {}, which was {}\n", printable(base["hash"].get<std::string>()),
          printable(base["from"].get<std::string>()));
    report::Table files({"file", "bytes", "checksum"});
    for (const checkpoint::FileInfo& file : contents.manifest->files)
      files.add({printable(file.name), grouped(file.bytes), printable(file.checksum)});
    put("\n{}", files.str());
  }
  put("\n{}", tensors_text(contents));
  for (const std::string& foreign : contents.foreign) put("  not readable here: {}\n", printable(foreign));
  if (!contents.others.empty()) put("\nolder checkpoints beside it:\n");
  for (const std::string& other : contents.others) put("  {}\n", printable(other));
}

int inspect(const std::string& path, bool json) {
  const Contents contents = contents_of(path);
  json ? put_json(contents) : put_text(contents);
  for (const std::string& damage : contents.damaged) say("damaged: {}\n", printable(damage));
  if (contents.damaged.empty() && contents.manifest) say("every checksum is right\n");
  return contents.damaged.empty() ? kDone : kBadData;
}

}  // namespace

void add_inspect(CommandLine& app, Work& work) {
  struct Arguments {
    std::string path;
    bool json = false;
  };
  Subcommand* command = app.add_subcommand("inspect", "what a checkpoint holds, and whether it is whole");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("CHECKPOINT", arguments->path,
                   "a step's directory, a directory of them (the newest is shown), or a .safetensors file")
      ->required()
      ->type_name("");
  command->add_flag("--json", arguments->json, "makes stdout one JSON document");
  command->footer(
      "Examples:\n"
      "  trainer inspect runs/quickstart\n"
      "  trainer inspect runs/quickstart/step-00000600 --json\n"
      "\n"
      "Reads every byte and compares checksums. Names what is damaged and exits 65.\n");
  command->callback([arguments, &work] { work = [arguments] { return inspect(arguments->path, arguments->json); }; });
}

}  // namespace trainer::tools
