"""All pictures, by one library: Vega-Lite specifications that pages draw in the browser and `save` draws as files.

    figure = figures.lines({"validation": [(1.0, 4.2), (2.0, 3.9)]}, axes=("epoch", "bits per token"))
    figures.save(figure, Path("figures"))                # lines.svg, lines.png and lines.csv
    figures.save_picture(figure, Path("losses.pdf"))     # .svg, .png or .pdf

A `Figure` is plain data. Charts of plain numbers are made in `charts`, those of results in `results`. Drawing needs
vl-convert-python: pip install 'infodis[report]'.
"""

# ruff: noqa: F401
from infodis.figures.charts import bars, beside, calibration, columns, grid, grouped_bars, histogram, lines, matrix, roc
from infodis.figures.figure import Figure, csv_text, load_vega, png, save, save_picture, svg
from infodis.figures.results import consistency_map, information_curve
