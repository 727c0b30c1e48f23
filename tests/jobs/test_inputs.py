"""Rows of inputs of any size: all good ones are read, all bad ones are told, in any cut."""

import csv
import dataclasses
import gzip
import io
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import infodis
from infodis.errors import InputError
from infodis.jobs.inputs import (
    Entry,
    InputSpec,
    Reading,
    Refused,
    Rejected,
    cutting,
    entries,
    field_names,
    is_table,
    lines,
    source,
)
from infodis.jobs.inputs.duplicates import Ids, repeated
from infodis.models.tokenizers import Characters, Subwords

REFERENCES = Path(__file__).parents[1] / "references"


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_disks():
    """Files survive these tests anyway."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("infodis.files.sync", lambda path: None)
        yield


@pytest.fixture(scope="module")
def model():
    return infodis.load("text8-tiny")


def put(directory, name, content) -> Path:
    path = directory / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def cut(path, work, *, rows, limit=None, format=None, fields=None):
    return InputSpec(str(path), rows, limit, format, fields or {}).cut(work)


def read(path, directory, *, rows=100, **options):
    """All rows, after a pass through pickle, as another process would get them."""
    made = pickle.loads(pickle.dumps(cut(path, directory / "work", rows=rows, **options)))
    found = [made.read(shard) for shard in range(made.shards)]
    assert sum(map(len, found)) == made.rows
    assert list(made) == [one for shard in found for one in shard]
    return [one for shard in found for one in shard]


def one_bad(line, directory, name="a.jsonl", before=b'{"text": "first"}\n', after=b'{"text": "last"}\n', **options):
    """What is said about a line between two good ones, which must survive."""
    first, bad, last = read(put(directory, name, before + line + b"\n" + after), directory, **options)
    assert isinstance(first, Entry)
    assert isinstance(last, Entry)
    assert isinstance(bad, Rejected)
    assert json.loads(json.dumps(bad.record(), ensure_ascii=False).encode()) == bad.record()
    assert Rejected(**bad.record()) == bad
    return bad


def reference(content: bytes) -> list[tuple[int, object]]:
    """A plain loop over lines: their number, and what they hold if that is an object."""

    def refuse(constant):
        raise ValueError(constant)

    found = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line.decode(), parse_constant=refuse)
            except (ValueError, RecursionError):
                row = None
            good_id = not isinstance(row, dict) or type(row.get("id", 0)) in (int, str)
            found.append((number, row if isinstance(row, dict) and good_id else None))
    return found


ROWS = [{"text": f"text {n}", "id": f"row {n}", "more": [n, None, {"a": n / 7}]} for n in range(57)]


@pytest.mark.parametrize("rows", [1, 3, 57, 1000])
@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\n\n  \r\n\t\n"])
def test_rows_against_a_plain_loop(tmp_path, rows, ending):
    content = ending.join(json.dumps(row).encode() for row in ROWS)
    for name, mark in (("a.jsonl", b""), ("b.json", b"\xef\xbb\xbf"), ("c.NDJSON", b"\r\n \n")):
        found = read(put(tmp_path, name, mark + content), tmp_path, rows=rows)
        assert [(one.line, one.fields) for one in found] == reference(mark + content)
        assert [one.id for one in found] == [row["id"] for row in ROWS]


def test_ids_are_lines_unless_given(tmp_path):
    content = (
        b'\n{"text": "a"}\n\n{"text": "b", "id": 7}\n{"text": "c", "\\u0069d": "x"}\n{"text": "d", "meta": {"id": [1]}}'
    )
    assert [one.id for one in read(put(tmp_path, "a.jsonl", content), tmp_path)] == [2, 7, "x", 6]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "caf\xe9"}', "Not UTF-8: byte 13 is 0xe9"),
        (b'\xff\xfe{\x00"\x00', "Not UTF-8"),
        (b'{"text": "a"', "Not JSON: Expecting ',' delimiter"),
        (b'{"text": "a', "Not JSON: Unterminated string"),
        (b'{"text": "a"} {"text": "b"}', "something follows at character 13"),
        (b'{"text": "a"},', "something follows"),
        (b"{'text': 'a'}", "Not JSON: Expecting property name"),
        (b"text", "Expecting value at character 0"),
        (b'{"text": "a", "x": NaN}', "NaN is no JSON"),
        (b'{"text": "a", "x": [-Infinity]}', "-Infinity is no JSON"),
        (b'{"text": "a\tb"}', "Invalid control character"),
        (b'{"text": "a\x00b"}', "Invalid control character"),
        (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"x": ' + b"1" * 10_000 + b"}", "too many digits"),
        (b'"text"', "Not an object but a text"),
        (b"null", "Not an object but null"),
        (b"12", "Not an object but a number"),
        (b"true", "Not an object but true or false"),
        (b'[{"text": "a"}]', r"Not an object but a list. .* jq -c '\.\[\]' makes such a file"),
        (b"[", r"Not JSON: Expecting value.* jq -c '\.\[\]'"),
        (b"{", r"Not JSON: .* jq -c '\.'"),
        (b"\xef\xbb\xbf{}", "Not JSON"),
    ],
)
def test_lines_that_are_no_rows(tmp_path, line, reason):
    bad = one_bad(line, tmp_path)
    assert re.search(reason, bad.reason), bad.reason
    assert (bad.line, bad.id, bad.field) == (2, None, None)
    assert len(bad.excerpt) <= 80
    assert bad.excerpt.isprintable()
    assert bad.excerpt[:4] == line.decode("utf-8", "backslashreplace")[:4].replace("\ufeff", r"\ufeff")[:4]


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("null", "it is null"),
        ("true", "it is true or false"),
        ("1.5", "it is a number"),
        ("[1]", "it is a list"),
        ('{"a": 1}', "it is an object"),
        (r'"\ud800"', "half of a surrogate pair"),
        ("[" * 900 + "]" * 900, "it is a list"),
    ],
)
def test_ids_that_are_none(tmp_path, id, words):
    bad = one_bad(f'{{"text": "a", "id": {id}}}'.encode(), tmp_path)
    assert (bad.line, bad.id, bad.field) == (2, None, "id")
    assert words in bad.reason


def test_a_truncated_last_line_is_told(tmp_path):
    *good, bad = read(put(tmp_path, "a.jsonl", b'{"text": "a"}\n{"text": "b"}\n{"text": "c'), tmp_path)
    assert [one.fields["text"] for one in good] == ["a", "b"]
    assert bad == Rejected(3, None, None, "Not JSON: Unterminated string starting at at character 9.", '{"text": "c')


def test_text_is_a_row_a_line(tmp_path):
    content = b"\xef\xbb\xbfone\r\n\n  two \n \t\nthr\x00ee\xe2\x80\xa8\x0b\n\xff\n\xc2\xa0\r\nlast"
    found = read(put(tmp_path, "a.txt", content), tmp_path, rows=2)
    assert [one.line for one in found] == [1, 3, 5, 6, 7, 8]
    texts = [one.fields["text"] for one in found if isinstance(one, Entry)]
    assert texts == ["one", "  two ", "thr\x00ee\u2028\x0b", "\xa0", "last"]
    assert found[3].reason.startswith("Not UTF-8: byte 0 is 0xff")
    assert not is_table(tmp_path / "a.txt")
    assert is_table(tmp_path / "a.txt", "jsonl")


def test_the_format_can_be_named(tmp_path):
    path = put(tmp_path, "rows.txt", '{"text": "a"}\n')
    assert read(path, tmp_path)[0].fields == {"text": '{"text": "a"}'}
    assert read(path, tmp_path, format="jsonl")[0].fields == {"text": "a"}
    with pytest.raises(InputError, match="one of jsonl, csv, tsv, parquet, text; got 'yaml'"):
        cut(path, tmp_path, rows=1, format="yaml")


# --- tables ---------------------------------------------------------------------------------------------------------


TABLE = [
    ["a", "plain"],
    ["b", 'with "quotes", and commas'],
    ["c", "two\nlines\r\nand\n\na blank one"],
    ["d", ""],
    ["", "é"],
]


@pytest.mark.parametrize("rows", [1, 2, 100])
@pytest.mark.parametrize(("name", "dialect"), [("a.csv", "excel"), ("a.tsv", "excel-tab"), ("b.csv", "unix")])
def test_tables_against_the_csv_module(tmp_path, rows, name, dialect):
    for mark in ("", "\ufeff"):
        stream = io.StringIO()
        csv.writer(stream, dialect=dialect).writerows([["id", " text"], *TABLE])
        found = read(put(tmp_path, name, mark + stream.getvalue()), tmp_path, rows=rows)
        assert [one.fields for one in found] == [{"id": id, "text": text} for id, text in TABLE]
        assert [one.line for one in found] == [2, 3, 4, 9, 10]
        assert [one.id for one in found] == ["a", "b", "c", "d", ""]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"only one", "1 columns, the header 2"),
        (b"x,y,z", "3 columns, the header 2"),
        (b"x,\xff", "Not UTF-8"),
        (b'x,"a"b', "quotes of a field do not close, or something stands behind them"),
        (b'x,"a', "quotes of a field do not close"),
        (b"x,a\rb,c", "quotes of a field do not close|columns"),
    ],
)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_broken_records_of_a_table_cost_one_line(tmp_path, line, words, rows):
    bad = one_bad(line, tmp_path, "a.csv", b'id,text\n1,"a\nb"\n', b'2,"it\'s ""fine"""\n', rows=rows)
    assert bad.line == 4
    assert any(one in bad.reason for one in words.split("|"))


def test_an_open_quote_does_not_swallow_a_table(tmp_path):
    content = b'id,text\n0,"open\n' + b"".join(b"%d,text\n" % n for n in range(1, 300))
    for limit in (lines.LONGEST, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lines, "LONGEST", limit)
            bad, *good = read(put(tmp_path, "a.csv", content), tmp_path, rows=7)
        assert bad.line == 2
        assert [one.id for one in good] == [str(n) for n in range(1, 300)]


def test_long_cells_are_read(tmp_path):
    text = "word, " * 100_000
    (found,) = read(put(tmp_path, "a.csv", f'text\n"{text}"\n'), tmp_path)
    assert found.fields == {"text": text}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a;text\n1;b\n", None),
        (b"sentence,label\nx,1\n", None),
        (b"sentence,score\nx,1\n", None),
        (b"text,text\nx,y\n", "a name of its own"),
        (b'"text\nx\n', "names of the columns, in the first row, cannot be read"),
        (b"te\xffxt\nx\n", "cannot be read"),
        (b"text\n\n", "holds no rows"),
        (b"", "holds no rows"),
    ],
)
def test_headers_are_checked(tmp_path, content, words):
    path = put(tmp_path, "a.csv", content)
    if words is None:
        assert cut(path, tmp_path, rows=1).rows == 1
    else:
        with pytest.raises(InputError, match=words.replace(".", r"\.")):
            cut(path, tmp_path, rows=1)
        assert [one.name for one in tmp_path.iterdir()] == ["a.csv"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id;text\n1;a, b\n", {"id": "1", "text": "a, b"}),
        ('\ufeff\n"id";"text"\n1;"a;\nb"\n', {"id": "1", "text": "a;\nb"}),
        ("id\ttext\n1\ta;b\n", {"id": "1", "text": "a;b"}),
        ("note;x,text\n1;2,a;b\n", {"note;x": "1;2", "text": "a;b"}),  # a comma is a comma where it finds a field
        ("sentence;label\na;b\n", {"sentence": "a", "label": "b"}),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_columns_are_separated_by_what_separates_their_names(tmp_path, content, expected, gzipped):
    name, data = ("a.csv.gz", gzip.compress(content.encode())) if gzipped else ("a.csv", content)
    assert [one.fields for one in read(put(tmp_path, name, data), tmp_path)] == [expected]
    again = cut(tmp_path / name, tmp_path, rows=1)  # what was found is known when the cut is found again
    assert again.read(0)[0].fields == expected


def test_wrong_columns_are_told_in_the_same_words(tmp_path, model):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"sentence": ["a"], "score": ["1"]}), tmp_path / "a.parquet")
    put(tmp_path, "a.jsonl", '{"sentence": "a", "score": "1"}\n')
    put(tmp_path, "a.csv", "sentence,score\na,1\n")
    put(tmp_path, "a.tsv", "sentence\tscore\na\t1\n")
    told = {refused(model, read(tmp_path / f"a.{kind}", tmp_path)[0]) for kind in ("jsonl", "csv", "tsv", "parquet")}
    ((field, reason),) = told
    assert field == "text"
    assert reason == (
        "A row needs text, or prompt and response, or tokens, or messages; this one has sentence, score. If text is "
        "called something else, say so: --field text=NAME."
    )


@pytest.mark.parametrize("name", ["rows.xlsx", "rows.XLS", "rows.ods"])
def test_spreadsheets_get_a_clear_word(tmp_path, name):
    with pytest.raises(InputError, match=r"is a spreadsheet\. Save it as CSV"):
        cut(put(tmp_path, name, b"PK"), tmp_path, rows=1)


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {
        "id": [f"row {n}" if n != 5 else None for n in range(100)],
        "text": [f"text {n}" if n != 7 else None for n in range(100)],
        "tokens": [[n, n + 1] if n % 2 else None for n in range(100)],
        "picture": [b"\xff" * 100] * 100,
    }
    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table(columns), path, row_group_size=33)
    for rows in (1, 10, 33, 1000):
        made = cut(path, tmp_path / "work", rows=rows)
        found = [one for shard in random.Random(0).sample(range(made.shards), made.shards) for one in made.read(shard)]
        found.sort(key=lambda one: one.line)
        assert [one.line for one in found] == list(range(1, 101))
        assert [one.id for one in found] == [f"row {n}" if n != 5 else 6 for n in range(100)]
        for n, one in enumerate(found):
            expected = {"id": columns["id"][n], "text": columns["text"][n], "tokens": columns["tokens"][n]}
            assert one.fields == {name: value for name, value in expected.items() if value is not None}
    assert len(read(path, tmp_path, limit=40)) == 40
    assert cut(path, tmp_path / "work", rows=10).digest == cut(path, tmp_path / "work", rows=7).digest


def test_parquet_faults(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    broken = arrow.array([b"good", b"\xff", b"good"]).cast(arrow.binary()).view(arrow.string())
    parquet.write_table(arrow.table({"text": broken, "id": [1, 1, 2.5]}), path)
    parquet.write_table(arrow.table({"text": broken, "id": [1, 2, 1]}), path)
    good, bad, again = read(path, tmp_path)
    assert good.fields == {"text": "good", "id": 1}
    assert (bad.line, again.line) == (2, 3)
    assert "Not UTF-8" in bad.reason
    assert again.reason == "The id was used before, on line 1."
    for name, content, words in (
        ("b.parquet", b"no such thing", "cannot be read as Parquet"),
        ("c.parquet", b"", "cannot be read as Parquet"),
        ("d.parquet", path.read_bytes()[:-10], "cannot be read as Parquet"),
        ("e.parquet.gz", gzip.compress(path.read_bytes()), "must be unpacked first"),
    ):
        with pytest.raises(InputError, match=words):
            cut(put(tmp_path, name, content), tmp_path / "work", rows=1)
    parquet.write_table(arrow.table({"sentence": ["a"]}), path)
    assert read(path, tmp_path, fields={"text": "sentence"})[0].fields == {"sentence": "a"}
    parquet.write_table(arrow.table({"text": arrow.array([], arrow.string())}), path)
    with pytest.raises(InputError, match="holds no rows"):
        cut(path, tmp_path / "work", rows=1)


def test_parquet_without_its_library_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r"pip install 'infodis\[data\]'"):
        cut(put(tmp_path, "a.parquet", b"PAR1"), tmp_path, rows=1)


# --- where inputs come from -------------------------------------------------------------------------------------------


CONTENT = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)


def test_gzip_is_read_like_a_plain_file(tmp_path):
    plain, packed = put(tmp_path, "a.jsonl", CONTENT), put(tmp_path, "a.jsonl.gz", gzip.compress(CONTENT))
    assert read(plain, tmp_path, rows=5) == read(packed, tmp_path, rows=5)
    one, other = (cut(path, tmp_path / path.name.replace(".", ""), rows=5) for path in (plain, packed))
    assert one.digest == other.digest
    table = put(tmp_path, "a.csv.gz", gzip.compress(b'text\n"a\nb"\nc\n'))
    assert [one.fields["text"] for one in read(table, tmp_path)] == ["a\nb", "c"]
    packed.unlink()
    assert list(other) == list(one)  # from the copy


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl.gz", gzip.compress(CONTENT)[:-20], "not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(CONTENT)[:40] + b"????" + gzip.compress(CONTENT)[44:], "not a whole gzip file"),
        ("a.jsonl.gz", CONTENT, "not a whole gzip file"),
        ("a.jsonl", gzip.compress(CONTENT), "packed with gzip: unpack it, or let its name end in .gz"),
        ("a.tar.gz", b"", "must be unpacked first"),
        ("a.jsonl.zst", b"", "must be unpacked first"),
        ("a.jsonl", b"", "holds no rows"),
        ("a.jsonl", b"\xef\xbb\xbf", "holds no rows"),
        ("a.jsonl.gz", b"", "holds no rows"),
        ("a.txt", b"\n \r\n\t", "holds no rows"),
    ],
)
def test_inputs_that_are_none(tmp_path, name, content, words):
    path = put(tmp_path, name, content)
    with pytest.raises(InputError, match=words):
        cut(path, tmp_path / "work", rows=1)
    assert not any((tmp_path / "work").glob("**/*"))


def test_places_that_are_none(tmp_path):
    with pytest.raises(InputError, match="There is no file"):
        cut(tmp_path / "nothing.jsonl", tmp_path, rows=1)
    with pytest.raises(InputError, match="is a directory"):
        cut(tmp_path, tmp_path, rows=1)
    with pytest.raises(InputError, match=r"Not a directory: .*a\.jsonl/b"):
        cut(put(tmp_path, "a.jsonl", CONTENT) / "b", tmp_path, rows=1)
    with pytest.raises(InputError, match="rows must be at least 1"):
        cut(tmp_path / "a.jsonl", tmp_path, rows=0)


@pytest.mark.skipif(os.getuid() == 0, reason="everything can be read by root")
def test_unreadable_files_are_told(tmp_path):
    path = put(tmp_path, "a.jsonl", CONTENT)
    path.chmod(0)
    with pytest.raises(InputError, match="cannot be read: Permission denied"):
        cut(path, tmp_path, rows=1)


class StandardInput:
    def __init__(self, content):
        self.buffer = io.BytesIO(content)


def test_standard_input(tmp_path, monkeypatch):
    def come(content):
        monkeypatch.setattr(sys, "stdin", StandardInput(content))

    come(CONTENT)
    made = cut("-", tmp_path, rows=10)
    assert [one.fields for one in made] == ROWS
    come(b"")  # goes on without the pipe
    assert cut("-", tmp_path, rows=10) == made
    come(CONTENT)
    assert cut("-", tmp_path, rows=10) == made
    come(b'{"text": "other"}\n')  # another one is seen by its hash
    other = cut("-", tmp_path, rows=10)
    assert other.digest != made.digest
    assert [one.fields for one in other] == [{"text": "other"}]
    come(b"text\na\n")
    assert [one.fields for one in cut("-", tmp_path, rows=10, format="csv")] == [{"text": "a"}]
    come(b"")
    with pytest.raises(InputError, match="standard input holds no rows"):
        cut("-", tmp_path / "other", rows=10)


def test_parquet_on_standard_input(tmp_path, monkeypatch):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    content = io.BytesIO()
    parquet.write_table(arrow.table({"text": ["a", "b"]}), content)
    monkeypatch.setattr(sys, "stdin", StandardInput(content.getvalue()))
    assert [one.fields["text"] for one in cut("-", tmp_path, rows=1, format="parquet")] == ["a", "b"]


def test_pipes_are_copied(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[CONTENT])
    writer.start()
    made = cut(pipe, tmp_path / "work", rows=10, format="jsonl")
    writer.join()
    assert [one.fields for one in made] == ROWS
    assert made.digest == cut(put(tmp_path, "a.jsonl", CONTENT), tmp_path / "other", rows=10).digest


# --- cutting ----------------------------------------------------------------------------------------------------------


def test_limit_reads_no_further(tmp_path):
    beginning = b"".join(CONTENT.splitlines(keepends=True)[:20])
    whole, part = put(tmp_path, "a.jsonl", CONTENT), put(tmp_path, "b.jsonl", beginning)
    some = cut(whole, tmp_path / "a", rows=7, limit=20)
    assert (some.rows, some.shards) == (20, 3)
    assert [one.fields for one in some] == ROWS[:20]
    assert some.digest == cut(part, tmp_path / "b", rows=9).digest
    assert some.digest != cut(whole, tmp_path / "c", rows=7).digest
    packed = cut(put(tmp_path, "a.jsonl.gz", gzip.compress(CONTENT)), tmp_path / "d", rows=7, limit=20)
    assert packed.path.read_bytes() == beginning


def test_shards_hold_so_many_rows_and_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(cutting, "SHARD_BYTES", 300)
    content = b"".join(b'{"text": "%s"}\n' % (b"x" * size) for size in (10, 10, 10, 10, 500, 10, 130, 130, 10))
    made = cut(put(tmp_path, "a.jsonl", content), tmp_path, rows=3)
    assert [len(made.read(shard)) for shard in range(made.shards)] == [3, 1, 1, 2, 2]
    with pytest.raises(IndexError, match="5 shards"):
        made.read(5)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_rows_that_are_too_long_are_not_read(tmp_path, monkeypatch, name):
    for module, constant, value in (
        (lines, "LONGEST", 100),
        (source, "LONGEST", 100),
        (cutting, "SHARD_BYTES", 50),
        (lines, "KEPT", 90),
        (source, "KEPT", 90),
    ):
        monkeypatch.setattr(module, constant, value)
    long = b'{"text": "' + b"x" * 200 + b'"}'
    good = b'{"text": "a"}'
    header = b"text\n" if name == "a.csv" else b""
    good = b"a" if name == "a.csv" else good
    for ending in (b"\n", b""):
        content = header + good + b"\n" + long + b"\n" + good + b"\n\n" + b"y" * 101 + ending
        for rows in (1, 2, 10):
            found = read(put(tmp_path, name, content), tmp_path, rows=rows)
            assert [isinstance(one, Entry) for one in found] == [True, False, True, False]
            assert [one.line - (name == "a.csv") for one in found] == [1, 2, 3, 5]
            assert found[1].reason == "The row has 213 bytes, at most 100 are read."
            assert found[1].excerpt == long[:80].decode()


def test_input_that_changes_is_told(tmp_path):
    path = put(tmp_path, "a.jsonl", CONTENT)
    made = cut(path, tmp_path, rows=10)
    written = path.stat().st_mtime_ns
    path.write_bytes(CONTENT.replace(b"text 20", b"TEXT 20"))
    os.utime(path, ns=(0, written))  # as if nothing had happened: the shard's own checksum tells
    assert len(made.read(0)) == 10
    with pytest.raises(InputError, match="was changed after it was cut"):
        made.read(2)
    os.utime(path, ns=(0, written + 1))
    with pytest.raises(InputError, match="was changed after it was cut"):
        made.read(0)
    path.write_bytes(CONTENT[:100])
    with pytest.raises(InputError, match="was changed"):
        made.read(5)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read: No such file"):
        made.read(0)


def parquet_of(path, letter, *, written=None):
    """Two row groups of 20 rows whose texts are of one letter; a file of one letter is as large as that of another."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"id": range(40), "text": [letter * 9] * 40})
    parquet.write_table(table, path, row_group_size=20, compression="none")
    if written is not None:
        os.utime(path, ns=(0, written))
    return path


@pytest.mark.parametrize("seen_by", ["its time", "its footer"])
@pytest.mark.parametrize("shard", [1, 2])  # of the row group that is being read, and of the next one
def test_a_parquet_file_replaced_while_it_is_read_is_told(tmp_path, seen_by, shard):
    path = parquet_of(tmp_path / "a.parquet", "a")
    made = cut(path, tmp_path, rows=10)
    assert {one.fields["text"] for one in made.read(0)} == {"a" * 9}
    before = path.stat()
    other = parquet_of(tmp_path / "b.parquet", "b", written=before.st_mtime_ns + (seen_by == "its time"))
    assert other.stat().st_size == before.st_size
    other.replace(path)
    if (seen_by, shard) == ("its footer", 1):  # the old file is still open: what follows in it is read
        assert {one.fields["text"] for one in made.read(shard)} == {"a" * 9}
        return
    with pytest.raises(InputError, match="was changed after it was cut"):
        made.read(shard)


def test_what_is_noted_about_an_input_must_not_change_while_it_is_read(tmp_path):
    made = cut(put(tmp_path, "a.jsonl", CONTENT), tmp_path, rows=10)
    for name in ("index", "duplicates"):
        noted = tmp_path / "input" / name
        content, written = noted.read_bytes(), noted.stat().st_mtime_ns
        noted.write_bytes(content + b"\x00")
        with pytest.raises(InputError, match="again: it is noted anew"):
            made.read(0)
        noted.write_bytes(content)
        os.utime(noted, ns=(0, written))
        assert len(made.read(0)) == 10


def test_input_that_grows_while_it_is_cut_is_told(tmp_path, monkeypatch):
    path = put(tmp_path, "a.jsonl", CONTENT)
    close = cutting._Shards.close

    def growing(self):
        with path.open("ab") as file:
            file.write(b"{}\n")
        close(self)

    monkeypatch.setattr(cutting._Shards, "close", growing)
    with pytest.raises(InputError, match="was changed while it was read"):
        cut(path, tmp_path / "work", rows=10)


def test_what_is_cut_is_used_again(tmp_path):
    path, work = put(tmp_path, "a.jsonl", CONTENT), tmp_path / "work"
    made = cut(path, work, rows=10)
    index = work / "input" / "index"
    before = index.stat().st_ino, index.stat().st_mtime_ns
    assert cut(path, work, rows=10) == made
    assert (index.stat().st_ino, index.stat().st_mtime_ns) == before
    for options in ({"rows": 5}, {"rows": 10, "limit": 5}, {"rows": 10, "fields": {"id": "other"}}):
        assert cut(path, work, **options) != made
        assert (index.stat().st_ino, index.stat().st_mtime_ns) != before
    assert cut(path, work, rows=10) == made


@pytest.mark.parametrize("change", ["size", "time"])
def test_changed_inputs_are_cut_again(tmp_path, change):
    path, work = put(tmp_path, "a.jsonl", CONTENT), tmp_path / "work"
    made = cut(path, work, rows=10)
    if change == "size":
        path.write_bytes(CONTENT + b"{}\n")
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
    else:
        path.write_bytes(CONTENT.replace(b"text 20", b"TEXT 20"))
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert cut(path, work, rows=10).digest != made.digest


@pytest.mark.parametrize(
    "damage",
    [
        *("about", "no about", "index", "duplicates", "copy", "all", "older form", "unfinished"),
        *("a bit of about.json", "a bit of index", "a bit of duplicates"),
    ],
)
def test_half_of_a_work_directory_is_made_again(tmp_path, damage):
    content = CONTENT + b'{"id": "twice", "text": "a"}\n' * 2
    path, work = put(tmp_path, "a.jsonl.gz", gzip.compress(content)), tmp_path / "work"
    made = cut(path, work, rows=10)
    expected, inside = list(made), work / "input"
    about = (inside / "about.json").read_text()
    if damage == "about":
        (inside / "about.json").write_text(about[:20])
    elif damage == "older form":
        (inside / "about.json").write_text(about.replace('"form": ', '"form": 9'))
    elif damage in ("no about", "duplicates", "copy"):
        (inside / damage.replace("no about", "about.json")).unlink()
    elif damage.startswith("a bit of"):
        damaged = inside / damage.removeprefix("a bit of ")
        bits, written = bytearray(damaged.read_bytes()), damaged.stat().st_mtime_ns
        bits[bits.find(b'"found": ') + 9 if damage.endswith("json") else 0] ^= 1
        damaged.write_bytes(bits)
        os.utime(damaged, ns=(0, written))
    elif damage == "index":
        (inside / "index").write_bytes((inside / "index").read_bytes()[:-8])
    else:
        inside.rename(work / ".input.123.tmp" if damage == "unfinished" else tmp_path / "elsewhere")
    again = cut(path, work, rows=10)
    assert again == made
    assert list(again) == expected


@pytest.mark.slow
def test_killed_while_cutting_leaves_nothing_that_counts(tmp_path):
    """Killed at random moments: what is there after the next cut is what an undisturbed one gives."""
    rows = b"".join(b'{"id": %d, "text": "%d"}\n' % (n % 20_000, n) for n in range(30_000))
    path, work = put(tmp_path, "a.jsonl", rows), tmp_path / "work"
    code = (
        "import os, signal, sys, threading; from pathlib import Path; from infodis.jobs.inputs import InputSpec;"
        "threading.Timer(float(sys.argv[3]), lambda: os.kill(os.getpid(), signal.SIGKILL)).start();"
        "[InputSpec(sys.argv[1], 100 + n).cut(Path(sys.argv[2])) for n in range(1000)]"
    )
    for seconds in ("0.02", "0.3"):
        done = subprocess.run([sys.executable, "-c", code, str(path), str(work), seconds])
        assert done.returncode == -9
    made = cut(path, work, rows=100)
    undisturbed = cut(path, tmp_path / "other", rows=100)
    assert list(made) == list(undisturbed)
    assert sum(isinstance(one, Rejected) for one in made) == 10_000


# --- ids --------------------------------------------------------------------------------------------------------------


def test_ids_used_twice_are_told_across_shards(tmp_path):
    ids = ["a", 1, "1", "b", "a", "é", 1, "a", "c", "\u00e9", 2**70, 2**70]
    content = "".join(json.dumps({"id": id, "text": "x"}) + "\n" for id in ids)
    content += '{"id": "d", "text": \n{"id": "d", "text": "x"}\n{"id": "d", "text": "y"}\n'
    for rows in (1, 2, 100):
        found = read(put(tmp_path, "a.jsonl", content), tmp_path, rows=rows)
        bad = {one.line: one for one in found if isinstance(one, Rejected)}
        assert sorted(bad) == [5, 7, 8, 10, 12, 13, 15]
        firsts = {5: 1, 7: 2, 8: 1, 10: 6, 12: 11, 15: 14}  # line 13 is no JSON: it uses no id
        assert {n: bad[n].reason for n in firsts} == {
            n: f"The id was used before, on line {first}." for n, first in firsts.items()
        }
        assert bad[7] == Rejected(7, 1, "id", "The id was used before, on line 2.", "1")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 30), max_size=200), st.integers(1, 20), st.integers(1, 20), st.integers(1, 50))
def test_repetitions_against_a_dictionary(tmp_path_factory, ids, at_once, most, many):
    """With room for a handful of ids at a time, so that they pass through files, and files through smaller ones."""
    directory = tmp_path_factory.mktemp("ids")
    collected = Ids(directory / "scratch", at_once=at_once, most=most, lines=many)
    first: dict[int, int] = {}
    expected = {}
    for line, id in enumerate(ids, start=5):
        collected.add(id, line)
        if first.setdefault(id, line) != line:
            expected[line] = first[id]
    assert collected.write(directory / "table") == len(expected)
    assert repeated(directory / "table", 0, 1000) == expected
    assert repeated(directory / "table", 10, 20) == {n: f for n, f in expected.items() if 10 <= n <= 20}
    assert not (directory / "scratch").exists()


def test_ids_that_are_never_compared_across_files_would_be_seen(tmp_path, monkeypatch):
    """Negative control: equal ids that came in different batches meet only when the files are sorted."""
    monkeypatch.setattr(Ids, "_sort", lambda self, bucket, depth: None)
    collected = Ids(tmp_path / "scratch", at_once=2)
    for line, id in enumerate("aabcab"):
        collected.add(id, line)
    collected.write(tmp_path / "table")
    assert repeated(tmp_path / "table", 0, 9) == {1: 0}  # and not {1: 0, 4: 0, 5: 2}


# --- anything at all --------------------------------------------------------------------------------------------------

good_rows = st.dictionaries(
    st.text(max_size=5) | st.sampled_from(["text", "id"]),
    st.text(max_size=20) | st.integers() | st.none() | st.lists(st.booleans(), max_size=3),
    max_size=4,
).map(lambda row: json.dumps(row).encode())
bad_lines = st.one_of(
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    st.text(max_size=40).map(lambda line: line.replace("\n", "").encode("utf-8", "surrogatepass")),
    good_rows.flatmap(lambda row: st.integers(0, len(row)).map(lambda end: row[:end])),
    good_rows.flatmap(lambda row: st.binary(max_size=3).map(lambda junk: row + junk.replace(b"\n", b""))),
    st.sampled_from(
        [b"[" * 3000, b'{"a":' * 3000, b'{"text": NaN}', b'{"text": ' + b"9" * 5000 + b"}", b"[]", b"\r", b""]
    ),
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(good_rows | bad_lines, max_size=30),
    st.sampled_from([b"\n", b"\r\n"]),
    st.sampled_from([1, 2, 7, 100]),
    st.sampled_from([b"", b"\xef\xbb\xbf"]),
)
def test_any_lines_against_a_plain_loop(tmp_path_factory, content, ending, rows, mark):
    """No crash, no good row lost, every bad one told with its line, in shards of any size."""
    directory = tmp_path_factory.mktemp("fuzz")
    data = mark + ending.join(content)
    expected = reference(data)
    path = put(directory, "a.jsonl", data)
    if not expected:
        with pytest.raises(InputError, match="holds no rows"):
            cut(path, directory, rows=rows)
        return
    if data.startswith(b"\x1f\x8b"):
        return
    found = read(path, directory, rows=rows)
    assert [one.line for one in found] == [line for line, _ in expected]
    used = set()
    for one, (_, row) in zip(found, expected, strict=True):
        id = None if row is None else row.get("id")
        again = id is not None and (type(id), id) in used
        lone = isinstance(id, str) and any("\ud800" <= c <= "\udfff" for c in id)
        assert isinstance(one, Rejected) == (row is None or again or lone), (one, row)
        if isinstance(one, Entry):
            assert one.fields == row
            assert one.id == (one.line if id is None else id)
        if id is not None and not lone:
            used.add((type(id), id))


cells = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=10)
bad_records = st.sampled_from([b'"a"b,c', b"one", b"1,2,3", b"\xff,1", b'"\xff",1', b',"a""b"c'])


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(cells, cells) | bad_records, max_size=20), st.sampled_from([1, 2, 5, 100]), st.booleans())
def test_any_records_against_the_csv_module(tmp_path_factory, records, rows, gzipped):
    directory = tmp_path_factory.mktemp("fuzz")
    content, expected, line = b"text,more\n", [], 2
    for record in records:
        if isinstance(record, bytes):
            data, row = record + b"\n", None
        else:
            stream = io.StringIO()
            csv.writer(stream, lineterminator="\n").writerow(record)
            data, row = stream.getvalue().encode(), dict(zip(("text", "more"), record, strict=True))
        if data.strip():
            expected.append((line, row))
        content += data
        line += data.count(b"\n")
    path = put(directory, "a.csv.gz", gzip.compress(content)) if gzipped else put(directory, "a.csv", content)
    if not expected:
        with pytest.raises(InputError, match="holds no rows"):
            cut(path, directory, rows=rows)
        return
    found = read(path, directory, rows=rows)
    assert [(one.line, one.fields if isinstance(one, Entry) else None) for one in found] == expected


# --- from rows to models ----------------------------------------------------------------------------------------------


def entry(**fields):
    return Entry(3, 3, fields)


def refused(model, row, reading=Reading(), method="scored"):
    with pytest.raises(Refused) as caught:
        getattr(row, method)(model, reading)
    bad = row.rejected(caught.value.field, str(caught.value))
    json.dumps(bad.record(), ensure_ascii=False).encode()
    return bad.field, bad.reason


def test_texts_and_responses(model):
    alone = entry(text="some text").scored(model)
    assert model.decode(alone.item.tokens) == "some text"
    assert alone.item.target.tolist() == list(range(9))
    assert (alone.bytes, alone.truncated, len(alone.item.context)) == (9, 0, 0)
    after = entry(prompt="the capital ", response="of france").scored(model)
    whole = model.read("of france", prompt="the capital ")
    assert after.item.tokens.tolist() == whole.tokens.tolist()
    assert after.item.target.tolist() == whole.target.tolist() == list(range(12, 21))
    assert after.item.context.tolist() == whole.context.tolist()
    assert after.bytes == 9
    assert entry(text=" ").scored(model).item.target.tolist() == [0]


def test_bytes_are_those_of_utf_8():
    model = infodis.load(REFERENCES / "llada", tokenizer=Characters("ße€ "))
    found = entry(prompt="€€ ", response="ße€").scored(model)
    assert (len(found.item.target), found.bytes) == (3, 6)


def test_rows_of_tokens(model):
    found = entry(tokens=[1, 2, 3, 27, 4], target=[4, 2], context=[0]).scored(model)
    assert found.item.tokens.tolist() == [1, 2, 3, 27, 4]  # the mask where nothing is asked
    assert (found.item.target.tolist(), found.item.context.tolist(), found.bytes) == ([2, 4], [0], None)


def test_tables_hold_lists_as_text(tmp_path, model):
    content = 'tokens,target,context,text\n"[1, 2]",,"[true, false]",\n[1],"",,\n,,,abc\n[],,,\n[1],0,,\n'
    some, whole, text, *bad = read(put(tmp_path, "a.csv", content), tmp_path)
    assert (some.scored(model).item.target.tolist(), some.scored(model).item.context.tolist()) == ([1], [0])
    assert whole.scored(model).item.target.tolist() == [0]
    assert text.scored(model).item.tokens.tolist() == [0, 1, 2]
    assert [refused(model, one)[0] for one in bad] == ["tokens", "target"]
    choices = read(put(tmp_path, "b.csv", 'prompt,choices,answer\na,"[""b"", ""c""]",1\na,b,\n'), tmp_path)
    assert choices[0].choices(model).answer == 1
    assert refused(model, choices[1], method="choices")[0] == "choices"


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({}, "text", "this one has nothing"),
        (
            {"body": "a", "x": 1},
            "text",
            "A row needs text, or prompt and response, or tokens, or messages; this one has body, x.",
        ),
        ({"prompt": "a"}, "text", "A row needs text"),
        ({"text": None}, "text", "must be a text; it is null"),
        ({"text": 5}, "text", "it is a number"),
        ({"text": ["a"]}, "text", "it is a list"),
        ({"prompt": None, "response": "a"}, "prompt", "it is null"),
        ({"prompt": "a", "response": None}, "response", "it is null"),
        ({"text": ""}, "text", "is empty"),
        ({"prompt": "a", "response": ""}, "response", "is empty"),
        ({"text": "a\ud800"}, "text", "not Unicode: half of a surrogate pair at character 1"),
        ({"prompt": "\udfff", "response": "a"}, "prompt", "not Unicode"),
        ({"text": "UPPER"}, "text", "holds 'U' at character 0"),
        ({"prompt": "UPPER ", "response": "a"}, "prompt", "holds 'U' at character 0"),
        ({"prompt": "lower ", "response": "abC"}, "response", "holds 'C' at character 2"),
        ({"text": "a" * 257}, "text", "the row has 257 tokens, at most 256 tokens are taken"),
        ({"prompt": "a" * 200, "response": "a" * 57}, "response", "257 tokens"),
        ({"text": "A" * 100_000}, "text", "100,000 characters, at most 256 tokens"),
        ({"tokens": []}, "tokens", "is empty"),
        ({"tokens": None}, "tokens", "it is null"),
        ({"tokens": "one two"}, "tokens", "must be a list like"),
        ({"tokens": {"a": 1}}, "tokens", "it is an object"),
        ({"tokens": [[1, 2]]}, "tokens", "at position 0 stands a list"),
        ({"tokens": [1, 2.0]}, "tokens", "at position 1 stands a number"),
        ({"tokens": [1, True]}, "tokens", "at position 1 stands true or false"),
        ({"tokens": [1, "2"]}, "tokens", "at position 1 stands a text"),
        ({"tokens": [1, 10**30]}, "tokens", "beyond any vocabulary"),
        ({"tokens": [1, -1]}, "tokens", "Tokens must lie in 0..26, got -1 at position 1"),
        ({"tokens": [28]}, "tokens", "Tokens must lie in 0..26, got 28"),
        ({"tokens": [1, 27]}, "tokens", "hold the mask token 27 at position 1"),
        ({"tokens": [1, 27], "target": [0], "context": [1]}, "tokens", "hold the mask token"),
        ({"tokens": [1, 2], "target": [2]}, "target", "positions must lie in 0..1, got 2"),
        ({"tokens": [1, 2], "target": [-1]}, "target", "positions must lie in"),
        ({"tokens": [1, 2], "target": []}, "target", "target is empty"),
        ({"tokens": [1, 2], "target": [1, 1]}, "target", "names a position twice"),
        ({"tokens": [1, 2], "target": [0.5]}, "target", "flat list of positions"),
        ({"tokens": [1, 2], "target": ["a"]}, "target", "flat list of positions"),
        ({"tokens": [1, 2], "target": 1}, "target", "must be a list of positions; it is a number"),
        ({"tokens": [1, 2], "context": [10**30]}, "context", "flat list of positions"),
        ({"tokens": [1, 2], "context": [0, 1]}, "target", "target is empty"),
        ({"tokens": [1, 2], "context": [0], "target": [0]}, "target", "must be disjoint"),
        ({"tokens": [1] * 300}, "tokens", "300 tokens, at most 256"),
        ({"\ud800\x1b" * 100: 1}, "text", "this one has"),
    ],
)
def test_rows_that_cannot_be_scored(model, fields, field, words):
    found, reason = refused(model, entry(**fields))
    assert found == field
    assert words in reason
    assert reason.isprintable()


def test_documents_are_texts_of_any_length():
    assert entry(text="Any " * 1000, more=1).text() == "Any " * 1000
    for fields in ({}, {"text": None}, {"text": ""}, {"text": "\ud800"}, {"response": "a"}):
        with pytest.raises(Refused) as caught:
            entry(**fields).text()
        assert caught.value.field == "text"


def test_a_line_of_ten_megabytes_is_read_and_told(tmp_path, model):
    content = b'{"text": "' + b"word " * 2_000_000 + b'"}\n{"text": "a"}\n'
    found = read(put(tmp_path, "a.jsonl", content), tmp_path)
    assert len(found[0].fields["text"]) == 10_000_000
    assert refused(model, found[0])[1].startswith("It is too long: the row has 10,000,000 characters")
    cut_off = found[0].scored(model, Reading(truncate="right"))
    assert (cut_off.item.length, cut_off.truncated) == (256, 10_000_000 - 256)


def test_row_names_the_line_and_takes_any_length(model):
    assert entry(text="a" * 300).row(model).length == 300
    with pytest.raises(InputError, match="Line 3, text: The alphabet is"):
        entry(text="?").row(model)


def test_entries_stop_at_a_mistake(tmp_path):
    path = put(tmp_path, "a.jsonl", b'{"text": "a"}\n\n{"text": \n')
    assert [one.fields["text"] for one in entries(path, limit=1)] == ["a"]
    with pytest.raises(InputError, match=r"a\.jsonl, line 3: Not JSON"):
        list(entries(path))
    assert list(entries(put(tmp_path, "b.jsonl", b"\n"))) == []


@pytest.mark.parametrize(
    ("truncate", "fields", "text", "target", "truncated", "size"),
    [
        ("left", {"text": "abcdefgh"}, "defgh", "defgh", 3, None),
        ("right", {"text": "abcdefgh"}, "abcde", "abcde", 3, None),
        ("left", {"prompt": "abcd", "response": "efgh"}, "defgh", "efgh", 3, 4),
        ("right", {"prompt": "abcd", "response": "efgh"}, "abcde", "e", 3, None),
        ("left", {"prompt": "ab", "response": "cdefgh"}, "defgh", "defgh", 3, None),
        ("left", {"tokens": [0, 1, 2, 3, 4, 5, 6, 7], "target": [7, 3, 1], "context": [0, 5]}, "defgh", "dh", 3, None),
        ("right", {"tokens": [0, 1, 2, 3, 4, 5, 6, 7], "target": [7, 3, 1], "context": [0]}, "abcde", "bd", 3, None),
        ("left", {"text": "abcde"}, "abcde", "abcde", 0, 5),
    ],
)
def test_truncation(model, truncate, fields, text, target, truncated, size):
    found = entry(**fields).scored(model, Reading(max_length=5, truncate=truncate))
    assert model.decode(found.item.tokens) == text
    assert model.decode(found.item.tokens[found.item.target]) == target
    assert (found.truncated, found.bytes) == (truncated, size)
    assert not set(found.item.target.tolist()) & set(found.item.context.tolist())


def test_truncation_that_leaves_nothing(model):
    right = Reading(max_length=5, truncate="right")
    field, reason = refused(model, entry(prompt="abcdef", response="gh"), right)
    assert field == "response"
    assert "nothing of the target is left when 3 tokens are cut off" in reason
    assert refused(model, entry(tokens=[1] * 9, target=[0]), Reading(max_length=5, truncate="left"))[0] == "tokens"
    assert refused(model, entry(text="?" + "a" * 9), right)[0] == "text"  # told, though it would be kept or not
    for wrong in ({"truncate": "middle"}, {"max_length": 0}):
        with pytest.raises(InputError, match=r"truncate is left or right|at least 1"):
            Reading(**wrong)


def words(*, around=False):
    """A tokenizer that knows w0 to w35, the mask of the small models, and special tokens if wanted."""
    tokenizers = pytest.importorskip("tokenizers")
    known = {f"w{n}": n for n in range(36)} | {"[MASK]": 36, "[CLS]": 37, "[SEP]": 38}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, unk_token="w0"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(["[MASK]", "[CLS]", "[SEP]"])
    if around:
        made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 38), ("[CLS]", 37))
    return Subwords(made.to_str())


def test_special_tokens_survive_truncation():
    model = infodis.load(REFERENCES / "llada", tokenizer=words(around=True))
    row = entry(prompt="w1 w2 ", response="w3 w4 w5")
    assert row.scored(model).item.tokens.tolist() == [37, 1, 2, 3, 4, 5, 38]
    left = row.scored(model, Reading(max_length=5, truncate="left"))
    assert (left.item.tokens.tolist(), left.item.target.tolist(), left.bytes) == ([37, 3, 4, 5, 38], [1, 2, 3], 8)
    assert left.item.context.tolist() == [0, 4]
    right = row.scored(model, Reading(max_length=5, truncate="right"))
    assert (right.item.tokens.tolist(), right.item.target.tolist()) == ([37, 1, 2, 3, 38], [3])
    for length in (1, 2):
        assert refused(model, row, Reading(max_length=length, truncate="left"))[0] == "response"


def test_models_have_limits(model):
    limited = infodis.load(REFERENCES / "llada", tokenizer=words())
    assert (Reading().longest(limited), Reading().longest(model)) == (32, 256)
    assert Reading(max_length=1000).longest(model) == 1000
    with pytest.raises(InputError, match="takes at most 32 tokens, max_length is 33") as caught:
        entry(text="w1").scored(limited, Reading(max_length=33))
    assert not isinstance(caught.value, Refused)  # the user's mistake, not the row's


def test_the_mask_in_a_text_is_told():
    model = infodis.load(REFERENCES / "llada", tokenizer=words())
    assert refused(model, entry(text="w1 [MASK] w2"))[0] == "text"
    field, reason = refused(model, entry(prompt="w1 [MASK] ", response="w2"))
    assert field == "prompt"
    assert "hold the mask token 36 at position 1" in reason
    field, reason = refused(model, entry(text=" "))
    assert (field, "no tokens" in reason) == ("text", True)


def test_what_no_model_says_is_not_asked():
    """Dream's output is about the next token: its first is only ever context."""
    model = infodis.load(REFERENCES / "dream", tokenizer=words())
    assert model.loaded.begin_token is None  # its configuration names a word
    model = dataclasses.replace(model, loaded=dataclasses.replace(model.loaded, begin_token=37))
    assert refused(model, entry(tokens=[3, 4, 5]))[1].endswith("put others before it.")
    assert entry(tokens=[3, 4, 5], context=[0]).scored(model).item.target.tolist() == [1, 2]
    row = entry(prompt="w3 w4 ", response="w5 w6 w7")
    assert row.scored(model).item.tokens.tolist() == [3, 4, 5, 6, 7]
    cut_off = row.scored(model, Reading(max_length=4, truncate="left"))
    assert (cut_off.item.tokens.tolist(), cut_off.item.target.tolist()) == ([4, 5, 6, 7], [1, 2, 3])
    begun = row.scored(model, Reading(max_length=3, truncate="left"))
    assert (begun.item.tokens.tolist(), begun.item.target.tolist()) == ([37, 6, 7], [1, 2])
    assert (begun.item.context.tolist(), begun.truncated, begun.bytes) == ([0], 3, None)


def test_a_model_without_a_tokenizer_is_not_the_fault_of_rows():
    model = infodis.load(REFERENCES / "llada")
    with pytest.raises(InputError, match="has no tokenizer") as caught:
        entry(text="a").scored(model)
    assert not isinstance(caught.value, Refused)
    assert entry(tokens=[1, 2]).scored(model).item.length == 2
    long = entry(tokens=list(range(9))).scored(model, Reading(max_length=4, truncate="left"))
    assert long.item.tokens.tolist() == [5, 6, 7, 8]
    with pytest.raises(InputError, match=r"tokenizer of .* cannot be loaded"):  # to put a prompt into its template
        entry(text="w1", prompt="w2").scored(infodis.load(REFERENCES / "llada", tokenizer=words()), Reading(chat=True))


def test_pairs(model):
    chosen, rejected = entry(prompt="one two ", chosen="three", rejected="four").pair(model)
    assert model.decode(chosen.item.tokens) == "one two three"
    assert model.decode(rejected.item.tokens) == "one two four"
    assert chosen.item.target.tolist() == list(range(8, 13))
    assert (chosen.bytes, rejected.bytes) == (5, 4)
    tokens = entry(prompt=[1, 2], chosen=[3], rejected=[4, 5]).pair(model)
    assert [one.item.tokens.tolist() for one in tokens] == [[1, 2, 3], [1, 2, 4, 5]]
    assert [one.item.target.tolist() for one in tokens] == [[2], [2, 3]]
    assert [one.bytes for one in tokens] == [None, None]
    assert entry(chosen="a", rejected="b").pair(model)[1].item.target.tolist() == [0]
    for fields, field in (
        ({"chosen": "a"}, "rejected"),
        ({"rejected": "a"}, "chosen"),
        ({"chosen": "a", "rejected": None}, "rejected"),
        ({"chosen": "", "rejected": "a"}, "chosen"),
        ({"prompt": "a", "chosen": [1], "rejected": [2]}, "prompt"),
        ({"prompt": [1], "chosen": [2], "rejected": "a"}, "rejected"),
        ({"prompt": [1], "chosen": [], "rejected": [2]}, "chosen"),
        ({"prompt": [27], "chosen": [1], "rejected": [2]}, "prompt"),
    ):
        assert refused(model, entry(**fields), method="pair")[0] == field


@pytest.mark.parametrize("prompt", ["prompt", "query", "question"])
@pytest.mark.parametrize(
    ("answer", "number"), [(1, 1), ("1", 1), (None, None), ("", None), (0, 0), ("A", 0), (" b ", 1)]
)
def test_choices(model, prompt, answer, number):
    for name in ("answer", "label"):
        found = entry(**{prompt: "one two ", "choices": ["three", "four"], name: answer}).choices(model)
        assert [model.decode(one.item.tokens) for one in found.rows] == ["one two three", "one two four"]
        assert [one.bytes for one in found.rows] == [5, 4]
        assert found.answer == number


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"prompt": "a"}, "choices", "A row needs choices"),
        ({"choices": "a"}, "choices", "must be a list"),
        ({"choices": {"a": 1}}, "choices", "it is an object"),
        ({"choices": ["a"]}, "choices", "at least 2"),
        ({"choices": ["a", None]}, "choices", "Choice 1 must be a text; it is null"),
        ({"choices": ["a", ""]}, "choices", "is empty"),
        ({"choices": ["a", "B"]}, "choices", "holds 'B'"),
        ({"choices": ["a", "b"], "answer": 2}, "answer", "from 0 to 1"),
        ({"choices": ["a", "b"], "answer": -1}, "answer", "from 0 to 1"),
        ({"choices": ["a", "b"], "label": "C"}, "label", 'from 0 to 1, or its letter, from A to B; it is "C".'),
        ({"choices": ["a", "b"], "label": "AB"}, "label", 'it is "AB"'),
        ({"choices": ["a", "b"], "label": "9" * 5000}, "label", "from 0 to 1"),
        ({"choices": ["a", "b"], "label": [0]}, "label", "it is a list"),
        ({"choices": ["a", "b"], "answer": True}, "answer", "from 0 to 1"),
        ({"choices": ["a", "b"], "question": 1}, "question", "must be a text"),
    ],
)
def test_choices_that_are_none(model, fields, field, words):
    found, reason = refused(model, entry(**fields), method="choices")
    assert found == field
    assert words in reason


@pytest.fixture(scope="module")
def instruct(tmp_path_factory):
    """A model with a chat template, of a few words."""
    tokenizers, directory = pytest.importorskip("tokenizers"), tmp_path_factory.mktemp("models") / "instruct"
    pytest.importorskip("transformers")
    shutil.copytree(REFERENCES / "llada", directory)
    words = {"[UNK]": 0, "<system>": 1, "<user>": 2, "<assistant>": 3, "hi": 4, "there": 5, "bye": 6}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.save(str(directory / "tokenizer.json"))
    template = "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    settings["chat_template"] = template + "{% if add_generation_prompt %}<assistant> {% endif %}"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return infodis.load(directory)


def said(*messages):
    return [{"role": role, "content": content} for role, content in messages]


@pytest.mark.filterwarnings("ignore")
def test_the_last_message_is_scored_after_the_others(instruct, model, tmp_path):
    talk = said(("system", "hi"), ("user", "there"), ("assistant", "hi"), ("user", "bye"), ("assistant", "bye there"))
    row = entry(prompt="not read", messages=talk)
    found = row.scored(instruct)
    assert found.item.tokens.tolist() == [1, 4, 2, 5, 3, 4, 2, 6, 3, 6, 5]
    assert (found.item.target.tolist(), found.bytes) == ([9, 10], len("bye there"))
    assert row.texts() == ("system: hi\n\nuser: there\n\nassistant: hi\n\nuser: bye", "bye there")
    short = entry(messages=said(("user", "hi"), ("assistant", "there"))).scored(instruct).item
    assert (
        short.tokens.tolist()
        == entry(prompt="hi", response="there").scored(instruct, Reading(chat=True)).item.tokens.tolist()
    )
    cell = json.dumps(talk).replace('"', '""')
    (same,) = read(put(tmp_path, "a.csv", f'messages\n"{cell}"\n'), tmp_path)
    assert same.scored(instruct).item.tokens.tolist() == found.item.tokens.tolist()
    assert entry(text="there", messages=talk).scored(instruct).item.tokens.tolist() == [5]
    with pytest.raises(InputError, match=r"text8-tiny has none that works\. Take an instruct model, or give"):
        row.scored(model)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "must be a list of messages; it is empty"),
        ({"role": "user"}, "it is an object"),
        (["hi"], "Message 0 must be an object with a role and a content, both texts; it is hi"),
        (said(("user", "hi"), ("assistant", None)), "Message 1 must be"),
        (said(("user", "hi")), "There are 1, the last with the role 'user'"),
        (said(("assistant", "hi")), "at least two messages"),
        (said(("user", "hi"), ("assistant", "")), "is empty"),
        (said(("user", "\ud800"), ("assistant", "hi")), "not Unicode"),
        ("[1, 2", "must be a list"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_conversations_that_are_none(instruct, messages, words):
    field, reason = refused(instruct, entry(messages=messages))
    assert field == "messages"
    assert words in reason


def test_fields_may_have_other_names(tmp_path, model):
    names = field_names(["text=sentence", "id=the key"])
    rows = '{"sentence": "a", "the key": "x", "id": null}\n{"text": "b"}\n{"sentence": "c", "the key": "x"}\n'
    good, lacking, again = read(put(tmp_path, "a.jsonl", rows), tmp_path, fields=names)
    assert (good.id, good.scored(model).item.tokens.tolist()) == ("x", [0])
    assert refused(model, lacking) == (
        "sentence",
        "A row needs text, or prompt and response, or tokens, or messages; this one has text. Here text is called "
        "sentence.",
    )
    assert (again.field, again.id) == ("the key", "x")
    table = put(tmp_path, "a.csv", "the key,sentence\nx,a\n")
    assert read(table, tmp_path, fields=names)[0].id == "x"
    for wrong in (["text"], ["text="], ["nonsense=a"], ["text=a", "text=b"]):
        with pytest.raises(InputError, match=r"A field is named like|named twice"):
            field_names(wrong)


def test_rejected_rows_are_safe_to_print():
    bad = Rejected(1, None, "\x1b[2J", "\u202e" + "x" * 1000, "\ud800\x00<script>" * 50)
    assert all(part.isprintable() for part in (bad.field, bad.reason, bad.excerpt))
    assert (len(bad.reason), len(bad.excerpt)) == (400, 80)
    assert bad.excerpt.startswith(r"\ud800\x00<script>")


# --- sizes ------------------------------------------------------------------------------------------------------------

MEASURE = """
import resource, sys
from pathlib import Path
from infodis.jobs.inputs import InputSpec
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = InputSpec(sys.argv[1], 256).cut(Path(sys.argv[2]))
good = sum(hasattr(one, "fields") for one in made)
print(good, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def taken(path, work) -> tuple[int, float]:
    """Good rows, and how many MB cutting and reading took at most, beyond what the program takes by itself."""
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path), str(work)], capture_output=True, check=True)
    good, kilobytes = done.stdout.split()
    return int(good), int(kilobytes) / 1024


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_memory_does_not_grow_with_rows(tmp_path, name):
    memory = []
    for count in (10_000, 300_000):
        with (tmp_path / name).open("w") as file:
            file.write("" if name == "a.jsonl" else "id,text\n")
            for n in range(count):
                id = f"row {n if n % 3 else 0}"
                file.write(
                    json.dumps({"id": id, "text": "x" * 60}) + "\n" if name == "a.jsonl" else f"{id},{'x' * 60}\n"
                )
        good, megabytes = taken(tmp_path / name, tmp_path / str(count))
        assert good == count - (count + 2) // 3 + 1
        memory.append(megabytes)
    assert memory[1] < memory[0] + 25


@pytest.mark.slow
def test_a_line_of_a_gigabyte_is_not_read_into_memory(tmp_path):
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b'{"text": "a"}\n')
        file.seek(2**30)  # a hole of zeros
        file.write(b'\n{"text": "b"}\n')
    good, megabytes = taken(path, tmp_path / "work")
    assert good == 2
    assert megabytes < 300
