"""Validation while a model is trained: fixed masks, nothing of the user's changed."""

import pytest
import torch
from test_memory import bert, tokenizer

import infodis
from infodis.errors import InputError
from infodis.train.validation import validation_nll

transformers = pytest.importorskip("transformers")
TEXTS = ["the capital of france is paris", "a b a b", "rome is the capital"]


def test_validation_is_the_same_every_time_and_changes_nothing():
    model = bert().train()
    state = torch.random.get_rng_state()
    first = validation_nll(model, TEXTS, tokenizer=tokenizer())
    assert first == validation_nll(model, TEXTS, tokenizer=tokenizer())
    assert all(module.training for module in model.modules())
    assert torch.equal(state, torch.random.get_rng_state())
    assert first.standard_error > 0


def test_validation_of_a_uniform_model_against_exact():
    model = bert()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    found = validation_nll(model, TEXTS, tokenizer=tokenizer())
    assert found.value == pytest.approx(torch.tensor(13.0).log().item(), abs=1e-5)  # 14 tokens, one of them the mask


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, place):
        tokens = torch.tensor(tokenizer()(TEXTS[0])["input_ids"])
        hidden = (torch.arange(len(tokens)) + place) % 2 == 0
        return {"input_ids": torch.where(hidden, 4, tokens), "labels": torch.where(hidden, tokens, -100)}


def test_callback_in_a_trainer(tmp_path):
    from infodis.train.callback import ValidationCallback

    callback = ValidationCallback(TEXTS[:1], tokenizer=tokenizer(), every=4, evaluations=16)
    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=12, per_device_train_batch_size=4, learning_rate=1e-2, report_to=[], use_cpu=True,
        save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    model = bert()
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[callback])
    trainer.train()
    assert [one.step for one in callback.history] == [4, 8, 12]
    assert callback.history[-1].bits_per_token < callback.history[0].bits_per_token
    assert callback.history[0].best
    logged = [one for one in trainer.state.log_history if "validation_bits_per_token" in one]
    assert [one["step"] for one in logged] == [4, 8, 12]
    last = validation_nll(model, TEXTS[:1], tokenizer=tokenizer(), evaluations=16)
    assert callback.history[-1].bits_per_token == pytest.approx(last.value / torch.tensor(2.0).log().item())


def test_callback_refuses_bad_steps():
    from infodis.train.callback import ValidationCallback

    with pytest.raises(InputError, match="at least 1 step"):
        ValidationCallback(TEXTS, every=0)


def test_a_loaded_model_is_taken_too():
    model = infodis.load("text8-tiny", device="cpu")
    assert 0 < validation_nll(model, ["some text here"]).value < 5
