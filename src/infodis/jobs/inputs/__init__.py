"""Rows to score, from inputs of any size: texts, prompts with responses, tokens, pairs, or choices.

An input is a file of JSON objects, one a line (.jsonl, .json, .ndjson), a table (.csv, .tsv, .parquet), or text, where
every line that is not blank is a row; all but Parquet may be packed (.gz). `-` is standard input.

    shards = InputSpec("rows.jsonl", shard_rows=1000).cut(work)
    for row in shards.read(0):                       # Entry or Rejected
        row.scored(model, Reading(truncate="left"))  # raises Refused, which names the field at fault

Nothing here grows with the input: shards are found by an index on disk, ids that are used twice by sorting on disk.
"""

from infodis.jobs.inputs.cutting import Empty, InputSpec, entries
from infodis.jobs.inputs.entry import Choices, Entry
from infodis.jobs.inputs.places import is_table
from infodis.jobs.inputs.reading import Reading, Scored, field_names
from infodis.jobs.inputs.rejected import Refused, Rejected
from infodis.jobs.inputs.source import RowShards

__all__ = [
    "Choices",
    "Empty",
    "Entry",
    "InputSpec",
    "Reading",
    "Refused",
    "Rejected",
    "RowShards",
    "Scored",
    "entries",
    "field_names",
    "is_table",
]
