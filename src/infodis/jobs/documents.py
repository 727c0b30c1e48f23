"""Documents in windows: tokenised once into the work directory, then read window by window.

A document is a row of JSONL, CSV or Parquet, or the whole of a text file.
"""

import contextlib
import dataclasses
import json
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infodis.errors import InputError
from infodis.files import atomic_file, atomic_text
from infodis.item import Item
from infodis.jobs.inputs import InputSpec, Refused, Rejected, RowShards
from infodis.jobs.store import encode
from infodis.journal import sealed, unsealed
from infodis.models.model import Model
from infodis.models.text_files import encoded_pieces
from infodis.quantities.perplexity import Spans, Windows, window_item
from infodis.settings import settings_of, uncompared
from infodis.snapshot import Snapshot

TOGETHER = 64
"""Documents read at a time."""

TOKENS, INDEX, IDS, REJECTED, NOTE = "tokens.bin", "documents.bin", "ids.jsonl", "rejected.jsonl", "documents.json"


@dataclasses.dataclass(frozen=True, eq=False)
class Window:
    """A piece of a document, ready to score."""

    id: int | str
    number: int
    item: Item
    bytes: float
    """Its share of the document's bytes, by tokens."""
    line: int
    """Of the document."""

    def kept(self, taken: Container[str]) -> dict[str, Any]:
        """Windows carry nothing of their document along."""
        return {}

    def rejected(self, field: str | None, reason: str) -> Rejected:
        return Rejected(self.line, self.id, field, f"Window {self.number}: {reason}")


@dataclasses.dataclass(frozen=True)
class WindowShards:
    """The windows of all documents, in shards."""

    directory: Path
    windows: Windows
    around: tuple[tuple[int, ...], tuple[int, ...]]
    limit: int | None
    """So many windows only, evenly spread over the corpus."""
    per_shard: int
    digest: str
    noted: Snapshot
    """The files that the documents were written to."""

    @property
    def rows(self) -> int:
        return self._total if self.limit is None else min(self.limit, self._total)

    @property
    def shards(self) -> int:
        return -(-self.rows // self.per_shard)

    def read(self, shard: int) -> "list[Window | Rejected]":
        numbers = range(shard * self.per_shard, min((shard + 1) * self.per_shard, self.rows))
        if self.noted.changed:
            raise InputError(
                f"Tokens in {self.directory} were changed meanwhile. Run the same command again: it makes them anew."
            )
        tokens = np.memmap(self.directory / TOKENS, dtype=np.int32, mode="r")
        found: list[Window | Rejected] = list(_rejected(self.directory)) if shard == 0 else []
        with (self.directory / IDS).open("rb") as ids:
            found += [self._window(self._place(number), tokens, ids) for number in numbers]
        return found

    @property
    def _index(self) -> np.ndarray:
        """For every document: first token, tokens, bytes, line, where its id stands, and first window."""
        return np.memmap(self.directory / INDEX, dtype=np.int64, mode="r").reshape(-1, 6)

    @property
    def _total(self) -> int:
        last = self._index[-1]
        return int(last[5]) + len(self.windows.spans(int(last[1])))

    def _place(self, number: int) -> int:
        """The window's number among all windows."""
        count = self.rows
        return number if count == self._total or count == 1 else number * (self._total - 1) // (count - 1)

    def _window(self, number: int, tokens: np.ndarray, ids: Any) -> Window:
        index = self._index
        document = int(np.searchsorted(index[:, 5], number, side="right")) - 1
        start, count, size, line, place, first = (int(value) for value in index[document])
        spans: Spans = self.windows.spans(count)
        span, context = spans[number - first]
        piece = torch.from_numpy(tokens[start + span.start : start + span.stop].astype(np.int64))
        ids.seek(place)
        item = window_item(piece, context, self.around)
        return Window(json.loads(ids.readline()), number - first, item, size * (len(piece) - context) / count, line)


@dataclasses.dataclass(frozen=True)
class DocumentsSpec:
    """Documents by name, and how they are cut into windows."""

    input: InputSpec
    """`shard_rows` windows make a shard."""
    rolled: Windows
    windows: int | None
    """So many of them only, evenly spread."""
    model: Model = dataclasses.field(metadata=uncompared("the job compares it: here it lends its tokenizer"))

    @property
    def keep(self) -> tuple[str, ...]:
        return ()

    def settings(self) -> dict[str, Any]:
        """Everything that the windows depend on, by name."""
        return settings_of(self)

    def cut(self, work: Path) -> "WindowShards":
        """Tokenise the documents of a file, one after another, unless that was done before."""
        table = dataclasses.replace(self.input, shard_rows=TOGETHER).cut(work)
        words = "" if self.model.files is None else self.model.files.tokenizer.digest
        about = {**self.settings(), "content": table.digest, "tokenizer": words}
        noted = _known(work, about)
        if noted is None:
            (work / NOTE).unlink(missing_ok=True)  # it must not speak of files that are being replaced
            found = _pieces(table, self.model) if table.is_text else _rows(table, self.model)
            if not _tokenise(found, work, self.rolled):
                first = next(_rejected(work), None)
                reason = "" if first is None else f" Line {first.line}: {first.reason}"
                raise InputError(f"{self.input.input} holds no text to score.{reason}")
            table.check_unchanged()
            noted = _noted(work)
            atomic_text(work / NOTE, json.dumps(sealed({**about, "noted": noted.digest})))
        before, behind = self.model.around()
        around = tuple(before), tuple(behind)
        return WindowShards(work, self.rolled, around, self.windows, self.input.shard_rows, table.digest, noted)


def _rejected(directory: Path) -> Iterator[Rejected]:
    with (directory / REJECTED).open("rb") as file:
        for line in file:
            yield Rejected(**json.loads(line))


def _noted(directory: Path) -> Snapshot:
    return Snapshot.of([directory / name for name in (TOKENS, INDEX, IDS, REJECTED)])


def _known(directory: Path, about: dict[str, Any]) -> Snapshot | None:
    """What an earlier run tokenised, if it was of the same thing and is what was written."""
    noted = _noted(directory)
    try:
        known = unsealed(json.loads((directory / NOTE).read_text()))
        return noted if known == {**about, "noted": noted.digest} else None
    except (OSError, ValueError):
        return None


@dataclasses.dataclass(frozen=True, eq=False)
class _Document:
    """A document on its way: pieces of (bytes, tokens)."""

    line: int
    id: int | str
    pieces: Iterable[tuple[int, np.ndarray]]


def _pieces(table: RowShards, model: Model) -> Iterator[_Document]:
    """A text file as one document, piece by piece."""
    yield _Document(
        1, 1, ((len(text.encode()), tokens) for text, tokens in encoded_pieces(table.path, model.tokenizer))
    )


def _rows(table: RowShards, model: Model) -> "Iterator[_Document | Rejected]":
    for shard in range(table.shards):
        for row in table.read(shard):
            if isinstance(row, Rejected):
                yield row
                continue
            try:
                text = row.text()
                if not text:
                    raise Refused("text", "The document is empty.")
                yield _Document(row.line, row.id, [(len(text.encode()), model.encode(text).numpy())])
            except Refused as error:
                yield row.rejected(error.field, str(error))
            except InputError as error:
                yield row.rejected("text", str(error))


def _tokenise(documents: "Iterator[_Document | Rejected]", directory: Path, windows: Windows) -> int:
    """Write all documents one behind the other; how many tokens they have."""
    place = start = first = 0
    with contextlib.ExitStack() as stack:
        names = (TOKENS, INDEX, IDS, REJECTED)
        unfinished = [stack.enter_context(atomic_file(directory / name)) for name in names]
        tokens, index, ids, rejected = (stack.enter_context(path.open("wb")) for path in unfinished)
        for document in documents:
            if isinstance(document, Rejected):
                rejected.write(encode(document.record()))
                continue
            count = size = 0
            for length, piece in document.pieces:
                tokens.write(piece.astype(np.int32).tobytes())
                count, size = count + len(piece), size + length
            if count == 0:
                continue
            index.write(np.array([start, count, size, document.line, place, first], dtype=np.int64).tobytes())
            place += ids.write(json.dumps(document.id).encode() + b"\n")
            start, first = start + count, first + len(windows.spans(count))
    return start
