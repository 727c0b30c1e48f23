"""Direct preference optimisation of a diffusion language model with TRL's DPOTrainer.

    pip install 'infodis[trl]'
    python examples/trl_dpo.py

Policy and reference are evaluated on the same masks, four of each sequence, new ones in every step. KTOTrainer,
GRPOTrainer and RLOOTrainer work in the same way: make the trainer, then call `use_plans`.
"""

import tempfile

from datasets import Dataset
from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

import infodis
from infodis.train.trl import as_pretrained, use_plans

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def character_tokenizer() -> PreTrainedTokenizerFast:
    """The letters of text8 as TRL wants them. Padding may be any token: it is not read."""
    letters = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz ?")}
    tokenizer = Tokenizer(WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="?", eos_token=" ", padding_side="left")


def preferences() -> Dataset:
    """Counting on is preferred to counting back."""
    return Dataset.from_list(
        [
            {"prompt": f"{now} ", "chosen": after, "rejected": before}
            for before, now, after in zip(NUMBERS, NUMBERS[1:], NUMBERS[2:], strict=False)
        ]
    )


def main() -> None:
    policy, reference = infodis.load("text8-tiny", trainable=True), infodis.load("text8-tiny")
    with tempfile.TemporaryDirectory() as directory:
        options = DPOConfig(
            output_dir=directory,
            per_device_train_batch_size=7,
            max_steps=5,
            learning_rate=2e-4,
            beta=0.1,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            bf16=False,
        )
        trainer = DPOTrainer(
            as_pretrained(policy),
            as_pretrained(reference),
            args=options,
            train_dataset=preferences(),
            processing_class=character_tokenizer(),
        )
        use_plans(trainer, evaluations=4, seed=0)
        trainer.train()
    first, *_, last = (entry for entry in trainer.state.log_history if "rewards/margins" in entry)
    print(f"reward margin: {first['rewards/margins']:.3f} at first, {last['rewards/margins']:.3f} at last")
    ratio = infodis.log_ratio(policy, "five", "three", prompt="four ")  # the policy is the model that was trained
    before = infodis.log_ratio(reference, "five", "three", prompt="four ")
    print(f"log p(five | four) - log p(three | four): {before.value:.2f} before, {ratio.value:.2f} after")


if __name__ == "__main__":
    main()
