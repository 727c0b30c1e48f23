"""Files of any size: shards, parts that are whole or absent, resume, and who does the work.

    plan = Plan(out, job, cut, settings, about, executor)
    run(plan)

A **job** says what is done with a row (`scores`, `comparisons`, `choices`, `rolling`); a **source** gives rows in
shards; an **executor** (`local`, `ray`) has them done; a **store** keeps what is done.
"""
