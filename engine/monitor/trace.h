// Trace: when every instruction ran, as a file that Perfetto and chrome://tracing open: a JSON array of events, where a
// process is a rank and a thread one of its streams. Whose instructions they are is the caller's affair.
// Source: "Trace Event Format", Google, 2016: complete events ("ph": "X"), flow events ("s" and "f") and metadata
// ("M"), times in microseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trainer {

struct TraceEvent {
  int rank = 0;
  int stream = 0;
  std::string_view name;      ///< "linear h.0.attn.c_attn"
  std::string_view category;  ///< "launch", "collective": what a viewer colours and filters by
  double begin_us = 0;        ///< from the start of the trace
  double duration_us = 0;
  std::vector<std::pair<std::string_view, double>> numbers;          ///< bytes, flops …
  std::vector<std::pair<std::string_view, std::string_view>> texts;  ///< the instruction as printed …
};

/// A moment on a stream, inside the event that an arrow starts from or points to.
struct TracePoint {
  int rank = 0;
  int stream = 0;
  double at_us = 0;
};

/// Writes as it goes; the file is whole once the object is gone (and readable before: viewers accept an open array).
/// Ranks may call from threads of their own.
class TraceWriter {
 public:
  /// Makes the folders of `path`, empties the file. Throws IoError, and DataError where there is a file that is not a
  /// trace.
  explicit TraceWriter(const std::string& path);
  ~TraceWriter();
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  /// Names shown for a rank and its streams.
  void name_rank(int rank, std::string_view name);
  void name_stream(int rank, int stream, std::string_view name);
  /// A remark shown beside a rank's name, and its place among the others (ascending).
  void label_rank(int rank, std::string_view label);
  void order_rank(int rank, int place);
  void add(const TraceEvent& event);
  /// An arrow between two events. `id`: no other arrow's.
  void add_arrow(std::int64_t id, std::string_view name, const TracePoint& from, const TracePoint& to);
  /// Writes out the rest and ends the array. Throws IoError.
  void close();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace trainer
