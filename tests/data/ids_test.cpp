// Files of token ids: headers that are read, formats that are refused, ids that are found before training.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/error.h"
#include "engine/data/data.h"
#include "engine/data/id_stream.h"
#include "engine/data/recognise.h"
#include "tests/data/streams.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using namespace std::string_literals;
using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

std::string flat(const std::vector<std::uint32_t>& ids, std::size_t bytes) {
  std::string text;
  for (std::uint32_t id : ids) text.append(reinterpret_cast<const char*>(&id), bytes);  // little-endian machines
  return text;
}

// As numpy.save writes it, padded to 64 bytes.
std::string npy(const std::string& dtype, const std::string& shape, const std::string& ids, char version = 1,
                const std::string& order = "False") {
  std::string header = "{'descr': '" + dtype + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  const std::size_t start = version == 1 ? 10 : 12;
  while ((start + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  return "\x93NUMPY"s + version + '\0' + flat({static_cast<std::uint32_t>(header.size())}, version == 1 ? 2 : 4) +
         header + ids;
}

std::string llmc(std::uint32_t magic, std::uint32_t count, const std::string& ids) {
  std::vector<std::uint32_t> header(256, 0);
  header[0] = magic, header[1] = magic == 20240520 ? 1 : 7, header[2] = count;
  return flat(header, 4) + ids;
}

IdStream open(const std::vector<std::string>& paths, std::optional<TokenType> type = {}, std::int64_t limit = 0) {
  return {paths, type, limit};
}

std::string error_of(const std::string& path, std::optional<TokenType> type = {}, std::int64_t limit = 0) {
  return message_of<DataError>([&] { open({path}, type, limit).check(IdStream::Check::samples); });
}

TEST_CASE("flat ids of two and four bytes are joined, and one beyond the limit is named by file and offset") {
  TemporaryFolder folder;
  for (const TokenType type : {TokenType::u16, TokenType::u32}) {
    const std::size_t bytes = type == TokenType::u16 ? 2 : 4;
    const std::string a = folder.write("a.bin", flat({1, 50000, 3}, bytes)),
                      b = folder.write("b.bin", flat({65535, 7}, bytes));
    CHECK(all_of(open({a, b}, type)) == Ids{1, 50000, 3, 65535, 7});
    CHECK(all_of(open({a, b}, type, 65536)) == Ids{1, 50000, 3, 65535, 7});
    const IdStream limited = open({a, b}, type, 65535);
    Ids ids(5);
    limited.read(0, 3, ids.data());
    const std::string message = message_of<DataError>([&] { limited.read(0, 5, ids.data()); });
    CHECK(contains(message, b + ": offset 0: token id 65535 is outside of the vocabulary of 65535"));
    CHECK(contains(message, "must have at least 65536 rows, or data.token_type is not " + std::string(name_of(type))));
  }
  const std::string large = folder.write("large.bin", flat({0, 0x80000000u}, 4));
  CHECK_THROWS_AS(all_of(open({large}, TokenType::u32)), DataError);
}

TEST_CASE("a flat file that ends inside an id names the offset") {
  TemporaryFolder folder;
  const std::string path = folder.write("a.bin", "12345");
  CHECK(contains(error_of(path, TokenType::u32), path + ": offset 4: ends inside an id"));
}

TEST_CASE("the ids of an .npy array and of an llm.c file begin behind the header, and the header decides their type") {
  TemporaryFolder folder;
  const std::vector<std::uint32_t> ids{5, 40000, 0, 7};
  const Ids expected{5, 40000, 0, 7};
  CHECK(all_of(open({folder.write("a.npy", npy("<u2", "(4,)", flat(ids, 2)))})) == expected);
  CHECK(all_of(open({folder.write("b.npy", npy("<u4", "(4,)", flat(ids, 4), 2))})) == expected);
  CHECK(all_of(open({folder.write("c.npy", npy("<i4", "(4,)", flat(ids, 4), 3))})) == expected);
  CHECK(all_of(open({folder.write("d.bin", llmc(20240520, 4, flat(ids, 2)))})) == expected);
  CHECK(all_of(open({folder.write("e.bin", llmc(20240801, 4, flat(ids, 4)))})) == expected);
  // Of any kinds, joined in the order of their paths.
  const Ids joined = all_of(open({folder.path("a.npy"), folder.path("e.bin"), folder.write("f.bin", flat({9}, 2))}));
  CHECK(joined == Ids{5, 40000, 0, 7, 5, 40000, 0, 7, 9});
  Ids middle(3);
  open({folder.path("a.npy"), folder.path("e.bin")}).read(3, 3, middle.data());
  CHECK(middle == Ids{7, 5, 40000});
}

TEST_CASE("a header that contradicts data.token_type is an error that says what to write") {
  TemporaryFolder folder;
  const std::string wide = folder.write("a.npy", npy("<u4", "(1,)", flat({1}, 4))),
                    narrow = folder.write("b.bin", llmc(20240520, 1, flat({1}, 2)));
  CHECK(error_of(wide, TokenType::u32) == "");
  CHECK(contains(
      error_of(wide, TokenType::u16),
      wide + ": is a NumPy array of u32 ids, where the job says data.token_type: u16; write `token_type: u32`"));
  CHECK(contains(error_of(narrow, TokenType::u32),
                 narrow + ": is an llm.c file of u16 ids, where the job says data.token_type: u32"));
}

TEST_CASE("headers that lie, are cut off or hold no ids are errors") {
  TemporaryFolder folder;
  const auto bad = [&](const std::string& contents) { return error_of(folder.write("x", contents)); };
  const std::string ids = flat({1, 2, 3, 4}, 2), good = npy("<u2", "(4,)", ids);
  CHECK(bad(good) == "");
  CHECK(contains(bad(good.substr(0, good.size() - 2)), "ends after 3 of the 4 ids"));
  CHECK(contains(bad(good + "ab"), "offset 136: has bytes behind the 4 ids"));
  CHECK(contains(bad(good.substr(0, 60)), "cut off"));
  CHECK(contains(bad("\x93NUMPY"), "unknown version"));
  CHECK(contains(bad("\x93NUMPY\x09"s + std::string(100, '\0')), "unknown version"));
  CHECK(contains(bad(npy("<i8", "(4,)", std::string(32, '\0'))),
                 "is a NumPy array of <i8, not of ids; save ids.astype('uint16')"));
  CHECK(contains(bad(npy("<f4", "(4,)", std::string(16, '\0'))), "of <f4"));
  CHECK(contains(bad(npy(">u2", "(4,)", ids)), "of >u2"));
  CHECK(contains(bad(npy("<u2", "(2, 2)", ids)), "is a NumPy array of 2 dims; save the ids in one"));
  CHECK(contains(bad(npy("<u2", "()", flat({1}, 2))), "of 0 dims"));
  CHECK(contains(bad(npy("<u2", "(9223372036854775807,)", ids)), "ends after 4 of the 9223372036854775807 ids"));
  CHECK(contains(bad(npy("<u2", "(99999999999999999999,)", ids)), "too large"));
  CHECK(contains(bad(llmc(20240520, 5, ids)), "ends after 4 of the 5 ids"));
  CHECK(contains(bad(llmc(20240520, 3, ids)), "offset 1030: has bytes behind the 3 ids"));
  CHECK(contains(bad(llmc(20240801, 4, ids)), "ends after 2 of the 4 ids"));
  CHECK(contains(bad(llmc(20240520, 4, "").substr(0, 100)), "ends inside the header of an llm.c file"));
}

TEST_CASE("files of other formats are refused by their name, whatever they are given as") {
  TemporaryFolder folder;
  const std::string rest(100, '\0');
  struct Case {
    std::string contents, name;
  };
  const std::string zip = "PK\x03\x04"s + std::string(22, '\0');
  for (const Case& each : std::vector<Case>{
           {"\x1F\x8B\x08\0\0\0\0\0\0\x03"s + rest, "a gzip file; unpack it with gunzip"},
           {"\x28\xB5\x2F\xFD" + rest, "a zstd file"},
           {"\xFD\x37zXZ\0"s + rest, "an xz file"},
           {"BZh91AY&SY" + rest, "a bzip2 file"},
           {"\x04\x22\x4D\x18" + rest, "an lz4 file"},
           {"PAR1" + rest, "a Parquet file"},
           {"ARROW1\0\0"s + rest, "an Arrow file"},
           {"\x89HDF\r\n\x1A\n" + rest, "an HDF5 file"},
           {"MMIDIDX\0\0"s + rest, "the index of a Megatron dataset; its ids are in the .bin file beside it"},
           {zip + "\x0B\0\0\0"s + "arr_0.npy  " + rest, "a zip archive"},
           {zip + "\x09\0\0\0"s + "arr_0.npy" + rest, "a NumPy archive (.npz)"},
           {zip + "\x10\0\0\0"s + "archive/data.pkl" + rest, "a PyTorch file"},
           {"\x80\x02\x8A\nl\xFC\x9C\x46\xF9 j\xA8P\x19." + rest, "a PyTorch file"},
           {"\x80\x04\x95\x20\0\0\0\0\0\0\0"s + rest, "a Python pickle"},
           {"\x20\0\0\0\0\0\0\0{\"a\":"s + rest, "a safetensors file"},
       }) {
    const std::string path = folder.write("x", each.contents);
    CHECK_MESSAGE(contains(error_of(path), path + ": is " + each.name), error_of(path));
    for (const DataFormat format : {DataFormat::text, DataFormat::table, DataFormat::idx}) {
      DataJob job;
      job.format = format;
      job.train = format == DataFormat::idx ? DataFiles{{}, path, path} : DataFiles{{path}, {}, {}};
      CHECK(contains(message_of<BadData>([&] { open_data(job, {}); }), path + ": is " + each.name));
    }
  }
  const std::string ids = folder.write("ids.npy", npy("<u2", "(4,)", flat({1, 2, 3, 4}, 2)));
  DataJob job;
  job.train.paths = {ids};
  CHECK(contains(message_of<BadData>([&] { open_data(job, {}); }),
                 "is a NumPy array (.npy); `format: tokens` reads the token ids of such a file"));
}

TEST_CASE("text and JSON are no token ids") {
  TemporaryFolder folder;
  const std::string prose = "The quick brown fox jumps over the lazy dog; na\xC3\xAFve.\n";
  CHECK(contains(error_of(folder.write("a", prose)), "is plain text; `format: text` reads it"));
  CHECK(contains(error_of(folder.write("a", "{\"text\": \"The quick brown fox jumps over the lazy dog\"}")),
                 "is JSON; write its token ids"));
  // Ids of a small vocabulary have a 0 in each, and short files say nothing.
  CHECK(error_of(folder.write("a", flat(std::vector<std::uint32_t>(100, 'a'), 2))) == "");
  CHECK(error_of(folder.write("a", "abcdefgh")) == "");
}

TEST_CASE("chance does not make a known format of token ids") {
  // Random ids of every vocabulary that is used: none of a million files may be refused.
  std::uint64_t state = 1;
  int refused = 0;
  for (int file = 0; file < 1'000'000; ++file) {
    std::string head;
    for (int i = 0; i < 8; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const auto id = static_cast<std::uint16_t>((state >> 33) % 50257);
      head.append(reinterpret_cast<const char*>(&id), 2);
    }
    refused += recognise(head + std::string(16, '\x55'), 1 << 30).has_value();
  }
  CHECK(refused == 0);
}

TEST_CASE("ids of four bytes read as two are suspected, unless the job says what they are") {
  TemporaryFolder folder;
  std::vector<std::uint32_t> ids;
  for (std::uint32_t i = 0; i < 100; ++i) ids.push_back(i * 7 % 1000);
  const std::string path = folder.write("a.bin", flat(ids, 4));
  CHECK(contains(error_of(path), path + ": every second id is 0"));
  CHECK(error_of(path, TokenType::u32) == "");
  CHECK(error_of(path, TokenType::u16) == "");
  CHECK(error_of(folder.write("b.bin", flat(std::vector<std::uint32_t>(100, 0), 4))) == "");
}

TEST_CASE(
    "an id outside of the vocabulary is found when the data is opened: anywhere in a small file, at the ends of a "
    "large one") {
  TemporaryFolder folder;
  DataJob job;
  job.format = DataFormat::tokens;
  job.seq_len = 8;
  const auto error_with = [&](std::int64_t ids, std::int64_t bad, IdStream::Check check) {
    std::string contents(static_cast<std::size_t>(ids * 2), '\1');
    contents[static_cast<std::size_t>(bad * 2 + 1)] = '\x70';
    job.train.paths = {folder.write("a.bin", contents)};
    return message_of<BadData>([&] { open_data(job, {DType::i32, 1000}, check); });
  };
  const auto samples = IdStream::Check::samples, all = IdStream::Check::all;
  CHECK(contains(error_with(1000, 777, samples), "offset 1554: token id 28673 is outside of the vocabulary of 1000"));
  const std::int64_t large = 40'000'000;  // ids: more than 64 MiB
  CHECK(contains(error_with(large, 0, samples), "offset 0: token id"));
  CHECK(contains(error_with(large, large - 1, samples), "offset 79999998: token id"));
  CHECK(error_with(large, 50'000, samples) == "");  // between two samples
  CHECK(contains(error_with(large, 50'000, all), "offset 100000: token id"));
}

}  // namespace
}  // namespace trainer::data
