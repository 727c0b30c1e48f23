"""The project's own rules: imports point one way, no hidden randomness, equations have tags, commands answer."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from jaxtyping import Float, TypeCheckError
from mutations import MUTATIONS
from torch import Tensor
from typecheck import checked

from infodis.design import Tiled
from infodis.oracle import MarkovChain
from infodis.rng import key

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "infodis"
CHAIN = MarkovChain.random(order=1, vocab_size=4)

LAYERS = {
    "": [
        {"errors", "terminal"},
        {"rng", "notebook"},
        {"journal", "device", "settings", "snapshot", "result"},
        {"files"},
        {"blocks"},
        {"item", "predictor", "reveal"},
        {"oracle", "design", "control", "evaluate"},
        {"auto", "sample"},
        {"plan", "noise"},
        {"estimate", "gradients"},
        {"quantities", "testing"},
        {"figures"},
        {"models"},
        {"catalog"},
        {"mutants", "scores"},
        {"pairs"},
        {"sampling"},
        {"train"},
        {"jobs"},
        {"apps"},
        {"cli"},
        {"__main__"},
    ],
    "quantities": [
        {"ratio", "choose", "perplexity", "quantity"},
        {"orders", "influence", "pseudo"},
        {"accuracy", "bounds", "effects"},
        {"consistency"},
        {"information"},
    ],
    "figures": [{"figure"}, {"charts"}, {"results"}],
    "apps/report": [{"values"}, {"page", "pairs", "scores"}],
    "apps/audit": [{"separation"}, {"confounds"}, {"records", "measure"}, {"analysis"}, {"reporting"}],
    "noise": [{"process", "schedule"}, {"gaussian", "design"}, {"sample", "scores"}, {"dse"}],
    "models": [
        {"tokenizers", "nets", "chat"},
        {"options", "text_files", "checkpoint", "clean_texts", "surrogate_file"},
        {"adapters", "hub", "block_rows"},
        {"files"},
        {"model"},
        {"in_memory"},
        {"loading", "doctor", "calibration"},
        {"spec"},
    ],
    "train": [
        {"losses", "objectives", "token_files", "devices", "records", "validation"},
        {"config", "callback"},
        {"optimizers", "tasks"},
        {"preferences"},
        {"loop", "trl"},
        {"display"},
    ],
    "apps": [{"report", "bench", "lm_eval"}, {"audit"}, {"reproduce"}],
    "apps/bench": [
        {"memory", "peers", "problems"},
        {"engine", "experiments", "gradient", "moments"},
        {"figure", "texts"},
        {"throughput"},
    ],
    "apps/lm_eval": [{"arguments", "distributed", "requests"}, {"monte_carlo", "scorer"}, {"generation"}, {"harness"}],
    "apps/reproduce": [
        {"authors", "experiment", "prompts"},
        {"comparison", "data", "theory", "toys", "variance_map", "writing"},
        {"ood_texts", "toy_report", "triplets"},
        {"audit_texts", "dna", "ood", "ratio", "variance_texts"},
        {"audit_llada", "variance"},
        {"catalog"},
    ],
    "cli": [
        {"screen"},
        {"options"},
        {"bench", "calibrate", "doctor", "lm_eval", "models", "report", "reproduce", "running"},
        {"attribute", "audit", "bounds", "curve", "score"},
        {"pairs", "perplexity", "variants"},
    ],
    "jobs": [
        {"inputs", "outputs", "store", "summary"},
        {"documents"},
        {"job"},
        {"attributions", "choices", "comparisons", "pairs", "rolling", "run", "scores", "variants"},
        {"local", "ray"},
    ],
    "jobs/inputs": [
        {"duplicates", "places", "rejected"},
        {"reading"},
        {"entry"},
        {"lines"},
        {"parquet"},
        {"source"},
        {"cutting"},
    ],
    "models/adapters": [
        {"family", "tokenizer", "weights"},
        {"decoder", "transformers_model"},
        {
            "a2d",
            "bd3lm",
            "causal_lm",
            "dream",
            "fast_dllm",
            "gidd",
            "llada",
            "llada2",
            "llada_moe",
            "masked_lm",
            "mdlm",
            "radd_sedd",
            "sdar",
            "udlm_duo",
        },
    ],
    "models/doctor": [
        {"examples", "results"},
        {"precision", "swaps"},
        {"wirings"},
        {"block_checks", "noise_checks"},
        {"checks"},
    ],
    "models/nets": [
        {"products"},
        {"network", "transformer"},
        {"block_network", "experts"},
        {"llama", "radd", "sedd"},
        {"mean"},
    ],
}
"""Rooms from the ground up, and those inside of packages: a file imports only what lies below its own."""

TOGETHER = ({"item", "predictor"},)
"""Files of one layer that may import each other."""


def modules():
    return [p for p in SOURCE.rglob("*.py") if p.name != "__init__.py" or p.parent != SOURCE]


def dotted(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path: Path) -> set[tuple[str, ...]]:
    """The modules below infodis that a file imports, by either spelling."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "infodis":
            package = tuple(node.module.split(".")[1:])
            names = [(*package, alias.name) for alias in node.names if not alias.name.startswith("__")]
            found |= {name if is_module(name) else package for name in names} - {()}
        elif isinstance(node, ast.Import):
            found |= {tuple(a.name.split(".")[1:]) for a in node.names if a.name.startswith("infodis.")}
    return found


def is_module(name: tuple[str, ...]) -> bool:
    path = SOURCE.joinpath(*name)
    return path.is_dir() or path.with_suffix(".py").is_file()


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_downwards(path):
    mine = dotted(path)
    for other in imported(path):
        shared = 0
        while shared < min(len(mine), len(other)) and mine[shared] == other[shared]:
            shared += 1
        if shared in (len(mine), len(other)):
            continue
        layers = LAYERS["/".join(mine[:shared])]
        level = {name: n for n, names in enumerate(layers) for name in names}
        here, there = mine[shared], other[shared]
        together = any({here, there} <= some for some in TOGETHER)
        assert level[there] < level[here] or together, f"{'.'.join(mine)} imports {'.'.join(other)}"


def test_one_room_draws():
    drawing = re.compile(r"^\s*(?:import|from) (?:vl_convert|matplotlib|altair|plotly)", re.MULTILINE)
    assert {dotted(path) for path in modules() if drawing.search(path.read_text())} == {("figures", "figure")}


DRAWS = {"rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_draw_without_a_generator(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            assert name not in {"manual_seed", "seed"} or path.name == "rng.py", f"{path.name}:{node.lineno}"
            if name in DRAWS:
                assert any(k.arg == "generator" for k in node.keywords), f"{path.name}:{node.lineno} {name}"


def test_equation_tags_are_used_and_explained():
    theory = (ROOT / "docs" / "theory.md").read_text()
    explained = set(re.findall(r"\(eq:([\w-]+)\)=|`\[eq:([\w-]+)\]`", theory))
    explained = {a or b for a, b in explained}
    used = {tag for path in modules() for tag in re.findall(r"\[eq:([\w-]+)\]", path.read_text())}
    assert used == explained


def test_import_is_light():
    code = "import infodis, sys; print(sorted({'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_readme_example_runs(capsys):
    """Its numbers are checked by tests/docs, with all other snippets."""
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    assert len([line for line in code.splitlines() if line]) <= 5
    exec(code, {})
    errors = [float(one) for one in re.findall(r"± (\d+\.\d+) nats", capsys.readouterr().out)]
    assert len(errors) == 2
    assert all(0.1 <= one < 5 for one in errors), "the first example shows real error bars"


MOVED = re.findall(r"^\| `(infodis[\w.]+)` \| `(infodis[\w.]+)` \|$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def exists(name):
    """Whether a module, or something in one, has this dotted name."""
    home, _, last = name.rpartition(".")
    try:
        if importlib.util.find_spec(name) is not None:
            return True
    except ModuleNotFoundError:  # of what it lies in
        pass
    try:
        return last in vars(importlib.import_module(home)) and home != "infodis"
    except ModuleNotFoundError:
        return False


def test_the_upgrade_note_leads_to_what_exists():
    assert len(MOVED) > 40
    assert [new for _, new in MOVED if not exists(new)] == []
    assert [old for old, _ in MOVED if exists(old)] == []


WALKS = re.findall(r"## (Add a [\w ]+)\n.*?```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("name", "code"), WALKS, ids=[name for name, _ in WALKS])
def test_walks_of_contributing_run(name, code, capsys):
    assert len(code.splitlines()) <= 30
    exec(code, {"__name__": "walk"})


def test_there_is_a_walk_for_everything_that_is_often_added():
    assert [name for name, _ in WALKS] == ["Add a design", "Add a control", "Add a quantity", "Add a model family"]


def test_no_class_name_has_two_homes():
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_public_names_exist():
    import infodis

    for name in infodis.__all__:
        assert getattr(infodis, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        infodis.nothing  # noqa: B018
    assert "nll" in dir(infodis)


def test_stream_keys_do_not_run_into_each_other():
    assert len({key(1, 23), key(12, 3), key("1", 23), key(b"1", 23), key(123), key(1, 2, 3)}) == 6
    assert key(0, "a") == 4513031048185085819  # fixed for ever: numbers must not change between versions


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Tiled(power="half"), "power"),
        (lambda: CHAIN.surprisal(torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 4, dtype=torch.bool)), "length"),
        (lambda: CHAIN.surprisal(torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)), "tokens"),
        (lambda: checked(wrong_size)(torch.zeros(2, 3)), "wide"),
        (lambda: list(checked(late)(3)), "tokens"),
    ],
    ids=["type", "size", "kind of number", "size of a result", "generator"],
)
def test_types_and_shapes_are_checked_while_tests_run(call, words):
    """Negative control of the import hook."""
    with pytest.raises(TypeCheckError, match=words):
        call()


def wrong_size(tokens: Float[Tensor, "long wide"]) -> Float[Tensor, " wide"]:
    return tokens[:, 0]


def late(tokens: Float[Tensor, " long"]) -> Iterator[int]:
    yield len(tokens)


def test_axes_of_calls_inside_a_call_are_their_own():
    def inner(one: Float[Tensor, " long"], other: Float[Tensor, " long"]) -> Float[Tensor, " long"]:
        return one + other

    def outer(one: Float[Tensor, " long"]) -> Float[Tensor, " long"]:
        checked(inner)(one[:1], one[1:2])
        return one

    assert checked(outer)(torch.zeros(4)).shape == (4,)


def test_mutations_find_their_lines_and_their_tests():
    """Whether the tests notice them takes minutes: `make mutations`."""
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)
    for one in MUTATIONS:
        assert one.found(ROOT) == 1, f"{one.name}: move the mutation with the line that it replaces"
        for file, test in (name.partition("[")[0].split("::") for name in one.tests):
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), f"{one.name}: {test} is not in {file}"


def test_errors_of_the_command_line_are_one_line(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    command = [sys.executable, "-c", "from infodis.cli import main; main()", "bench", "ratio", "--rows", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
