"""Results as one HTML file that opens by double click, and as static figures.

    report = score_report(records, title="texts.jsonl under text8-tiny", provenance=manifest)   # `scores`
    write(report, Path("report.html"))                                                          # `page`
    save(report.figures[0], Path("figures"))                                                    # `figures`

A `Report` (`values`) is plain data. The page and the static files draw its figures from the same specifications, with
the same library (`drawing`; extra `report`).
"""
