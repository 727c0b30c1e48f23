"""Results as one HTML file that opens by double click.

    report = score_report(records, title="texts.jsonl under text8-tiny", provenance=manifest)   # `scores`
    write(report, Path("report.html"))                                                          # `page`

A `Report` (`values`) is plain data. Its figures are those of `infodis.figures` (extra `report`).
"""
