// The export itself: opens the source, picks the format, and commits the output once it is complete.
#include "engine/export/export.h"

#include <array>

#include "engine/core/error.h"
#include "engine/export/formats.h"
#include "engine/export/output.h"
#include "engine/export/source.h"

namespace trainer::exporting {
namespace {

constexpr std::array<std::pair<std::string_view, Precision>, 4> kPrecisions{
    {{"f32", Precision::f32}, {"bf16", Precision::bf16}, {"f16", Precision::f16}, {"q8_0", Precision::q8_0}}};

}  // namespace

std::string_view name_of(Precision precision) {
  for (const auto& [name, one] : kPrecisions)
    if (one == precision) return name;
  return "?";
}

std::optional<Precision> precision_named(std::string_view name) {
  for (const auto& [known, one] : kPrecisions)
    if (known == name) return one;
  return std::nullopt;
}

Report export_model(const Options& options) {
  if (options.format == Format::hf && options.precision == Precision::q8_0)
    throw UsageError("--dtype q8_0 is of --format gguf; hf takes f32, bf16 or f16");
  if (options.format == Format::adapter && options.precision == Precision::q8_0)
    throw UsageError("--dtype q8_0 is of --format gguf; adapter takes f32, bf16 or f16");
  if (options.format == Format::adapter && options.merge)
    throw UsageError("--merge adds an adapter to its base; --format adapter writes the adapter alone");
  Output output(options.out);
  Report report;
  if (options.format == Format::adapter) {
    write_adapter_folder(output.temporary(), options, report);
    output.commit();
    return report;
  }
  const Source source(options);
  report.source = source.path();
  report.precision = options.precision.value_or(source.precision());
  report.tensors = static_cast<std::int64_t>(source.tensors().size());
  for (const checkpoint::TensorInfo& tensor : source.tensors()) report.parameters += tensor.shape.elements();
  if (options.format == Format::hf)
    write_hf_folder(source, output.temporary(), options, report);
  else
    write_gguf_file(source, output.temporary(), options, report);
  output.commit();
  return report;
}

}  // namespace trainer::exporting
