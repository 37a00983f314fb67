// Files, tokenizers and windows, against the definitions of the job file's data section.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "engine/data/data.h"
#include "engine/data/files.h"
#include "engine/data/token_stream.h"
#include "tests/data/streams.h"
#include "tests/temporary.h"

namespace trainer::data {
namespace {

using tests::contains;
using tests::message_of;
using tests::TemporaryFolder;
using Ids = std::vector<std::int32_t>;

struct Window {
  Ids tokens, targets;
};

Window window(const Dataset& dataset, std::int64_t sample) {
  const auto seq_len = static_cast<std::size_t>(dataset.fields()[0].shape[0]);
  Window window{Ids(seq_len), Ids(seq_len)};
  std::byte* out[] = {reinterpret_cast<std::byte*>(window.tokens.data()),
                      reinterpret_cast<std::byte*>(window.targets.data())};
  dataset.read(sample, out);
  return window;
}

DataJob text_spec(std::vector<std::string> train, trainer::Tokenizer tokenizer, std::int64_t seq_len) {
  DataJob spec;
  spec.train.paths = std::move(train);
  spec.tokenizer = tokenizer;
  spec.seq_len = seq_len;
  return spec;
}

TEST_CASE("files of a list are in sorted path order, each once") {
  TemporaryFolder folder;
  const std::string b = folder.write("b.txt", "B"), a = folder.write("a.txt", "A");
  CHECK(expand_paths({b, a, folder.path("*.txt")}) == std::vector<std::string>{a, b});
}

TEST_CASE("wildcards match within a name, ** any depth, and neither hidden names") {
  TemporaryFolder folder;
  const std::string top = folder.write("x.h", ""), deep = folder.write("one/two/y.h", ""),
                    other = folder.write("one/z.c", "");
  folder.write(".hidden.h", "");
  folder.write(".git/w.h", "");
  std::filesystem::create_directory_symlink(folder.path(), folder.path("one/loop"));
  CHECK(expand_paths({folder.path("**")}) == std::vector<std::string>{deep, other, top});
  CHECK(expand_paths({folder.path("**/*.h")}) == std::vector<std::string>{deep, top});
  CHECK(expand_paths({folder.path("*/?.c")}) == std::vector<std::string>{other});
  CHECK(expand_paths({folder.path("[a-x].h")}) == std::vector<std::string>{top});
  CHECK(expand_paths({folder.path("one/**/y.h")}) == std::vector<std::string>{deep});
}

TEST_CASE("a missing file, a pattern without a match and a folder are data errors that name the path") {
  TemporaryFolder folder;
  for (const char* name : {"gone.txt", "*.none", "gone/**", ""}) {
    const std::string path = folder.path(name);
    CHECK(contains(message_of<DataError>([&] { expand_paths({path}); }), path + ": "));
  }
}

TEST_CASE("a loop of links under a pattern is passed over") {
  TemporaryFolder folder;
  const std::string file = folder.write("one/two/x.txt", "");
  std::filesystem::create_symlink("loop", folder.path("loop"));
  std::filesystem::create_symlink("../loop", folder.path("one/loop"));
  for (const char* pattern : {"*/*/x.txt", "**/x.txt", "**", "*/**", "o*/two/x.txt"})
    CHECK(expand_paths({folder.path(pattern)}) == std::vector<std::string>{file});
  CHECK(contains(message_of<DataError>([&] { expand_paths({folder.path("loop")}); }), "loop: "));
}

TEST_CASE("a folder that may not be entered is an input/output error, not a missing file" *
          doctest::skip(::geteuid() != 0)) {
  TemporaryFolder folder;
  const std::string path = folder.write("closed/x.txt", "text");
  std::filesystem::permissions(folder.path(), std::filesystem::perms::all);
  std::filesystem::permissions(folder.path("closed"), std::filesystem::perms::owner_all);
  REQUIRE(::seteuid(65534) == 0);  // root may enter any
  const std::string plain = message_of<IoError>([&] { expand_paths({path}); }),
                    pattern = message_of<IoError>([&] { expand_paths({folder.path("closed/*")}); });
  REQUIRE(::seteuid(0) == 0);
  CHECK(contains(plain, path + ": "));
  CHECK(contains(plain, "Permission denied"));
  CHECK(contains(pattern, "Permission denied"));
}

TEST_CASE("devices and pipes are refused at once") {
  TemporaryFolder folder;
  REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  for (const std::string& path : {folder.path("pipe"), std::string("/dev/zero")})
    CHECK(
        contains(message_of<DataError>([&] { bytes_stream(expand_paths({path})); }), path + ": is not a regular file"));
}

TEST_CASE("a file that becomes shorter or goes away while it is in use is an input/output error that names it") {
  TemporaryFolder folder;
  const std::string path = folder.write("a", std::string(std::size_t{3} << 20, 'x'));
  const auto stream = bytes_stream({path});
  const DataFile closed(path, DataFile::Keep::closed);
  Ids ids(10);
  const auto read = [&] { stream->read((std::int64_t{3} << 20) - 10, 10, ids.data()); };
  const auto read_closed = [&] { closed.read(0, ids.data(), 10); };
  CHECK_NOTHROW(read());
  CHECK_NOTHROW(read_closed());
  std::filesystem::resize_file(path, std::size_t{1} << 20);
  CHECK(contains(message_of<IoError>(read),
                 path + ": the file became shorter while it was in use: it had 3145728 bytes and now has 1048576"));
  std::filesystem::remove(path);
  CHECK(contains(message_of<IoError>(read_closed), path + ": no such file any more"));
}

TEST_CASE("a text that is overwritten while it is in use is a data error that names file and offset") {
  TemporaryFolder folder;
  for (const char* letters : {"abcdefgh", "abcd\u00e9fgh"}) {
    std::string text;
    while (text.size() < std::size_t{2} << 20) text += letters;
    const std::string path = folder.write("a", text);
    const CharsText chars = chars_stream({path});
    for (const char* other : {"z", "\xFF"}) {
      std::string changed = text;
      changed[1030 * 9] = other[0];
      folder.write("a", changed);
      Ids ids(20000);
      CHECK(contains(message_of<DataError>([&] { chars.stream->read(0, 20000, ids.data()); }),
                     path + ": offset 9270: there is another text here"));
    }
  }
}

TEST_CASE("characters that lie across the blocks of a pass are read") {
  TemporaryFolder folder;
  std::string text = "x";
  while (text.size() < (std::size_t{2} << 20) + 100) text += "\u20ac\U0001F600";
  const CharsText chars = chars_stream({folder.write("a", text)});
  CHECK(chars.tokenizer->vocab_size() == 3);
  CHECK(chars.tokenizer->decode(all_of(*chars.stream)) == text);
  const std::string cut = folder.write("b", text.substr(0, text.size() - 2));
  CHECK(contains(message_of<DataError>([&] { chars_stream({cut}); }),
                 cut + ": offset " + std::to_string(text.size() - 4) + ": is not UTF-8"));
}

TEST_CASE("bytes of joined files are ids, across file boundaries and empty files") {
  TemporaryFolder folder;
  const auto stream = bytes_stream({folder.write("a", "ab"), folder.write("b", ""),
                                    folder.write("c",
                                                 "\xFF"
                                                 "d"),
                                    folder.write("d", "")});
  CHECK(all_of(*stream) == Ids{'a', 'b', 0xFF, 'd'});
  Ids middle(2);
  stream->read(1, 2, middle.data());
  CHECK(middle == Ids{'b', 0xFF});
}

TEST_CASE("files too large to be held read like small ones") {
  TemporaryFolder folder;
  std::string large(std::size_t{3} << 20, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 251);
  const auto stream = bytes_stream({folder.write("a", "x"), folder.write("b", large), folder.write("c", "y")});
  const Ids ids = all_of(*stream);
  REQUIRE(ids.size() == large.size() + 2);
  bool same = ids.front() == 'x' && ids.back() == 'y';
  for (std::size_t i = 0; i < large.size(); ++i) same = same && ids[i + 1] == static_cast<std::uint8_t>(large[i]);
  CHECK(same);
}

TEST_CASE("sample i has ids from i * seq_len and targets one later, and there are (n - 1) / seq_len") {
  TemporaryFolder folder;
  for (const auto& [text, samples] :
       {std::pair<std::string, int>{"abcdefgh", 2}, {"abcdefg", 2}, {"abcdef", 1}, {"abcd", 1}}) {
    const Data data = open_data(text_spec({folder.write("t", text)}, trainer::Tokenizer::bytes, 3), {});
    CHECK(data.train->num_samples() == samples);
    CHECK(data.val == nullptr);
  }
  const Data data = open_data(text_spec({folder.write("t", "abcdefg")}, trainer::Tokenizer::bytes, 3), {});
  CHECK(window(*data.train, 1).tokens == Ids{'d', 'e', 'f'});
  CHECK(window(*data.train, 1).targets == Ids{'e', 'f', 'g'});
}

TEST_CASE("text shorter than one sample is a data error that names its file") {
  TemporaryFolder folder;
  const std::string path = folder.write("t", "abc");
  CHECK(contains(message_of<DataError>([&] { open_data(text_spec({path}, trainer::Tokenizer::bytes, 3), {}); }),
                 path + ": the training part has no sample"));
}

TEST_CASE("the validation part is the contiguous last part") {
  TemporaryFolder folder;
  DataJob spec = text_spec({folder.write("t", "0123456789abcdefghij")}, trainer::Tokenizer::bytes, 1);
  spec.val = 0.1;  // 18 ids train, 2 validate
  const Data data = open_data(spec, {});
  CHECK(data.train->num_samples() == 17);
  CHECK(window(*data.train, 16).targets == Ids{'h'});
  CHECK(data.val->num_samples() == 1);
  CHECK(window(*data.val, 0).tokens == Ids{'i'});
  CHECK(window(*data.val, 0).targets == Ids{'j'});
}

TEST_CASE("a fraction that divides is not lost to rounding") {
  TemporaryFolder folder;
  for (int tenths = 1; tenths < 10; ++tenths) {
    DataJob spec = text_spec({folder.write("t", std::string(1000, 'x'))}, trainer::Tokenizer::bytes, 1);
    spec.val = tenths / 10.0;
    const Data data = open_data(spec, {});
    CHECK(data.train->num_samples() == 1000 - 100 * tenths - 1);
    CHECK(data.val->num_samples() == 100 * tenths - 1);
  }
}

TEST_CASE("chars are the sorted distinct code points of all the training text") {
  TemporaryFolder folder;
  const std::vector<std::string> paths{folder.write("a", "héllo"), folder.write("b", "€😀h")};
  const CharsText text = chars_stream(paths);
  CHECK(text.tokenizer->vocab_size() == 6);
  CHECK(text.tokenizer->decode(Ids{0, 1, 2, 3, 4, 5}) == "hloé€😀");
}

TEST_CASE("chars of mixed widths are found at every place") {
  TemporaryFolder folder;
  std::string text;
  std::vector<char32_t> expected;
  for (int i = 0; i < 5000; ++i) {
    const char32_t character = i % 7 == 0    ? 0x4E00 + i % 300
                               : i % 11 == 0 ? 0x1F600 + i % 20
                               : i % 5 == 0  ? 0xE9
                                             : 'a' + i % 26;
    append_utf8(text, character);
    expected.push_back(character);
  }
  const CharsText chars =
      chars_stream({folder.write("a", text.substr(0, 0)), folder.write("b", text), folder.write("c", text)});
  REQUIRE(chars.stream->num_tokens() == 10000);
  for (std::int64_t first : {0, 1, 1023, 1024, 1025, 2047, 4990, 4999, 5000, 6024, 9990}) {
    Ids ids(10);
    chars.stream->read(first, 10, ids.data());
    for (std::int64_t i = 0; i < 10; ++i) {
      CHECK(ids[static_cast<std::size_t>(i)] ==
            chars.tokenizer->id_of(expected[static_cast<std::size_t>((first + i) % 5000)]));
    }
  }
}

TEST_CASE("text that is not UTF-8 has no chars, and the error names file and offset") {
  TemporaryFolder folder;
  // Cut off, lone continuation, overlong, surrogate, beyond U+10FFFF.
  for (const char* bad :
       {"ab\xC3", "ab\x80", "ab\xC0\xAF", "ab\xE0\x80\xAF", "ab\xED\xA0\x80", "ab\xF4\x90\x80\x80", "ab\xFF"}) {
    const std::string path = folder.write("t", bad);
    CHECK(contains(message_of<DataError>([&] { chars_stream({path}); }), path + ": offset 2: "));
  }
}

TEST_CASE("validation text with a character that training has not is an error with file and offset") {
  TemporaryFolder folder;
  DataJob spec = text_spec({folder.write("train", "abcabc")}, trainer::Tokenizer::chars, 2);
  const std::string val = folder.write("val", "abcx");
  spec.val = DataFiles{{val}, {}, {}};
  CHECK(contains(message_of<DataError>([&] { open_data(spec, {}); }), val + ": offset 3: the character U+0078"));
  spec.val = DataFiles{{folder.write("val", "cba")}, {}, {}};
  CHECK(window(*open_data(spec, {}).val, 0).tokens == Ids{2, 1});
}

TEST_CASE("a vocabulary larger than the model's is an error that says where its size comes from") {
  TemporaryFolder folder;
  const std::string path = folder.write("t", "abcd");
  const DataJob spec = text_spec({path}, trainer::Tokenizer::chars, 2),
                bytes = text_spec({path}, trainer::Tokenizer::bytes, 2);
  CHECK_NOTHROW(open_data(spec, {DType::i32, 4}));
  CHECK(contains(message_of<BadData>([&] {
                   open_data(spec, {DType::i32, 3});
                 }),
                 path + ": the text has 4 distinct characters, the model's vocabulary has 3 rows"));
  CHECK_NOTHROW(open_data(bytes, {DType::i32, 256}));
  CHECK(contains(message_of<BadData>([&] {
                   open_data(bytes, {DType::i32, 100});
                 }),
                 "`tokenizer: bytes` has 256 ids, the model's vocabulary has 100 rows"));
}

namespace {

const std::string kTokenizers = std::string(TRAINER_SOURCE_DIR) + "/tests/goldens/tokenizers/";

DataJob tokenizer_spec(const std::string& text, const std::string& tokenizer, std::int64_t seq_len) {
  DataJob spec = text_spec({text}, trainer::Tokenizer::file, seq_len);
  spec.tokenizer_file = tokenizer;
  return spec;
}

}  // namespace

TEST_CASE("text under a tokenizer.json has its ids, cut into blocks or not, on any number of threads") {
  TemporaryFolder folder;
  std::string text;
  while (text.size() < 9'000'000) text += tests::contents_of(kTokenizers + "train.txt");
  const std::string path = folder.write("t", text);
  for (const char* kind : {"llama3.json", "llama2.json"}) {
    const FileTokenizer tokenizer(kTokenizers + kind);
    const Ids expected = tokenizer.encode(text);
    for (const int threads : {1, 3}) {
      const auto stream = tokenized_stream({path}, tokenizer, {.threads = threads});
      REQUIRE(stream->num_tokens() == static_cast<std::int64_t>(expected.size()));
      CHECK(all_of(*stream) == expected);
    }
    CHECK(tokenizer.decode(expected) == text);
  }
}

TEST_CASE("windows, files and errors of text under a tokenizer.json") {
  TemporaryFolder folder;
  const FileTokenizer tokenizer(kTokenizers + "llama2.json");
  const std::string first = folder.write("a.txt", "hello world "), second = folder.write("b.txt", "the end <s>");
  DataJob spec = tokenizer_spec(first, kTokenizers + "llama2.json", 2);
  spec.train.paths.push_back(second);
  const Data data = open_data(spec, {});
  Ids ids = tokenizer.encode("hello world ");
  for (const std::int32_t id : tokenizer.encode("the end <s>")) ids.push_back(id);  // each file is a text of its own
  CHECK(data.train->num_samples() == static_cast<std::int64_t>(ids.size() - 1) / 2);
  CHECK(window(*data.train, 1).tokens == Ids{ids[2], ids[3]});
  CHECK(std::count(ids.begin(), ids.end(), 1) == 0);  // <s> in a text is text
  CHECK(data.tokenizer->vocab_size() == tokenizer.vocab_size());
  CHECK_NOTHROW(open_data(spec, {DType::i32, tokenizer.vocab_size()}));
  const auto key_of = [](const DataJob& job, std::int64_t rows) {
    try {
      open_data(job, {DType::i32, rows});
    } catch (const BadData& error) {
      return error.key + ": " + error.what();
    }
    return std::string();
  };
  CHECK(contains(key_of(spec, 100),
                 "data.tokenizer: " + kTokenizers + "llama2.json: has 560 ids, the model's vocabulary has 100 rows"));
  CHECK(contains(key_of(tokenizer_spec(first, folder.path("none.json"), 2), 0), "data.tokenizer: "));
  CHECK(contains(key_of(tokenizer_spec(folder.write("bad", "abc\xFF"), kTokenizers + "gpt2.json", 2), 0),
                 "data.train: "));
}

TEST_CASE("the state of a tokenizer.json is its hash: another file is not taken for it") {
  const std::string state = FileTokenizer(kTokenizers + "gpt2.json").json();
  CHECK(make_tokenizer(state, kTokenizers + "gpt2.json")->vocab_size() ==
        FileTokenizer(kTokenizers + "gpt2.json").vocab_size());
  CHECK(
      contains(message_of<DataError>([&] { make_tokenizer(state, kTokenizers + "qwen2.json"); }), "another tokenizer"));
  CHECK_THROWS_AS(make_tokenizer(state), DataError);
}

TEST_CASE("tokenizers come back from their JSON and undo themselves") {
  TemporaryFolder folder;
  const std::string text = std::string("na\xC3\xAFve \"quoted\"\n") + '\0' + "\x7F";
  const auto chars = chars_stream({folder.write("t", text)}).tokenizer;
  const auto again = make_tokenizer(chars->json());
  CHECK(again->json() == chars->json());
  CHECK(again->encode(text) == chars->encode(text));
  CHECK(again->decode(again->encode(text)) == text);
  const auto bytes = make_tokenizer(BytesTokenizer().json());
  CHECK(bytes->vocab_size() == 256);
  CHECK(bytes->decode(bytes->encode("\xFF\x00z")) == "\xFF\x00z");
  CHECK_THROWS_AS(bytes->decode(Ids{256}), DataError);
  const auto ended = make_tokenizer(BytesTokenizer(/*has_end=*/true).json());
  CHECK(ended->vocab_size() == 257);
  CHECK(ended->decode(Ids{97, 256}) == "a");
  CHECK(contains(message_of<DataError>([&] { again->encode("naz"); }), "offset 2: the character U+007A"));
  CHECK_THROWS_AS(again->decode(Ids{99}), DataError);
  const auto numbers = make_tokenizer(NumbersTokenizer(1000).json());
  CHECK(numbers->encode(" 12,44  999\n0 ") == Ids{12, 44, 999, 0});
  CHECK(numbers->decode(Ids{12, 0}) == " 12 0");
  CHECK(contains(message_of<DataError>([&] { numbers->encode("12 cat 5"); }), "offset 3: \"cat\" is no token id"));
  for (const char* bad : {"1000", "-1", "1.5", "99999999999", "12;44"})
    CHECK_THROWS_AS(numbers->encode(bad), DataError);
  for (const char* bad :
       {"", "{}", "[]", "{\"tokenizer\":\"chars\"}", "{\"tokenizer\":\"chars\",\"alphabet\":\"ba\"}",
        "{\"tokenizer\":7}", "{\"tokenizer\":\"bytes\",\"end\":7}", "{\"tokenizer\":\"numbers\"}",
        "{\"tokenizer\":\"numbers\",\"vocab_size\":0}", "{\"tokenizer\":\"numbers\",\"vocab_size\":-1}"}) {
    CHECK_THROWS_AS(make_tokenizer(bad), DataError);
  }
}

}  // namespace
}  // namespace trainer::data
