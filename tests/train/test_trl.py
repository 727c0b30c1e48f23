"""TRL's trainers on plans: what they log is what our own losses say, on the same masks."""

import math
import runpy
from pathlib import Path

import pytest
import torch
from tiny_models import build

pytest.importorskip("trl", reason="TRL is not installed: pip install 'infodis[trl]', with Python 3.11 or newer")
import datasets
import trl

import infodis
from infodis.errors import InputError
from infodis.item import Item
from infodis.plan import draw_plan
from infodis.train.trl import as_pretrained, use_plans

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers and TRL, about each other

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "trl_dpo.py")
BETA, SEED, EVALUATIONS = 0.1, 3, 4
PAIRS = [
    ("the capital of france is ", "paris", "a town"),
    ("one two ", "three", "seventy"),
    ("of the ", "people", "peo"),
]
END = " "


@pytest.fixture(scope="module")
def tokenizer():
    return runpy.run_path(EXAMPLE)["character_tokenizer"]()


@pytest.fixture
def models():
    """A policy that has moved, and its reference."""
    policy = infodis.load("text8-tiny", trainable=True)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)
    return policy, infodis.load("text8-tiny")


@pytest.fixture
def common(tmp_path):
    return {
        "output_dir": str(tmp_path),
        "max_steps": 1,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "report_to": [],
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "max_grad_norm": 1e9,
    }


def pairs_of(rows):
    return datasets.Dataset.from_list([dict(zip(("prompt", "chosen", "rejected"), row, strict=True)) for row in rows])


def plan_of(model, rows, step=0):
    """Chosen and rejected, one behind the other, with the end that TRL puts behind a response."""
    texts = [(prompt, text + END) for prompt, *both in rows for text in both]
    return draw_plan(model, texts, evaluations=EVALUATIONS, seed=SEED, step=step)


def log_ps(policy, reference, plan):
    with torch.no_grad():
        reference_log_p = infodis.log_likelihood(reference, plan)
    return infodis.log_likelihood(policy, plan), reference_log_p


def test_dpo_logs_what_dpo_loss_reports(models, tokenizer, common):
    """Loss, margins, both log p, and the norm of the gradient; then the policy moves, and the reference does not."""
    policy, reference = models
    log_p, reference_log_p = log_ps(*models, plan_of(policy, PAIRS))
    loss, report = infodis.dpo_loss(log_p, reference_log_p, beta=BETA, report=True)
    slopes = torch.autograd.grad(loss, list(policy.network.parameters()))
    norm = math.sqrt(sum(float(slope.square().sum()) for slope in slopes))
    before = reference.network.output_layer.linear.weight.clone()
    args = trl.DPOConfig(per_device_train_batch_size=len(PAIRS), beta=BETA, **common)
    trainer = trl.DPOTrainer(
        as_pretrained(policy),
        as_pretrained(reference),
        args=args,
        train_dataset=pairs_of(PAIRS),
        processing_class=tokenizer,
    )
    use_plans(trainer, evaluations=EVALUATIONS, seed=SEED)
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
    assert logged["rewards/margins"] == pytest.approx(BETA * float(report.margin.mean()), rel=1e-4)
    assert logged["rewards/accuracies"] == pytest.approx(report.accuracy)
    assert logged["logps/chosen"] == pytest.approx(float(report.chosen_log_p.mean()), rel=1e-5)
    assert logged["logps/rejected"] == pytest.approx(float(report.rejected_log_p.mean()), rel=1e-5)
    assert logged["grad_norm"] == pytest.approx(norm, rel=1e-4)
    moved, _ = log_ps(*models, plan_of(policy, PAIRS))
    assert not torch.allclose(moved, log_p)
    assert torch.equal(reference.network.output_layer.linear.weight, before)


def test_dpo_of_equal_models_begins_at_zero_with_new_masks_in_every_step(tokenizer, common):
    policy, reference = infodis.load("text8-tiny", trainable=True), infodis.load("text8-tiny")
    common |= {"max_steps": 2, "learning_rate": 0.0}
    args = trl.DPOConfig(per_device_train_batch_size=len(PAIRS), **common)
    shells = as_pretrained(policy), as_pretrained(reference)
    trainer = trl.DPOTrainer(*shells, args=args, train_dataset=pairs_of(PAIRS), processing_class=tokenizer)
    use_plans(trainer, evaluations=EVALUATIONS, seed=SEED)
    trainer.train()
    first, second = trainer.state.log_history[:2]
    assert first["rewards/margins"] == second["rewards/margins"] == 0
    assert first["loss"] == pytest.approx(math.log(2), rel=1e-6)
    for step, logged in enumerate((first, second)):
        chosen = infodis.log_likelihood(reference, plan_of(reference, PAIRS, step=step))[0::2]
        assert logged["logps/chosen"] == pytest.approx(float(chosen.mean()), rel=1e-5)
    assert first["logps/chosen"] != second["logps/chosen"]


def test_kto_logs_what_kto_loss_says(models, tokenizer, common):
    policy, _ = models
    rows = [{"prompt": p, "completion": good, "label": True} for p, good, _ in PAIRS]
    rows += [{"prompt": p, "completion": bad, "label": False} for p, _, bad in PAIRS]
    args = trl.KTOConfig(per_device_train_batch_size=len(rows), beta=BETA, **common)
    shells = [as_pretrained(model) for model in models]
    data = datasets.Dataset.from_list(rows)
    log_p, reference_log_p = log_ps(*models, plan_of(policy, PAIRS))
    trainer = trl.KTOTrainer(*shells, args=args, train_dataset=data, processing_class=tokenizer)
    use_plans(trainer, evaluations=EVALUATIONS, seed=SEED)
    trainer.train()
    logged = trainer.state.log_history[0]
    wanted = torch.tensor([True, False] * len(PAIRS))
    loss = infodis.kto_loss(log_p, reference_log_p, wanted, beta=BETA, baseline=logged["kl"])
    assert logged["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)


def share_of_e(completions, **_):
    return [completion.count("e") - 0.1 * len(completion) for completion in completions]


@pytest.mark.parametrize("name", ["GRPO", "RLOO"])
def test_trainers_that_write_meet_the_old_policy_on_its_masks(name, tokenizer, common):
    """The second iteration has a ratio that is not 1. At a rate of zero it is 1, to the last digit."""
    more = {"importance_sampling_level": "sequence", "loss_type": "grpo"} if name == "GRPO" else {"beta": 0.0}
    prompts = datasets.Dataset.from_list([{"prompt": "the king of "}, {"prompt": "in one nine "}] * 2)
    logged = {}
    for rate in (0.0, 1e-3):
        policy = infodis.load("text8-tiny", trainable=True)
        args = getattr(trl, f"{name}Config")(
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=5,
            num_iterations=2,
            **more,
            **common | {"max_steps": 2, "learning_rate": rate},
        )
        make = getattr(trl, f"{name}Trainer")
        trainer = make(as_pretrained(policy), share_of_e, args=args, train_dataset=prompts, processing_class=tokenizer)
        use_plans(trainer, evaluations=EVALUATIONS, seed=SEED)
        trainer.train()
        logged[rate] = trainer.state.log_history[:2]
    still, moved = (entries[1]["loss"] for entries in logged.values())
    assert still == pytest.approx(logged[0.0][0]["loss"], abs=1e-6)
    assert moved < still - 1e-3
    assert 4 <= logged[0.0][0]["completions/max_length"] <= 5


def test_padding_on_either_side_changes_nothing(models, tokenizer, common):
    """What the forward returns, at every place, against `log_likelihood` of the row alone."""
    policy, reference = models
    args = trl.DPOConfig(per_device_train_batch_size=1, **common)
    shells = as_pretrained(policy), as_pretrained(reference)
    trainer = trl.DPOTrainer(*shells, args=args, train_dataset=pairs_of(PAIRS), processing_class=tokenizer)
    use_plans(trainer, evaluations=EVALUATIONS, seed=SEED)
    row = policy.encode("in the beginning")
    item = Item.read(row, target=range(7, 16), context=range(7))
    plan = draw_plan(policy, [item], evaluations=EVALUATIONS, seed=SEED)
    wanted = infodis.log_likelihood(policy, plan, per_token=True)[0].float()
    for left in (0, 3, 5):
        tokens, mask, labels = (torch.full((1, 21), filling) for filling in (27, 0, -100))
        tokens[0, left : left + 16], mask[0, left : left + 16] = row, 1
        labels[0, left + 7 : left + 16] = row[7:]
        found = shells[0](tokens, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[0]
        assert found.shape == (20,)
        torch.testing.assert_close(found[left + 6 : left + 15], wanted[7:], rtol=1e-6, atol=1e-6)
        assert float(found.sum().detach()) == pytest.approx(float(wanted.sum().detach()), rel=1e-6)


def test_a_masked_language_model_with_peft_is_its_own_reference(tokenizer, common, tmp_path):
    """Without a reference model TRL switches the adapter off. The margin is zero before the adapter has moved."""
    peft = pytest.importorskip("peft", reason="PEFT is not installed: pip install peft")
    model = infodis.load(build("bert", tmp_path), mask_token=39, vocab_size=27)
    args = trl.DPOConfig(per_device_train_batch_size=len(PAIRS), **common | {"max_steps": 2, "learning_rate": 1e-2})
    lora = peft.LoraConfig(r=2, target_modules=["query", "value"], init_lora_weights=True)
    trainer = trl.DPOTrainer(
        as_pretrained(model), args=args, train_dataset=pairs_of(PAIRS), processing_class=tokenizer, peft_config=lora
    )
    use_plans(trainer, evaluations=EVALUATIONS, seed=SEED)
    trainer.train()
    first, second = trainer.state.log_history[:2]
    assert first["rewards/margins"] == 0
    assert first["grad_norm"] > 0
    assert second["rewards/margins"] != 0


def test_what_cannot_work_is_told(models, tokenizer, common):
    policy, reference = models

    def trainer():
        args = trl.DPOConfig(per_device_train_batch_size=1, **common)
        shells = as_pretrained(policy), as_pretrained(reference)
        return trl.DPOTrainer(*shells, args=args, train_dataset=pairs_of(PAIRS), processing_class=tokenizer)

    found, tokens = trainer(), torch.zeros(1, 4, dtype=torch.int64)
    use_plans(found)
    with pytest.raises(InputError, match="fused_lm_head=True"):
        found.model(tokens)
    with pytest.raises(InputError, match="Call use_plans"):
        as_pretrained(policy)(tokens)
    with pytest.raises(InputError, match="a prompt of one token or more"):
        found.model(tokens, labels=tokens, fused_lm_head=True)
    found.args.precompute_ref_log_probs = True
    with pytest.raises(InputError, match="on the same masks"):
        use_plans(found)
    found.args.precompute_ref_log_probs = False
    found.args.importance_sampling_level = "token"
    with pytest.raises(InputError, match="belongs to the sequence"):
        use_plans(found)
    found.args.importance_sampling_level, found.args.temperature = "sequence", 0.5
    with pytest.raises(InputError, match="temperature of 1"):
        use_plans(found)
    found.args.temperature = 1.0
    found.ref_model = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="got a Linear"):
        use_plans(found)


def test_the_example_runs(capsys):
    runpy.run_path(EXAMPLE, run_name="__main__")
    assert "margin" in capsys.readouterr().out
