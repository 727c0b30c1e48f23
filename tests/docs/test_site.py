"""The built site: what people search for is found, every public name has its entry, equations can be linked to."""

import inspect
import json
import re
import zlib
from pathlib import Path

import pytest
from sphinx.search.en import SearchEnglish

import infodis
import infodis.testing

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"

SEARCHES = {
    "ELBO": "glossary",
    "NELBO": "tutorials/train",
    "NFE": "glossary",
    "perplexity": "reference/estimates",
    "pseudo-log-likelihood": "tutorials/masked-lm",
    "IWAE": "glossary",
    "importance sampling": "glossary",
    "membership inference": "tutorials/audit",
    "protein": "tutorials/masked-lm",
    "Jupyter": "notebooks",
    "pandas": "notebooks",
    "LLaDA": "tutorials/benchmarks",
    "Dream": "tutorials/benchmarks",
    "get_log_likelihood": "tutorials/benchmarks",
    "error bar": "index",
    "BERT": "tutorials/masked-lm",
    "minimal pairs": "tutorials/minimal-pairs",
    "BLiMP": "tutorials/minimal-pairs",
    "minicons": "glossary",
    "ProteinGym": "tutorials/protein-variants",
    "cite": "cite",
    "DPO": "tutorials/preferences",
    "TRL": "preferences",
}
"""What someone types, and a page that must be among those that hold every word of it."""


@pytest.fixture(scope="module")
def index():
    text = (SITE / "searchindex.js").read_text(encoding="utf-8")
    return json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))


def pages(index, query):
    """The pages that hold every word of a query, as the site's own search has it."""
    language = SearchEnglish({})
    found = None
    for word in re.findall(r"\w+", query.lower()):
        if word in language.stopwords:
            continue
        stem = language.stem(word)
        places = [index[kind].get(stem, []) for kind in ("terms", "titleterms")]
        numbers = {number for one in places for number in (one if isinstance(one, list) else [one])}
        found = numbers if found is None else found & numbers
    return {index["docnames"][number] for number in found or ()}


@pytest.mark.parametrize(("query", "page"), SEARCHES.items())
def test_search_finds_a_page(index, query, page):
    assert page in pages(index, query)


def test_search_does_not_find_everything(index):
    assert pages(index, "zeppelin") == set()
    assert len(pages(index, "protein")) < len(index["docnames"]) / 2


@pytest.fixture(scope="module")
def documented():
    """Names in the site's inventory, which other projects link by."""
    content = (SITE / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ")[0] for line in zlib.decompress(content).decode().splitlines()}


def public_names():
    own = [name for name, one in vars(infodis.testing).items() if _is_public(name, one)]
    return [f"infodis.{name}" for name in infodis.__all__] + [f"infodis.testing.{name}" for name in own]


def _is_public(name, one):
    kind = inspect.isclass(one) or inspect.isfunction(one)
    return kind and one.__module__ == "infodis.testing" and not name.startswith("_")


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_has_an_entry(documented, name):
    assert name in documented


@pytest.mark.parametrize("name", infodis.__all__)
def test_every_public_name_has_an_example(name):
    assert ">>>" in (inspect.getdoc(getattr(infodis, name)) or "")


def test_tags_of_equations_lead_to_equations():
    targets = set(re.findall(r'id="(eq-[\w-]+)"', (SITE / "theory.html").read_text(encoding="utf-8")))
    links = {
        link
        for page in (SITE / "reference").glob("*.html")
        for link in re.findall(r'href="[^"]*theory\.html#(eq-[\w-]+)"', page.read_text(encoding="utf-8"))
    }
    assert len(links) > 10
    assert links <= targets
