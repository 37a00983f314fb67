#!/usr/bin/env python3
"""Makes tests/goldens/parquet/: small Parquet files of random schemas, encodings and codecs, each with the rows that pyarrow reads of it as JSONL.

  pip install pyarrow==26.0.1 numpy
  python tests/goldens/parquet_goldens.py                  # the committed ones
  python tests/goldens/parquet_goldens.py FOLDER 300       # as many more into a folder of yours; TRAINER_PARQUET_FOLDER=FOLDER makes the test read them
"""
import json
import math
import pathlib
import random
import sys
import uuid

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = pathlib.Path(__file__).parent / "parquet"
CODECS = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
ALPHABET = ["a", "b", " ", "word ", "\n", '"', "\\", "\t", "\x00", "\x1f", "\x7f", "é", "漢字", "😀", "the quick brown fox ", "{}", "\u2028"]


def text(rng, most=30):
    return "".join(rng.choices(ALPHABET, k=rng.randint(0, most)))


def leaf(rng):
    """A type, and a function that draws one of its values."""
    bits = rng.choice([8, 16, 32, 64])
    unit = rng.choice(["ms", "us", "ns"])
    ticks = {"ms": 10**11, "us": 10**14, "ns": 10**17}[unit]
    few = [text(rng) for _ in range(5)]
    base = rng.choice(["id", "sha256:", "https://example.org/"])
    precision = rng.randint(1, 38)
    scale = rng.randint(0, precision)
    kinds = [
        lambda: (pa.string(), lambda: text(rng)), lambda: (pa.large_string(), lambda: text(rng)), lambda: (pa.string(), lambda: rng.choice(few)),
        lambda: (pa.string(), lambda: base + str(rng.randint(0, 10**6))), lambda: (pa.binary(), lambda: text(rng).encode()),
        lambda: (pa.string(), lambda: text(rng, 300 if rng.random() < 0.1 else 3)),
        lambda: (pa.binary(5), lambda: "".join(rng.choices("abc", k=5)).encode()), lambda: (pa.dictionary(pa.int32(), pa.string()), lambda: rng.choice(few)),
        lambda: (getattr(pa, f"int{bits}")(), lambda: rng.choice([rng.randint(-5, 5), rng.randint(-2**(bits - 1), 2**(bits - 1) - 1)])),
        lambda: (getattr(pa, f"uint{bits}")(), lambda: rng.choice([rng.randint(0, 5), rng.randint(0, 2**bits - 1)])),
        lambda: (pa.int64(), lambda: 1_700_000_000 + rng.randint(0, 1000)), lambda: (pa.bool_(), lambda: rng.random() < 0.5),
        lambda: (pa.float32(), lambda: rng.choice([0.1, -0.0, 1.0, 1e30, 1e-40, math.nan, math.inf, rng.gauss(0, 1)])),
        lambda: (pa.float64(), lambda: rng.choice([0.1, 5e-324, 1.0, 1e300, 123456789.0, math.nan, -math.inf, rng.gauss(0, 1)])),
        lambda: (pa.float16(), lambda: np.float16(rng.gauss(0, 1))), lambda: (pa.date32(), lambda: rng.randint(-10**5, 10**5)),
        lambda: (pa.timestamp(unit), lambda: rng.randint(-ticks, ticks)), lambda: (pa.time64("us"), lambda: rng.randint(0, 86_399_999_999)),
        lambda: (pa.time32("ms"), lambda: rng.randint(0, 86_399_999)), lambda: (pa.null(), lambda: None),
        lambda: (pa.decimal128(precision, scale), lambda: decimal(rng, precision, scale)), lambda: (pa.uuid(), lambda: rng.randbytes(16)),
    ]
    return rng.choice(kinds)()


def decimal(rng, precision, scale):
    import decimal as d
    digits = rng.randint(1, precision)
    return d.Decimal((rng.randint(0, 1), tuple(rng.randint(0, 9) for _ in range(digits)), -scale))


def column(rng, depth):
    """A type, and a function that draws one of its values or None."""
    kind = rng.random()
    if depth == 0 or kind < 0.4:
        type_, draw = leaf(rng)
    elif kind < 0.6:
        item, inner = column(rng, depth - 1)
        field = pa.field("item", item, nullable=rng.random() < 0.7 or has_null_type(item))
        type_ = rng.choice([pa.list_, pa.large_list])(field)
        most = rng.choice([1, 4, 20])
        draw = lambda: [inner(field.nullable) for _ in range(rng.randint(0, most))]
    elif kind < 0.85:
        names = rng.sample(["role", "content", "from", "value", "a b", "é", 'q"', "x"], rng.randint(1, 4))
        parts = [column(rng, depth - 1) for _ in names]
        fields = [pa.field(n, p[0], nullable=rng.random() < 0.7 or has_null_type(p[0])) for n, p in zip(names, parts)]
        type_ = pa.struct(fields)
        draw = lambda: {f.name: p[1](f.nullable) for f, p in zip(fields, parts)}
    elif kind < 0.92:
        item, inner = column(rng, depth - 1)
        type_, draw = pa.map_(pa.string(), item), lambda: [(k, inner(True)) for k in {text(rng, 4) for _ in range(rng.randint(0, 4))}]
    else:
        item, inner = leaf(rng)
        type_, draw = pa.map_(pa.int32(), item), lambda: [(k, inner()) for k in {rng.randint(-9, 9) for _ in range(rng.randint(0, 4))}]
    nulls = rng.choice([0, 0.05, 0.5, 1])

    def value(nullable=True):
        if nullable and rng.random() < nulls:
            return None
        drawn = draw()
        return drawn if drawn is not None or nullable else draw()
    return type_, value


def has_null_type(type_):
    return pa.types.is_null(type_) or any(has_null_type(type_.field(i).type) for i in range(type_.num_fields))


def array_of(values, type_):
    """pa.array, which draws of numbers for dates and times and of bytes for UUIDs need help with."""
    if pa.types.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        children = [array_of([None if v is None else v[f.name] for v in values], f.type) for f in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=pa.array([v is None for v in values], pa.bool_()))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        offsets = list(np.cumsum([0] + [len(v or []) for v in values]))
        items = array_of([i for v in values for i in v or []], type_.value_type)
        kind = pa.LargeListArray if pa.types.is_large_list(type_) else pa.ListArray
        return kind.from_arrays(pa.array(offsets, pa.int64() if kind is pa.LargeListArray else pa.int32()), items, type=type_, mask=pa.array([v is None for v in values], pa.bool_()))
    if pa.types.is_map(type_):
        offsets = list(np.cumsum([0] + [len(v or []) for v in values]))
        offsets = [None if i < len(values) and values[i] is None else o for i, o in enumerate(offsets)]
        keys = array_of([k for v in values for k, _ in v or []], type_.key_type)
        items = array_of([i for v in values for _, i in v or []], type_.item_type)
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items, type=type_)
    if pa.types.is_temporal(type_):
        return pa.array(values, pa.int32() if type_.bit_width == 32 else pa.int64()).cast(type_)
    if isinstance(type_, pa.UuidType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, pa.binary(16)))
    return pa.array(values, type_)


def json_of(scalar):
    """A value as this program writes it: in JSON, with dates, times and decimals as their numbers."""
    type_ = scalar.type
    if not scalar.is_valid:
        return "null"
    if pa.types.is_dictionary(type_):
        return json_of(scalar.value)
    if pa.types.is_struct(type_):
        return "{" + ", ".join(f"{quote(k)}: {json_of(v)}" for k, v in scalar.items()) + "}"
    if pa.types.is_map(type_):
        pairs = [(json_of(p["key"]), json_of(p["value"])) for p in scalar.values]
        return "{" + ", ".join(f"{k if k.startswith(chr(34)) else quote(k)}: {v}" for k, v in pairs) + "}"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_fixed_size_list(type_):
        return "[" + ", ".join(map(json_of, scalar.values)) + "]"
    if pa.types.is_temporal(type_):
        return str(scalar.value)
    value = scalar.as_py()
    if pa.types.is_floating(type_):
        if not math.isfinite(value):
            return "null"
        return str(np.float32(value)) if type_.bit_width < 64 else repr(value)
    if isinstance(value, bytes):
        return quote(value.decode())
    if isinstance(value, uuid.UUID):
        return quote(str(value))
    if pa.types.is_decimal(type_):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)


def quote(string):
    return json.dumps(string, ensure_ascii=False)


def leaf_paths(name, type_, compliant):
    item = "element" if compliant else "item"
    if pa.types.is_struct(type_):
        return [p for i in range(type_.num_fields) for p in leaf_paths(f"{name}.{type_.field(i).name}", type_.field(i).type, compliant)]
    if pa.types.is_map(type_):
        return leaf_paths(f"{name}.key_value.key", type_.key_type, compliant) + leaf_paths(f"{name}.key_value.value", type_.item_type, compliant)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return leaf_paths(f"{name}.list.{item}", type_.value_type, compliant)
    return [(name, type_)]


def encoding_for(rng, type_, decimals_are_integers):
    if isinstance(type_, pa.UuidType) or pa.types.is_fixed_size_binary(type_) or pa.types.is_float16(type_):
        return rng.choice(["PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"])
    if pa.types.is_decimal(type_):
        if decimals_are_integers and type_.precision <= 18:
            return rng.choice(["PLAIN", "DELTA_BINARY_PACKED"])
        return rng.choice(["PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"])
    if pa.types.is_boolean(type_):
        return rng.choice(["PLAIN", "RLE"])
    if pa.types.is_floating(type_):
        return rng.choice(["PLAIN", "BYTE_STREAM_SPLIT"])
    if pa.types.is_integer(type_) or pa.types.is_temporal(type_):
        return rng.choice(["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"])
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_):
        return rng.choice(["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"])
    return "PLAIN"


def write(rng, path, rows=None):
    while not try_write(rng, path, rows):
        pass


def try_write(rng, path, rows):
    """Whether pyarrow could make and read what was drawn."""
    names = [f"c{i}" for i in range(rng.randint(1, 4))]
    columns = [column(rng, rng.randint(0, 3)) for _ in names]
    fields = [pa.field(n, c[0], nullable=rng.random() < 0.7 or has_null_type(c[0])) for n, c in zip(names, columns)]
    rows = rng.choice([0, 1, 7, 100, 1000]) if rows is None else rows
    compliant = rng.random() < 0.7
    int96 = rng.random() < 0.15
    decimals = rng.random() < 0.5
    dictionary = rng.random() < 0.4
    paths = [p for f in fields for p in leaf_paths(f.name, f.type, compliant)]
    options = dict(
        compression={p: rng.choice(CODECS) for p, _ in paths} if rng.random() < 0.5 else rng.choice(CODECS), use_dictionary=dictionary,
        data_page_version=rng.choice(["1.0", "2.0"]), data_page_size=rng.choice([1, 100, 1000, 1 << 20]), write_batch_size=rng.choice([1, 10, 1024]),
        dictionary_pagesize_limit=rng.choice([20, 200, 1 << 20]), write_page_checksum=rng.random() < 0.5, version=rng.choice(["1.0", "2.4", "2.6"]),
        use_compliant_nested_type=compliant, store_schema=rng.random() < 0.5, write_statistics=rng.random() < 0.7, write_page_index=rng.random() < 0.3,
        use_deprecated_int96_timestamps=int96, store_decimal_as_integer=decimals, row_group_size=rng.choice([1, 10, 300, 1 << 20]) if rows < 500 else rng.choice([77, 300, 1 << 20]))
    if not dictionary:
        options["column_encoding"] = {p: "PLAIN" if int96 and pa.types.is_timestamp(t) else encoding_for(rng, t, decimals) for p, t in paths}
    try:
        arrays = [array_of([c[1](f.nullable) for _ in range(rows)], f.type) for f, c in zip(fields, columns)]
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        table.validate(full=True)
        pq.write_table(table, path, **options)
        read = pq.ParquetFile(path).read()
        if read.num_rows != rows:
            raise OSError(f"pyarrow reads {read.num_rows} rows of {rows}")
    except (pa.ArrowException, OSError) as error:
        print(f"{path.name}: drawn again: {str(error)[:120]}", file=sys.stderr)
        return False
    write_rows(read, path.with_suffix(".jsonl"))
    return True


def write_rows(table, path):
    columns = [[json_of(scalar) for scalar in table.column(i)] for i in range(table.num_columns)]
    with open(path, "w", encoding="utf-8", newline="\n") as out:
        for values in zip(*columns):
            out.write("{" + ", ".join(f"{quote(n)}: {v}" for n, v in zip(table.column_names, values)) + "}\n")


def write_chat():
    """A dataset of conversations, as people publish them; every page has its checksum."""
    message = pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())])
    chats = [[{"role": "user", "content": f"What is {i} + {i}?"}, {"role": "assistant", "content": f"It is {2 * i}.\n\"{i}\""}] * (i % 4) for i in range(12)]
    chats[5] = None
    chats[7][1] = {"role": "assistant", "content": None}
    table = pa.table({"id": pa.array(range(12)), "messages": pa.array(chats, pa.list_(message)), "tags": pa.array([["a", "b"], []] * 6, pa.list_(pa.string()))})
    pq.write_table(table, HERE / "chat.parquet", compression="none", row_group_size=5, write_page_checksum=True)
    write_rows(pq.ParquetFile(HERE / "chat.parquet").read(), HERE / "chat.jsonl")


def write_values():
    """Values whose text as JSON is not only their value."""
    from decimal import Decimal as D
    table = pa.table({
        "decimal9": pa.array([D("0.05"), D("-0.05"), D("1234567.89"), D("0.00"), None], pa.decimal128(9, 2)), "decimal38": pa.array([D(10**38 - 1), D(1 - 10**38), D(0), D(7), D(-7)], pa.decimal128(38, 0)),
        "decimal20": pa.array([D("0.00000000000000000001"), D("-0.99999999999999999999"), D(0), None, D("0.5")], pa.decimal128(20, 20)),
        "float": pa.array([0.1, 1.0, -0.0, math.nan, math.inf], pa.float32()), "double": pa.array([0.1, 100.0, 1e-7, math.nan, -math.inf]),
        "half": pa.array([np.float16(x) for x in (0.1, 1, -2.5, 65504, 0)]), "uint64": pa.array([2**64 - 1, 0, 1, 2, 3], pa.uint64()), "int8": pa.array([-128, 127, 0, 1, 2], pa.int8()),
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(i, i + 16)) for i in (0, 100, 240, 1, 2)], pa.binary(16))),
        "when": pa.array([-1, 0, 2**62, None, 10], pa.timestamp("us")), "day": pa.array([-1, 0, 20000, None, 10], pa.date32()),
        "text": pa.array(['"\\/\b\f\n\r\t', "\x00\x01\x1f\x7f", "é漢😀\u2028", "", "plain text of more than eight bytes"]),
        "by number": pa.array([[(1, "a"), (-2, None)], [], None, [(3, "b")], []], pa.map_(pa.int64(), pa.string())),
    })
    pq.write_table(table, HERE / "values.parquet", store_schema=False)
    write_rows(pq.ParquetFile(HERE / "values.parquet").read(), HERE / "values.jsonl")


def main():
    if len(sys.argv) > 2:
        folder, count = pathlib.Path(sys.argv[1]), int(sys.argv[2])
        folder.mkdir(parents=True, exist_ok=True)
        for seed in range(count):
            write(random.Random(seed), folder / f"{seed}.parquet")
        return
    HERE.mkdir(exist_ok=True)
    write_chat()
    write_values()
    for seed in range(12):
        write(random.Random(1000 + seed), HERE / f"random_{seed}.parquet", rows=15)
    print(sum(p.stat().st_size for p in HERE.iterdir()))


main()
