// How rows are cut to samples, packed and read.
#include "engine/data/row_samples.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "engine/core/amounts.h"
#include "engine/core/check.h"

namespace trainer::data {

RowSamples::RowSamples(std::shared_ptr<const RowStore> rows, std::int64_t first, std::int64_t count,
                       const Options& options)
    : rows_(std::move(rows)), seq_len_(options.seq_len) {
  CHECK(first >= 0 && first + count <= rows_->num_rows(), "rows of the store");
  const int sequences = rows_->sequences();
  CHECK(sequences == 1 || options.packing == Packing::none, "a pair is a sample by itself");
  const Shape shape = sequences == 1 ? Shape{seq_len_} : Shape{sequences, seq_len_};
  fields_ = {{"tokens", DType::i32, shape}, {"targets", DType::i32, shape}};
  if (options.packing == Packing::documents) fields_.push_back({"documents", DType::i32, shape});
  counts_.rows = count;
  counts_.sequences = sequences;
  for (std::int64_t row = first; row < first + count; ++row)
    sequences == 1 ? cut(row, options) : cut_pair(row, options);
  if (options.packing == Packing::documents) {
    pack();
  } else {
    const auto of_sample = static_cast<std::size_t>(sequences);
    for (std::size_t i = 0; i <= segments_.size(); i += of_sample) begins_.push_back(i);
  }
  counts_.samples = num_samples();
  counts_.room = counts_.samples * rows_->sequences() * (seq_len_ + 1);
}

void RowSamples::cut(std::int64_t row, const Options& options) {
  const std::int64_t length = rows_->length(row), start = rows_->start(row), room = seq_len_ + 1;
  counts_.ids += length;
  if (length <= room) return add(row, start, length, false);
  switch (options.too_long) {
    case TooLong::error:
      if (first_too_long_ < 0) first_too_long_ = row;
      return;
    case TooLong::drop:
      ++counts_.dropped;
      return;
    case TooLong::truncate:
      ++counts_.truncated;
      return add(row, start, room, true);
    case TooLong::split:
      ++counts_.split;
      // The last target of a piece is the first input of the next.
      for (std::int64_t at = 0; at + 1 < length; at += seq_len_)
        add(row, start + at, std::min(room, length - at), true);
      return;
  }
}

// Both sequences, or neither.
void RowSamples::cut_pair(std::int64_t row, const Options& options) {
  const std::int64_t room = seq_len_ + 1;
  std::vector<Segment> segments;
  bool cut = false;
  for (int sequence = 0; sequence < rows_->sequences(); ++sequence) {
    const std::int64_t length = rows_->length(row, sequence);
    counts_.ids += length;
    cut = cut || length > room;
    segments.push_back({rows_->start(row, sequence), std::min(length, room), row});
  }
  if (cut && options.too_long == TooLong::error) {
    if (first_too_long_ < 0) first_too_long_ = row;
    return;
  }
  if (cut) ++(options.too_long == TooLong::drop ? counts_.dropped : counts_.truncated);
  if (!cut || options.too_long == TooLong::truncate) add(segments, cut);
}

void RowSamples::add(std::int64_t row, std::int64_t first, std::int64_t count, bool cut) {
  add({{first, count, row}}, cut);
}

// A part of a row may have nothing to train.
void RowSamples::add(const std::vector<Segment>& segments, bool cut) {
  std::int64_t targets = 0, held = 0;
  for (const Segment& segment : segments) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(segment.count));
    std::vector<std::uint8_t> trained(ids.size());
    rows_->read(segment.first, segment.count, ids.data(), trained.data());
    const std::int64_t its = std::count(trained.begin() + 1, trained.end(), 1);
    if (its == 0 && cut) {
      ++counts_.without_targets;
      return;
    }
    targets += its;
    held += segment.count;
  }
  counts_.targets += targets;
  counts_.held += held;
  segments_.insert(segments_.end(), segments.begin(), segments.end());
}

void RowSamples::pack() {
  std::vector<std::int64_t> sizes;
  for (const Segment& segment : segments_) sizes.push_back(segment.count);
  const std::vector<std::int64_t> bins = packed(sizes, seq_len_ + 1);
  std::vector<std::size_t> order(segments_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return bins[a] < bins[b]; });
  std::vector<Segment> sorted;
  for (const std::size_t i : order) {
    if (sorted.empty() || bins[i] != bins[order[sorted.size() - 1]]) begins_.push_back(sorted.size());
    sorted.push_back(segments_[i]);
  }
  begins_.push_back(sorted.size());
  segments_ = std::move(sorted);
}

SampleIds RowSamples::ids_of(std::int64_t sample) const {
  SampleIds out;
  std::int32_t document = 0;
  const auto begin = begins_[static_cast<std::size_t>(sample)], end = begins_[static_cast<std::size_t>(sample) + 1];
  for (const Segment& segment : std::span(segments_).subspan(begin, end - begin)) {
    const std::size_t at = out.ids.size(), size = at + static_cast<std::size_t>(segment.count);
    out.ids.resize(size);
    out.trained.resize(size);
    rows_->read(segment.first, segment.count, out.ids.data() + at, out.trained.data() + at);
    out.trained[at] = 0;  // the id before it is another row's
    out.documents.resize(size, document++);
  }
  return out;
}

void RowSamples::read(std::int64_t sample, std::span<std::byte* const> out) const {
  const SampleIds held = ids_of(sample);
  const auto sequences = static_cast<std::size_t>(rows_->sequences()), length = static_cast<std::size_t>(seq_len_);
  std::size_t begin = 0;
  for (std::size_t sequence = 0; sequence < sequences; ++sequence) {
    const auto last = static_cast<std::int32_t>(sequence);
    const auto end =
        sequences == 1
            ? held.ids.size()
            : static_cast<std::size_t>(std::ranges::upper_bound(held.documents, last) - held.documents.begin());
    const auto put = [&](std::size_t field, auto&& value) {
      auto* values = reinterpret_cast<std::int32_t*>(out[field]) + sequence * length;
      for (std::size_t i = 0; i < length; ++i) values[i] = value(begin + i);
    };
    put(0, [&](std::size_t i) { return i < end ? held.ids[i] : 0; });
    put(1, [&](std::size_t i) { return i + 1 < end && held.trained[i + 1] ? held.ids[i + 1] : kIgnored; });
    if (fields_.size() > 2) put(2, [&](std::size_t i) { return i < end ? held.documents[i] : kPadding; });
    begin = end;
  }
}

RowCounts& RowCounts::operator+=(const RowCounts& other) {
  rows += other.rows, ids += other.ids;
  sequences = other.sequences;
  dropped += other.dropped, truncated += other.truncated, split += other.split;
  without_targets += other.without_targets;
  samples += other.samples, room += other.room, held += other.held, targets += other.targets;
  return *this;
}

std::string RowCounts::summary(std::int64_t seq_len) const {
  std::string text = "rows: " + grouped(rows) + " of " + grouped(ids) + " tokens";
  const auto count = [&](std::int64_t n, const char* what) {
    if (n > 0) text += "; " + grouped(n) + " " + what;
  };
  count(dropped, "too long and dropped");
  count(truncated, "truncated");
  count(split, "split");
  count(without_targets, "of the parts left out: nothing in them is trained");
  const double padding = room > 0 ? 100.0 * static_cast<double>(room - held) / static_cast<double>(room) : 0;
  char share[16];
  std::snprintf(share, sizeof share, "%.1f", padding);
  return text + "\nsamples: " + grouped(samples) + " of " + (sequences == 1 ? "" : std::to_string(sequences) + " x ") +
         grouped(seq_len) + " tokens; " + (targets > 0 ? grouped(targets) + " targets, " : "") + share + "% padding";
}

std::vector<std::int64_t> packed(std::span<const std::int64_t> sizes, std::int64_t room) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::map<std::int64_t, std::vector<std::int64_t>> by_room;  // bins that have room left
  std::vector<std::int64_t> bin_of(sizes.size());
  std::int64_t num_bins = 0;
  for (const std::size_t i : order) {
    CHECK(sizes[i] >= 1 && sizes[i] <= room, "each fits into a bin");
    std::int64_t bin = num_bins, left = room;
    if (const auto fits = by_room.lower_bound(sizes[i]); fits != by_room.end()) {
      left = fits->first;
      bin = fits->second.back();
      fits->second.pop_back();
      if (fits->second.empty()) by_room.erase(fits);
    } else {
      ++num_bins;
    }
    bin_of[i] = bin;
    if (left > sizes[i]) by_room[left - sizes[i]].push_back(bin);
  }
  std::vector<std::int64_t> number(static_cast<std::size_t>(num_bins), -1);
  std::int64_t next = 0;
  for (std::int64_t& bin : bin_of) {
    std::int64_t& its = number[static_cast<std::size_t>(bin)];
    if (its < 0) its = next++;
    bin = its;
  }
  return bin_of;
}

}  // namespace trainer::data
