"""Sphinx: Markdown pages, nothing generated."""

project = "infodis"
extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
html_theme = "furo"
html_title = "infodis"
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing"]
