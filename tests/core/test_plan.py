"""Plans of masks: the same for a sequence, a seed and a step, whoever draws them; replayed as they were saved."""

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from laws import ALL_DESIGNS
from safetensors.torch import load_file, save_file

import infodis
from infodis.blocks import BlockLayout
from infodis.design import Dealt, Enumerate, Orders, Pairs, PowerCount, Tiled
from infodis.errors import InputError
from infodis.item import Item
from infodis.oracle import MarkovChain
from infodis.plan import MaskPlan, draw_plan
from infodis.testing import Blockwise

CHAIN = MarkovChain.random(order=1, vocab_size=4, seed=3)
ROWS = [[0, 1, 2, 3, 0], [3, 2, 1], [1, 1, 2, 2, 3, 3, 0]]


def draws_of(plan: MaskPlan, sequence: int) -> tuple[torch.Tensor, torch.Tensor]:
    mine = plan.sequence == sequence
    length = plan.items[sequence].length
    return plan.masked[mine, :length], plan.weight[mine, :length]


@pytest.mark.parametrize("replicates", [1, 2])
def test_a_sequence_meets_the_same_masks_in_any_batch(replicates):
    """So a batch may be dealt to any number of processes."""
    whole = draw_plan(CHAIN, ROWS, evaluations=8, seed=5, step=7, replicates=replicates)
    for number, row in enumerate(ROWS):
        alone = draw_plan(CHAIN, [row], evaluations=8, seed=5, step=7, replicates=replicates)
        for one, other in zip(draws_of(whole, number), draws_of(alone, 0), strict=True):
            assert torch.equal(one, other)
    assert whole.fingerprint == draw_plan(CHAIN, ROWS, evaluations=8, seed=5, step=7, replicates=replicates).fingerprint


def test_seed_step_and_replicate_each_change_the_masks():
    row = [list(range(4)) * 5]
    plans = [draw_plan(CHAIN, row, evaluations=8, seed=s, step=t) for s, t in ((0, 0), (1, 0), (0, 1), (1, 1))]
    assert len({plan.fingerprint for plan in plans}) == 4
    assert len({plan.masked.numpy().tobytes() for plan in plans}) == 4
    two = draw_plan(CHAIN, row, evaluations=16, replicates=2)
    assert not torch.equal(two.masked[two.replicate == 0], two.masked[two.replicate == 1])
    assert torch.equal(two.masked[two.replicate == 0], plans[0].masked)


def test_processes_that_share_a_batch_draw_its_plan(tmp_path):
    """Another process with some of the rows, and this one with all of them."""
    draw = "import sys, infodis; from infodis.oracle import MarkovChain; rows, path = eval(sys.argv[1]), sys.argv[2];"
    draw += "chain = MarkovChain.random(order=1, vocab_size=4, seed=3);"
    draw += "infodis.draw_plan(chain, rows, evaluations=4, seed=5, step=7).save(path)"
    path = tmp_path / "plan.safetensors"
    subprocess.run([sys.executable, "-c", draw, repr([ROWS[0], ROWS[2]]), str(path)], check=True)
    whole, part = draw_plan(CHAIN, ROWS, evaluations=4, seed=5, step=7), MaskPlan.load(path)
    for number, its in ((0, 0), (2, 1)):
        for one, other in zip(draws_of(whole, number), draws_of(part, its), strict=True):
            assert torch.equal(one, other)


def test_the_default_takes_all_masks_where_they_are_few():
    """One of a target of two tokens is exact with three passes, a longer one is dealt."""
    plan = draw_plan(CHAIN, [[0, 1], [0, 1, 2]], evaluations=4)
    assert plan.settings.design == repr(Dealt())
    everything = draw_plan(CHAIN, [[0, 1]], evaluations=4, design=Enumerate())
    for one, other in zip(draws_of(plan, 0), draws_of(everything, 0), strict=True):
        assert torch.equal(one, other)
    dealt = draw_plan(CHAIN, [[0, 1, 2]], evaluations=4, design=Dealt())
    assert torch.equal(draws_of(plan, 1)[1], draws_of(dealt, 0)[1])
    assert float(infodis.log_likelihood(CHAIN, plan)[0]) == pytest.approx(CHAIN.log_prob([0, 1]), rel=1e-6)


@pytest.mark.parametrize("design", ALL_DESIGNS, ids=repr)
def test_a_saved_plan_is_the_one_that_was_drawn(design, tmp_path):
    plan = draw_plan(CHAIN, ROWS, evaluations=127, design=design, step=2)
    plan.save(tmp_path / "plan.safetensors")
    again = MaskPlan.load(tmp_path / "plan.safetensors")
    assert again.fingerprint == plan.fingerprint
    assert again.settings == plan.settings
    for one, other in zip(plan.tensors(), again.tensors(), strict=True):
        assert torch.equal(one, other)
    assert [item.key for item in again.items] == [item.key for item in plan.items]


@pytest.mark.parametrize("name", ["tokens", "weight", "masked", "role", "step"])
def test_a_plan_that_was_changed_is_told(name, tmp_path):
    plan, path = draw_plan(CHAIN, ROWS, evaluations=4), tmp_path / "plan.safetensors"
    plan.save(path)
    state, settings = load_file(path), dataclasses.asdict(plan.settings)
    if name == "step":
        settings["step"] = 9
    else:
        state[name][0, 0] = {"tokens": 3, "weight": 0.25, "masked": not state["masked"][0, 0], "role": 1}[name]
    save_file(state, path, metadata={"settings": json.dumps(settings), "fingerprint": plan.fingerprint})
    with pytest.raises(InputError, match="fingerprint that it was saved with"):
        MaskPlan.load(path)


def test_what_is_no_plan_is_told(tmp_path):
    path = tmp_path / "plan.safetensors"
    with pytest.raises(InputError, match=r"a file that MaskPlan\.save wrote"):
        MaskPlan.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"a file that MaskPlan\.save wrote"):
        MaskPlan.load(path)
    save_file({"tokens": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"a file that MaskPlan\.save wrote"):
        MaskPlan.load(path)


def test_the_budget_is_kept_and_equal_masks_share_a_pass():
    for design in ALL_DESIGNS:
        budget = 127 if isinstance(design, Enumerate) else 16
        plan = draw_plan(CHAIN, ROWS, evaluations=budget, design=design)
        assert max(len(plan.masked[plan.sequence == n].unique(dim=0)) for n in range(3)) <= budget
        assert plan.evaluations <= 3 * budget
    plan = draw_plan(CHAIN, [[0, 1]], evaluations=12, design=Tiled())
    assert plan.evaluations == 3  # there are no more masks
    first, number = plan.distinct
    assert torch.equal(plan.masked[first][number], plan.masked)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"evaluations": 3, "replicates": 2}, "multiple of its replicates"),
        ({"evaluations": 0}, "multiple of its replicates"),
        ({"design": Pairs(), "evaluations": 1}, "Pairs needs 2 forward passes; the budget is 1"),
        ({"design": Orders(), "evaluations": 4}, "needs 5 forward passes; the budget is 4"),
        ({"design": Enumerate(), "evaluations": 30}, "takes 31 forward passes"),
    ],
)
def test_budgets_that_buy_nothing_are_told(options, message):
    with pytest.raises(InputError, match=message):
        draw_plan(CHAIN, [[0, 1, 2, 3, 0]], **options)


def test_rows_of_all_kinds_are_read():
    model = infodis.load("text8-tiny")
    prompt, response = "the capital is ", "paris"
    wanted = model.read(response, prompt=prompt)
    ids = (model.encode(prompt), model.encode(response).tolist())
    for row in ((prompt, response), [prompt, response], wanted, ids):
        assert draw_plan(model, [row]).items[0].key == wanted.key
    assert draw_plan(model, "paris").items[0].key == draw_plan(model, ["paris"]).items[0].key
    assert len(draw_plan(model, torch.tensor([[1, 2, 3], [3, 2, 1]]))) == 2
    with pytest.raises(InputError, match="both be texts or both token ids"):
        draw_plan(model, [(prompt, [1, 2])])
    with pytest.raises(InputError, match="knows token ids only"):
        draw_plan(CHAIN, ["text"])
    with pytest.raises(InputError, match=r"Tokens must lie in 0\.\.3"):
        draw_plan(CHAIN, [[9]])


@pytest.mark.parametrize("design", [Tiled(), PowerCount(), Orders(), Enumerate()], ids=repr)
def test_tensors_give_the_same_log_likelihood(design):
    """A position in neither set stays masked and counts nothing; draws are padded where sequences have unequal many."""
    items = [*(Item.read(row) for row in ROWS), Item.read([0, 1, 2, 3], target=[1, 3], context=[0])]
    plan = draw_plan(CHAIN, items, evaluations=127, design=design)
    found = plan.tensors()
    rows = found.noisy.flatten(0, 1)
    nll = -CHAIN.log_conditionals(rows)
    labels = found.tokens.unsqueeze(1).expand_as(found.noisy).flatten(0, 1)
    nll = nll.gather(-1, labels.unsqueeze(-1)).squeeze(-1).view(found.noisy.shape)
    short = 3  # the others are as long as the longest, or padded: a chain sees padding
    mine = infodis.log_likelihood(CHAIN, plan)
    seen = found.visible.sum(1)
    assert seen.tolist() == [5, 3, 7, 4]
    longest = 2
    log_p = -(found.weight * nll).sum((1, 2))
    torch.testing.assert_close(log_p[longest].double(), mine[longest].double(), rtol=1e-6, atol=0)
    alone = draw_plan(CHAIN, [items[short]], evaluations=127, design=design)
    tensors = alone.tensors()
    nll = -CHAIN.log_conditionals(tensors.noisy[0]).gather(-1, tensors.tokens.expand_as(tensors.noisy[0])[..., None])
    torch.testing.assert_close(
        -(tensors.weight[0] * nll.squeeze(-1)).sum().double(), mine[short].double(), rtol=1e-6, atol=0
    )
    assert (tensors.noisy[0][:, 2] == CHAIN.mask_token).all()
    assert not tensors.masked[0][:, [0, 2]].any()


def test_masks_of_blocks_are_not_taken_for_masks_of_larger_ones(tmp_path):
    """They are wrong there: not every mask comes up, so the numbers would be biased, and look well."""
    row, sees_all = [0, 1, 2, 3, 0, 1, 2, 3], MarkovChain.random(order=1, vocab_size=4, seed=3)
    twos, fours, ones = (Blockwise(sees_all, BlockLayout(size)) for size in (2, 4, 1))
    counted_otherwise = Blockwise(sees_all, BlockLayout(4, "response"))
    plan = draw_plan(fours, [row], evaluations=15)
    plan.save(tmp_path / "plan.safetensors")
    for drawn in (plan, MaskPlan.load(tmp_path / "plan.safetensors")):
        for model in (fours, twos, ones):  # blocks that lie inside those of the plan
            expected = pytest.approx(infodis.nll(model, row).value, rel=1e-6)
            assert -float(infodis.log_likelihood(model, drawn)) == expected
        for model in (sees_all, counted_otherwise):
            with pytest.raises(InputError, match="wrong outside of them: this plan was drawn in BlockLayout"):
                infodis.log_likelihood(model, drawn)
    whole = draw_plan(sees_all, [row], evaluations=255)
    assert -float(infodis.log_likelihood(twos, whole)) == pytest.approx(infodis.nll(twos, row).value, rel=1e-6)


def test_a_plan_with_context_behind_the_target_is_not_for_a_model_of_blocks():
    item = Item.read(torch.tensor([0, 1, 2, 3]), target=[1, 2], context=[0, 3])
    plan = draw_plan(CHAIN, [item], evaluations=3)
    with pytest.raises(InputError, match="all context must lie before the target"):
        infodis.log_likelihood(Blockwise(CHAIN, BlockLayout(2)), plan)


MISTAKES = {
    "draw_plan(chain, rows, design='tiled')": "design must be a value like Dealt(), got 'tiled'",
    "log_likelihood('text8-tiny', plan)": "Load it once: model = infodis.load('text8-tiny')",
    "log_likelihood(chain, rows)": "The second argument must be a plan, got a list",
    "log_likelihood(chain, plan, micro_batch='16')": "micro_batch must be at least 1, a whole number",
    "dpo_loss([-1.0, -2.0], [-1.0, -2.0])": "must have one shape, [sequences] or [sequences, replicates]; got list and",
    "dpo_loss(zeros(0), zeros(0))": "got [0] and [0]",
    "dpo_loss(zeros(2), zeros(2), beta=-1)": "beta must be a positive number, got -1",
    "ipo_loss(zeros(2), zeros(2), beta=0)": "beta must be a positive number, got 0",
    "kto_loss(zeros(2), zeros(2), [True])": "desirable must have one number for each of the 2 sequences",
    "grpo_loss(zeros(2), zeros(2), zeros(3))": "advantage must have one number for each of the 2 sequences",
    "grpo_loss(zeros(2), zeros(2), zeros(2), clip=-1)": "clip must be how far a ratio may be below 1 and above",
    "sandwich_loss(zeros(2), zeros(2))": "at least four orders of every sequence",
}


def test_mistakes_are_told_in_words():
    """In a process without the types that tests check."""
    code = "from infodis import *; from infodis.errors import InputError; from torch import zeros; import sys\n"
    code += "chain = from_function(lambda rows: zeros(*rows.shape, 2), vocab_size=2, mask_token=2)\n"
    code += "rows = [[0, 1], [1, 0]]; plan = draw_plan(chain, rows)\n"
    code += "for line in sys.argv[1:]:\n    try:\n        print(eval(line))\n"
    code += "    except InputError as error:\n        print(error)\n"
    done = subprocess.run([sys.executable, "-c", code, *MISTAKES], check=True, capture_output=True, text=True)
    for told, expected in zip(done.stdout.splitlines(), MISTAKES.values(), strict=True):
        assert expected in told
