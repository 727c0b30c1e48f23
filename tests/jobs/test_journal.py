"""Lines that survive: whole or not there, noticed when changed, added by any number of processes."""

import json
import subprocess
import sys

import pytest

from infodis.errors import InputError
from infodis.journal import Journal, append_lines

HEAD = {"model": "one"}


def entries(path, head=HEAD):
    return list(Journal(path, head).entries())


def test_what_was_added_is_read_in_order(tmp_path):
    journal = Journal(tmp_path / "a.jsonl", HEAD)
    assert journal.read_head() is None
    assert list(journal.entries()) == []
    journal.append({"key": "ä", "value": 1.5}, {"key": "b"})
    journal.append({"key": "c"})
    assert journal.read_head() == HEAD
    assert entries(journal.path) == [{"key": "ä", "value": 1.5}, {"key": "b"}, {"key": "c"}]


@pytest.mark.parametrize("left", range(1, 40))
def test_half_a_line_of_a_killed_process_harms_no_other(tmp_path, left):
    """However much of the last write is there, the first line included."""
    whole = Journal(tmp_path / "whole.jsonl", HEAD)
    whole.append({"key": "a"})
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(whole.path.read_bytes()[:left])
    journal = Journal(torn, HEAD)
    assert [one for one in journal.entries() if one is not None] == []
    journal.append({"key": "b"})
    journal.append({"key": "c"})
    assert journal.read_head() == HEAD
    assert [one for one in journal.entries() if one is not None] == [{"key": "b"}, {"key": "c"}]


def test_any_changed_byte_of_a_line_is_noticed(tmp_path):
    path = tmp_path / "a.jsonl"
    Journal(path).append({"key": "a", "value": 12})
    content = path.read_bytes()
    for place in range(len(content) - 1):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert [one for one in entries(path, None) if one is not None] == [], place


def test_another_head_is_told_and_no_head_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    Journal(path, {"model": "other"}).append({"key": "a"})
    assert Journal(path, HEAD).read_head() == {"model": "other"}
    for content in ("no line end", "not JSON\n"):
        path.write_text(content)
        with pytest.raises(InputError, match="must be a file that infodis wrote"):
            Journal(path, HEAD).read_head()
        assert path.read_text() == content
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match="must be a file that infodis wrote"):
        Journal(tmp_path / "link", HEAD).read_head()
    with pytest.raises(OSError, match="symbolic"):
        append_lines(tmp_path / "link", b"line\n")


def test_several_processes_add_whole_lines(tmp_path):
    code = (
        "import sys; from pathlib import Path; from infodis.journal import Journal;"
        "[Journal(Path(sys.argv[1]), {'model': 'one'}).append({'key': f'{sys.argv[2]}-{n}', 'more': 'x' * 500})"
        " for n in range(100)]"
    )
    path = tmp_path / "a.jsonl"
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), str(number)]) for number in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    found = [one["key"] for one in entries(path) if one is not None]
    assert sorted(found) == sorted(f"{number}-{n}" for number in range(3) for n in range(100))
    assert json.loads(path.read_text().splitlines()[0]) == HEAD
