"""Files of any size: shards, parts that are whole or absent, resume, and who does the work.

    run(RunPlan(out, job, InputSpec("rows.jsonl", shard_rows=256), InProcess()))

A **job** says what is done with a row (`scores`, `comparisons`, `choices`, `rolling`); an **input** is cut
into shards; an **executor** (`local`, `ray`) has them done; a **store** keeps what is done.
"""
