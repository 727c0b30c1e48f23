"""Tokenizers and token files."""

import gzip
import json

import numpy as np
import pytest
import torch

from infodis.errors import InputError
from infodis.files import UNFINISHED
from infodis.models import text_files
from infodis.models.text_files import encode_file
from infodis.models.tokenizers import Characters, Subwords, tokenizer_from, tokenizer_named
from infodis.rng import stream
from infodis.train.token_files import open_tokens

TEXT8 = tokenizer_named("text8")


def test_characters_round_trip():
    tokens = TEXT8.encode("the cat")
    assert TEXT8.decode(tokens.tolist()) == "the cat"
    assert TEXT8.vocab_size == 27
    assert tokenizer_from(TEXT8.describe()) == TEXT8
    assert tokenizer_named("characters:xyzä").encode("äx").tolist() == [3, 0]


def test_unknown_characters_are_told():
    with pytest.raises(InputError, match=r"'T' at character 0 \(2 such"):
        TEXT8.encode("The End")
    with pytest.raises(InputError, match="each character once"):
        Characters("aa")
    with pytest.raises(InputError, match="text8, dna, characters"):
        tokenizer_named("no-such-file.json")
    with pytest.raises(InputError, match="of kind characters or subwords"):
        tokenizer_from({"kind": "pickle"})


def subwords() -> Subwords:
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "cat": 1, "[UNK]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return Subwords(made.to_str())


def test_hugging_face_tokenizers(tmp_path):
    made = subwords()
    assert made.encode("the cat sat").tolist() == [0, 1, 2]
    assert made.pieces([1, 0]) == ["cat", "the"]
    assert tokenizer_from(json.loads(json.dumps(made.describe()))) == made
    (tmp_path / "tokenizer.json").write_text(made.definition)
    assert tokenizer_named("tokenizer.json", base=tmp_path) == made


def test_a_tokenizer_file_neither_cuts_nor_pads():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer.from_str(subwords().definition)
    made.enable_truncation(2)
    made.enable_padding(length=6, pad_id=2)
    assert Subwords(made.to_str()).encode("the cat the cat").tolist() == [0, 1, 0, 1]


def test_numbers_of_tokens_may_have_gaps():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"the": 0, "cat": 41, "[UNK]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    assert Subwords(made.to_str()).vocab_size == 42


def test_line_ends_belong_to_the_file(tmp_path, monkeypatch):
    """Without a line end in the alphabet they become a space, or nothing; wherever a piece happens to end."""
    source = tmp_path / "lines.txt"
    source.write_text("one two\n\nthree\nfour \n\n")
    for piece in (1, 3, 5, 8, 100):
        monkeypatch.setattr(text_files, "PIECE", piece)
        assert TEXT8.decode(encode_file(source, TEXT8).tolist()) == "one two three four "
    source.write_text("AC\nGT\n")
    assert encode_file(source, Characters("ACGT")).tolist() == [0, 1, 2, 3]
    assert encode_file(source, Characters("ACGT\n")).tolist() == [0, 1, 4, 2, 3, 4]


def test_a_damaged_cache_is_made_again(tmp_path):
    source, cache = tmp_path / "a.txt", tmp_path / "c.tokens"
    source.write_text("some words to count")
    whole = open_tokens(source, TEXT8, cache=cache, length=4).tokens.tolist()
    for damage in (lambda: cache.write_bytes(b"12"), lambda: cache.with_suffix(".json").write_text("{")):
        damage()
        assert open_tokens(source, TEXT8, cache=cache, length=4).tokens.tolist() == whole
    assert not list(tmp_path.glob(f"{UNFINISHED}*"))


def test_text_is_tokenised_piece_by_piece_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PIECE", 7)
    text = "one two three four five\nsix seven"
    source = tmp_path / "a.txt"
    source.write_text(text)
    found = open_tokens(source, TEXT8, cache=tmp_path / "c.tokens", length=4)
    assert TEXT8.decode(found.tokens.tolist()) == text.replace("\n", " ")
    assert isinstance(found.tokens, np.memmap)
    before = (tmp_path / "c.tokens").stat().st_mtime_ns
    open_tokens(source, TEXT8, cache=tmp_path / "c.tokens", length=4)
    assert (tmp_path / "c.tokens").stat().st_mtime_ns == before
    source.write_text("other words")
    assert len(open_tokens(source, TEXT8, cache=tmp_path / "c.tokens", length=4)) == 11


def test_gzip_jsonl_and_npy(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"body": "ab"}\n\n{"body": "c"}\n')
    assert TEXT8.decode(encode_file(tmp_path / "a.jsonl.gz", TEXT8, "body").tolist()) == "ab c"
    np.save(tmp_path / "t.npy", np.arange(20, dtype=np.uint8))
    found = open_tokens(tmp_path / "t.npy", TEXT8, cache=tmp_path / "x", length=5)
    assert found.spread(10, 5).tolist() == np.arange(20).reshape(4, 5).tolist()
    aligned = found.random(50, 5, aligned=True, generator=stream(0))
    assert set(aligned[:, 0].tolist()) == {0, 5, 10, 15}
    free = found.random(200, 5, aligned=False, generator=stream(0))
    assert set(free[:, 0].tolist()) == set(range(16))
    assert torch.equal(free - free[:, :1], torch.arange(5).expand(200, -1))


def test_bad_files_are_told(tmp_path):
    def opened(name, length=4):
        return open_tokens(tmp_path / name, TEXT8, cache=tmp_path / "cache.tokens", length=length)

    with pytest.raises(InputError, match="no data file"):
        opened("none.txt")
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(InputError, match="3 tokens, fewer than one window of 4"):
        opened("short.txt")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="holds no text"):
        opened("empty.txt")
    (tmp_path / "bad.jsonl").write_text('{"text": "abcdef"}\n{"txt": 1}\n')
    with pytest.raises(InputError, match="line 2: expected an object with a text field 'text'"):
        opened("bad.jsonl")
    (tmp_path / "worse.jsonl").write_text("{")
    with pytest.raises(InputError, match="line 1: not JSON"):
        opened("worse.jsonl")
    np.save(tmp_path / "big.npy", np.array([1, 2, 99, 3]))
    with pytest.raises(InputError, match=r"token 99 or 1; the vocabulary is 0\.\.26"):
        opened("big.npy")
    np.save(tmp_path / "real.npy", np.array([0.5]))
    with pytest.raises(InputError, match="whole numbers"):
        opened("real.npy")
    (tmp_path / "latin.txt").write_bytes("caf\u00e9".encode("latin-1"))
    with pytest.raises(InputError, match=r"latin\.txt is not UTF-8"):
        opened("latin.txt")
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"some text")[:-4])
    with pytest.raises(InputError, match="not a whole gzip file"):
        opened("cut.txt.gz")
    (tmp_path / "plain.txt.gz").write_text("some text")
    with pytest.raises(InputError, match="not a whole gzip file"):
        opened("plain.txt.gz")
    for content in (b"", b"not numpy", b"\x93NUMPY\x01\x00"):
        (tmp_path / "bad.npy").write_bytes(content)
        with pytest.raises(InputError, match=r"not an \.npy file"):
            opened("bad.npy")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json: This is not a tokenizer\.json"):
        tokenizer_named("tokenizer.json", base=tmp_path)


def test_an_unknown_character_is_told_with_its_file_and_place(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "PIECE", 5)
    (tmp_path / "a.txt").write_text("abc def gXi")
    with pytest.raises(InputError, match=r"a\.txt, after 8 characters: .* holds 'X' at character 1"):
        encode_file(tmp_path / "a.txt", TEXT8)
    (tmp_path / "a.jsonl").write_text('{"text": "ab"}\n{"text": "aB"}\n')
    with pytest.raises(InputError, match=r"a\.jsonl, line 2: .* holds 'B'"):
        encode_file(tmp_path / "a.jsonl", TEXT8)
