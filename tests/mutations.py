"""Deliberate faults, each with the tests that must notice it.

    python tests/mutations.py                           # all of them: some minutes on two cores
    python tests/mutations.py --only seed-ignored       # one of them; give it several times for more
    python tests/mutations.py --list

A mutation replaces one piece of text in a copy of the sources, so that a property breaks and nothing crashes. Then the
tests that it names run on the copy: one of them must fail. It is an error as well if the tests fail without the
mutation, and if the text is not found exactly once: then the line was moved, and the mutation must follow it.
"""

import argparse
import concurrent.futures
import dataclasses
import multiprocessing
import os
import queue
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "benchmarks", "pyproject.toml")
PATIENCE = 600
"""Seconds until a run counts as broken."""

FORKS = multiprocessing.get_context("forkserver")
"""Runs of tests are forked from a process that has imported what takes long, and nothing of infodis."""

Outcome = Literal["killed", "survived", "moved", "broken"]


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A fault to make, and who must notice it."""

    name: str
    breaks: str
    """The property that does not hold any more."""
    file: str
    """Below src/infodis."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Files below tests, or single tests in them: file::test."""

    def source(self, tree: Path) -> Path:
        return tree / "src" / "infodis" / self.file

    def found(self, tree: Path) -> int:
        """How often the text to replace is there."""
        return self.source(tree).read_text().count(self.old)


MUTATIONS = (
    # Weights of designs: without the certificate an estimate is biased, and nothing else shows it.
    Mutation(
        "time-integral-weight",
        "the weight of a row at level u is 1 / u",
        "design.py",
        "1 / (levels * levels.shape[-1])",
        "1 / ((1 - levels) * levels.shape[-1])",
        ("core/test_design.py::test_time_integral_certificate_against_quadrature",),
    ),
    Mutation(
        "time-free-harmonic",
        "the weight is H_m, not H_(m - 1)",
        "design.py",
        "harmonic = inverse.sum()",
        "harmonic = inverse[:-1].sum()",
        ("core/test_design.py::test_certificate_against_enumeration[TimeFree()-3]",),
    ),
    Mutation(
        "time-free-full-mask",
        "the fully masked set is drawn too",
        "design.py",
        "sizes = 1 + torch.searchsorted(cumulative, levels.contiguous(), right=True)",
        "sizes = (1 + torch.searchsorted(cumulative, levels.contiguous())).clamp(max=max(1, keys.shape[-1] - 1))",
        ("core/test_design.py::test_certificate_against_enumeration[TimeFree()-3]",),
    ),
    Mutation(
        "uniform-count-rounded",
        "the size is 1 + floor(u m), not u m rounded",
        "design.py",
        "(1 + (levels * length).long()).clamp(max=length)",
        "(levels * length).round().long().clamp(min=1)",
        ("core/test_design.py::test_certificate_against_enumeration[UniformCount()-3]",),
    ),
    Mutation(
        "uniform-count-weight",
        "the weight of size k is m / k",
        "design.py",
        "length / (rows * sizes.double())",
        "(length + 1) / (rows * (sizes + 1).double())",
        ("core/test_design.py::test_certificate_against_enumeration[UniformCount()-3]",),
    ),
    Mutation(
        "strata-rounded",
        "strata are never rounded to sizes",
        "design.py",
        "_uniform_count((torch.arange(rows) + levels) / rows, keys)",
        "_uniform_count((torch.arange(rows) + 0.5).expand_as(levels).double() / rows, keys)",
        ("core/test_design.py::test_certificate_against_enumeration[StratifiedCount()-5]",),
    ),
    Mutation(
        "pairs-sizes",
        "a mask of a pair may be empty, and its complement full",
        "design.py",
        "(levels[..., :1] * (length + 1)).long().clamp(max=length)",
        "(1 + (levels[..., :1] * length).long()).clamp(max=length)",
        ("core/test_design.py::test_certificate_against_enumeration[Pairs()-3]",),
    ),
    Mutation(
        "tiled-weight",
        "a row of a group of g sizes counts for all g",
        "design.py",
        "schedule.width / (schedule.rows * sizes.double())",
        "1 / (schedule.rows * sizes.double())",
        ("core/test_design.py::test_certificate_against_enumeration[Tiled(power=0.2, floor=0.3)-5]",),
    ),
    Mutation(
        "dealt-weight",
        "a row of a size that is drawn more often counts less",
        "design.py",
        "return sizes, 1 / (rows * sizes * share[sizes - 1])",
        "return sizes, len(share) / (rows * sizes.double())",
        ("core/test_design.py::test_certificate_against_enumeration[Dealt(slope=0.75, power=0.0)-3]",),
    ),
    Mutation(
        "tiled-not-crosswise",
        "positions masked together in one deck are spread over the next",
        "design.py",
        "order = (ranks(row + key) - first + key) / (last - first)",
        "order = key + 0 * (last - first)",
        ("core/test_design.py::test_decks_are_dealt_crosswise_so_that_no_pair_meets_twice",),
    ),
    Mutation(
        "tiled-dealt-twice",
        "a row that spans two decks never holds a position twice",
        "design.py",
        "return order - 2.0 * front",
        "return order - 0.0 * front",
        ("core/test_design.py::test_certificate_against_enumeration[Tiled(power=0.2, floor=0.3)-4]",),
    ),
    Mutation(
        "orders-antithetic-weight",
        "two orders of a pair share the weight of one",
        "design.py",
        ".double() / turns.shape[-2]",
        ".double()",
        ("core/test_design.py::test_certificate_against_enumeration[Orders(antithetic=True)-3]",),
    ),
    Mutation(
        "enumerate-weight",
        "a mask of size k weighs 1 / (k C(m, k))",
        "design.py",
        "1 / (sizes * ways[sizes])",
        "1 / ways[sizes]",
        ("core/test_design.py::test_enumerate_weights_against_certificate",),
    ),
    Mutation(
        "keys-hold-the-level",
        "which positions are masked does not depend on how many",
        "design.py",
        "drawn[:, 1:].transpose(1, 2)",
        "drawn[:, :-1].transpose(1, 2)",
        ("core/test_design.py::test_numbers_of_levels_and_positions_are_all_different_and_begin_alike",),
    ),
    Mutation(
        "unequal-lengths-not-coupled",
        "targets of unequal lengths draw the same levels, and the same keys at their first positions",
        "design.py",
        "return drawn[:, 0], drawn[:, 1:].transpose(1, 2)",
        "return drawn[:, -1], drawn[:, :-1].transpose(1, 2)",
        ("core/test_design.py::test_numbers_of_levels_and_positions_are_all_different_and_begin_alike",),
    ),
    # Controls: what is subtracted has a known mean and comes from other rows.
    Mutation(
        "blocks-share-a-level",
        "blocks are drawn independently",
        "auto.py",
        "pieces = drawn.split([1 + size for size in self.sizes], dim=-1)",
        "pieces = [torch.cat([drawn[..., :1], p[..., 1:]], -1) for p in drawn.split([1 + s for s in self.sizes], -1)]",
        ("core/test_blocks.py::test_blocks_are_drawn_independently",),
    ),
    Mutation(
        "control-looks-into-other-blocks",
        "neighbours of a control are in the position's own block",
        "control.py",
        "there = (target[place] == wanted) & (part[place] == part.unsqueeze(-1))",
        "there = target[place] == wanted",
        ("core/test_blocks.py::test_neighbours_stay_inside_their_block",),
    ),
    Mutation(
        "blocks-counted-from-the-row",
        "with origin response, blocks are counted from the first target token",
        "blocks.py",
        'return target[:, 0] if self.origin == "response" else torch.zeros(len(target), dtype=torch.int64)',
        "return torch.zeros(len(target), dtype=torch.int64)",
        ("core/test_blocks.py::test_enumeration_in_blocks_is_the_sum_of_their_mask_averages",),
    ),
    Mutation(
        "control-not-cross-fitted",
        "the control of a fold knows nothing of its rows",
        "control.py",
        "total.minus(mine)",
        "total",
        ("core/test_control.py::test_predictions_come_from_other_folds",),
    ),
    Mutation(
        "control-mean-of-neighbours",
        "features average to zero over all masks",
        "control.py",
        "around.neighbours - around.present / 2",
        "around.neighbours - around.present / 3",
        ("core/test_control.py::test_features_have_mean_zero_against_enumeration",),
    ),
    Mutation(
        "control-mean-of-sizes",
        "features average to zero over all masks",
        "control.py",
        "share - (size + 1) / (2 * size)",
        "share - 1 / 2",
        ("core/test_control.py::test_features_have_mean_zero_against_enumeration",),
    ),
    Mutation(
        "control-mean-added-per-row",
        "the known mean of what is subtracted is added again, once per replicate",
        "sample.py",
        "(values - prediction) + mean / self.layout.rows",
        "(values - prediction) + mean",
        ("core/test_estimate.py::test_unbiased_against_enumeration[exact-StratifiedCount()-Positions]",),
    ),
    Mutation(
        "surrogate-mean-forgotten",
        "what a surrogate is off is counted from its known mean",
        "sample.py",
        "beta * (mine.sum(-1) - exact.unsqueeze(1))",
        "beta * mine.sum(-1)",
        ("core/test_surrogate.py::test_it_is_the_difference_of_two_estimates_against_itself",),
    ),
    Mutation(
        "kernel-knows-its-own-fold",
        "a process knows nothing of the rows that it predicts",
        "control.py",
        "rows[(rows < start) | (rows >= end)]",
        "rows",
        ("core/test_control.py::test_predictions_come_from_other_folds",),
    ),
    Mutation(
        "kernel-mean-of-visible-neighbours",
        "the mean of a process' predictions is that over all masks",
        "control.py",
        "torch.log(u + (1 - u) * e)",
        "torch.log(u + e)",
        ("core/test_control.py::test_features_have_mean_zero_against_enumeration",),
    ),
    Mutation(
        "halves-of-a-plan-teach-each-other",
        "controls are fitted across plans",
        "sample.py",
        "fold_bounds(plans, self.layout.plan.rows)",
        "fold_bounds(self.count, self.layout.rows)",
        ("core/test_estimate.py::test_a_control_that_is_fitted_inside_a_plan_is_caught",),
    ),
    Mutation(
        "surrogate-beta-from-its-own-fold",
        "beta of a fold comes from the other folds",
        "control.py",
        "((end - start, total - mine)",
        "((end - start, total)",
        ("core/test_surrogate.py::test_betas_come_from_other_folds",),
    ),
    Mutation(
        "surrogate-not-in-the-settings",
        "a run is not resumed with another surrogate",
        "models/spec.py",
        '"surrogate": self.files.surrogate_fingerprint,',
        '"surrogate": None,',
        ("models/test_calibration.py::test_the_command_stores_it_and_scores_take_it",),
    ),
    Mutation(
        "folds-split-replicates",
        "folds are blocks of whole replicates",
        "control.py",
        "n * replicates // folds * rows",
        "n * replicates * rows // folds",
        ("core/test_control.py::test_folds_are_blocks_of_whole_replicates",),
    ),
    # Errors: the only promise that a number makes about itself.
    Mutation(
        "error-of-credits",
        "the standard error of a mean of n is the deviation over sqrt(n)",
        "result.py",
        "replicates.std(dim) / math.sqrt(count)",
        "replicates.std(dim) / math.sqrt(count + 1)",
        ("core/test_estimate.py::test_errors_of_four_replicates_against_closed_form",),
    ),
    Mutation(
        "error-of-values",
        "the standard error of a mean of n is the deviation over sqrt(n)",
        "result.py",
        "return float(self.replicates[: self.first].std()) / math.sqrt(self.replicates.numel())",
        "return float(self.replicates[: self.first].std()) / math.sqrt(self.replicates.numel() + 1)",
        ("core/test_estimate.py::test_errors_of_four_replicates_against_closed_form",),
    ),
    Mutation(
        "interval-one-sided",
        "an interval leaves out half of 1 - level on either side",
        "result.py",
        "student_quantile((1 + level) / 2, ",
        "student_quantile(level, ",
        ("core/test_estimate.py::test_errors_of_four_replicates_against_closed_form",),
    ),
    Mutation(
        "interval-normal",
        "few replicates have the tails of Student's t",
        "result.py",
        "self.degrees_of_freedom) * self._scale",
        "10**9) * self._scale",
        ("core/test_estimate.py::test_errors_of_four_replicates_against_closed_form",),
    ),
    Mutation(
        "pooled-errors-added",
        "errors of independent runs add in squares",
        "result.py",
        "torch.hypot(mine * self.per_token_error, its * other.per_token_error)",
        "mine * self.per_token_error + its * other.per_token_error",
        ("core/test_estimate.py::test_pooled_errors_of_credits_are_those_of_all_replicates",),
    ),
    # Random streams: independent where errors are averaged, shared where they are to cancel.
    Mutation(
        "items-share-masks",
        "sequences of one length meet masks of their own",
        "sample.py",
        "paths = [(name, number) for name in self.names",
        "paths = [(0, number) for name in self.names",
        ("core/test_estimate.py::test_sequences_of_one_length_meet_masks_of_their_own",),
    ),
    Mutation(
        "replicates-share-masks",
        "every replicate has masks of its own",
        "sample.py",
        "paths = [(name, number) for name in self.names",
        "paths = [(name, 0) for name in self.names",
        ("core/test_estimate.py::test_sequences_of_one_length_meet_masks_of_their_own",),
    ),
    Mutation(
        "seed-ignored",
        "another seed draws other masks",
        "sample.py",
        "seed=self.seed, paths=paths",
        "seed=0, paths=paths",
        ("core/test_estimate.py::test_a_seed_changes_the_masks_and_nothing_else_does",),
    ),
    Mutation(
        "key-without-target",
        "items that differ in their target are not taken for equal",
        "item.py",
        "parts = (self.clean, self.target, self.context)",
        "parts = (self.clean, self.context)",
        ("core/test_estimate.py::test_items_that_differ_in_their_sets_only_are_not_taken_for_equal",),
    ),
    Mutation(
        "windows-share-masks",
        "equal windows of a text meet masks of their own",
        "quantities/perplexity.py",
        'key("window", number)',
        'key("window", 0)',
        ("quantities/test_perplexity.py::test_the_error_from_masks_is_the_spread_over_seeds[text]",),
    ),
    Mutation(
        "documents-share-masks",
        "windows of different documents meet masks of their own",
        "jobs/rolling.py",
        'key("window", one.id, one.number)',
        'key("window", one.number)',
        ("jobs/test_engine.py::test_windows_of_documents_meet_masks_of_their_own",),
    ),
    Mutation(
        "coupling-broken",
        "both sides of a ratio are drawn from the same numbers",
        "quantities/ratio.py",
        "if side is self.base or self.coupled:",
        "if side is self.base:",
        ("quantities/test_ratio.py::test_identical_sides_are_exactly_equal",),
    ),
    Mutation(
        "ratio-reversed",
        "a ratio is log p(y) - log p(x), not the reverse",
        "quantities/ratio.py",
        "side.item, name, -side.sign)",
        "side.item, name, side.sign)",
        ("quantities/test_ratio.py::test_exact_designs_give_exact_ratios",),
    ),
    Mutation(
        "margin-sides",
        "a margin subtracts what the reference prefers",
        "quantities/ratio.py",
        "Side(reference, chosen, -1), Side(reference, rejected)",
        "Side(reference, rejected, -1), Side(reference, chosen)",
        ("quantities/test_ratio.py::test_margin_by_enumeration_against_exact",),
    ),
    # Races: the bound alpha on wrong decisions.
    Mutation(
        "race-evidence-summed",
        "the mean of e over the rivals is at most 1 in expectation; their sum is not",
        "quantities/choose.py",
        ".logsumexp(1) - math.log(len(self.keys) - 1)",
        ".logsumexp(1)",
        ("quantities/test_choose.py::test_a_choice_is_out_when_the_mean_of_e_over_its_rivals_is_100",),
    ),
    Mutation(
        "accuracy-believes-every-sign",
        "noise moves an accuracy towards one half, and its interval allows for that",
        "quantities/accuracy.py",
        "moved = CAUTION * (self.chance[1] - self.chance[0]) / count",
        "moved = 0.0",
        ("quantities/test_accuracy.py::test_intervals_cover_in_spite_of_noise",),
    ),
    Mutation(
        "accuracy-counts-ties",
        "a tie is not right",
        "quantities/accuracy.py",
        "return self.margin > 0",
        "return self.margin >= 0",
        ("quantities/test_accuracy.py::test_equal_sentences_are_tied_and_not_right",),
    ),
    Mutation(
        "race-rivals-counted-with-itself",
        "of K choices each has K - 1 rivals",
        "quantities/choose.py",
        ".logsumexp(1) - math.log(len(self.keys) - 1)",
        ".logsumexp(1) - math.log(len(self.keys))",
        ("quantities/test_choose.py::test_a_choice_is_out_when_the_mean_of_e_over_its_rivals_is_100",),
    ),
    Mutation(
        "race-chance-of-other-rivals",
        "a race is given up by the evidence that would end it",
        "quantities/choose.py",
        "math.log((len(self.keys) - 1) / self.race.alpha)",
        "math.log(len(self.keys) / self.race.alpha)",
        ("quantities/test_choose.py::test_a_lead_that_gets_there_in_the_end_has_an_even_chance",),
    ),
    Mutation(
        "race-evidence-without-price",
        "e is a likelihood ratio: looking costs (1 + n g)^(1/2)",
        "quantities/choose.py",
        "- math.log(shrink) / 2 + count / 2 * growth",
        "+ count / 2 * growth",
        ("quantities/test_choose.py::test_evidence_against_integral",),
    ),
    Mutation(
        "race-weight",
        "the weight of size k is 1 / (k p(k))",
        "design.py",
        "1 / (rows * sizes * share[sizes - 1])",
        "1 / (rows * share[sizes - 1])",
        ("quantities/test_choose.py::test_certificate_against_enumeration",),
    ),
    Mutation(
        "race-losers-forgotten",
        "rivals that are out still count among the K - 1",
        "quantities/choose.py",
        ".logsumexp(1) - math.log(len(self.keys) - 1)",
        ".logsumexp(1) - math.log(len(possible) - 1)",
        ("quantities/test_choose.py::test_a_choice_is_out_when_the_mean_of_e_over_its_rivals_is_100",),
    ),
    Mutation(
        "race-sizes-ignored",
        "scores are divided by the sizes of choices",
        "quantities/choose.py",
        ".expand(count) / self.sizes[n]",
        ".expand(count)",
        ("quantities/test_choose.py::test_sizes_divide_the_nll",),
    ),
    # Bounds: which side of the truth they are on.
    Mutation(
        "tangent-uncorrected",
        "psi is raised by the squared relative error of the mean it comes from",
        "quantities/bounds.py",
        "- math.log(count) + doubt.log1p()",
        "- math.log(count) + 0 * doubt",
        ("quantities/test_bounds.py::test_the_tangent_point_against_closed_form",),
    ),
    Mutation(
        "tangent-from-the-same-half",
        "psi comes from the half that it is not used on",
        "quantities/bounds.py",
        "[tangent_point(second).expand(len(first)), tangent_point(first).expand(len(second))]",
        "[tangent_point(first).expand(len(first)), tangent_point(second).expand(len(second))]",
        ("quantities/test_bounds.py::test_estimates_against_enumeration",),
    ),
    Mutation(
        "lower-bound-is-an-upper-one",
        "tangent_nll is a lower bound of mixture_nll, importance_nll an upper one",
        "quantities/bounds.py",
        'bound("tangent_nll", tangent(order_nlls), ',
        'bound("tangent_nll", importance(order_nlls, len(order_nlls)), ',
        ("quantities/test_bounds.py::test_estimates_against_enumeration",),
    ),
    Mutation(
        "mixture-of-orders-summed",
        "mixture_nll is -log of the mean over orders, not of their sum",
        "quantities/orders.py",
        "torch.logsumexp(log_likelihood[rest] - cost, dim=1) - math.log(size)",
        "torch.logsumexp(log_likelihood[rest] - cost, dim=1)",
        ("quantities/test_bounds.py::test_short_targets_are_exact_against_all_orders",),
    ),
    Mutation(
        "impossible-order-forgotten",
        "one impossible order makes importance_nll infinite",
        "quantities/bounds.py",
        "if bool(order_nlls.isinf().any()) else replicates",
        "if bool(order_nlls.isinf().all()) else replicates",
        ("quantities/test_bounds.py::test_one_impossible_order_makes_every_group_infinite",),
    ),
    Mutation(
        "equal-rows-counted-as-independent",
        "equal sequences met equal orders: their errors add up",
        "quantities/bounds.py",
        "errors.get(one.item.key, 0.0) + part.standard_error",
        "math.hypot(errors.get(one.item.key, 0.0), part.standard_error)",
        ("quantities/test_bounds.py::test_averages_add_up",),
    ),
    # Predictors: what is masked, what is visible, what has probability zero.
    Mutation(
        "hidden-tokens-shown",
        "positions in neither set are masked in every row",
        "evaluate.py",
        "hidden = self.hidden[item].scatter(1, target, masked)",
        "hidden = torch.zeros_like(self.hidden[item]).scatter(1, target, masked)",
        ("core/test_estimate.py::test_orders_on_a_chain_against_exact",),
    ),
    Mutation(
        "masked-tokens-shown",
        "a masked token is not seen by the predictor",
        "predictor.py",
        "rows = torch.where(masked, self.mask_token, tokens)",
        "rows = torch.where(masked.all(1, keepdim=True), self.mask_token, tokens)",
        ("core/test_predictor.py::test_from_function_agrees_with_the_oracle_itself",),
    ),
    Mutation(
        "unnormalised-accepted",
        "conditionals that do not sum to 1 are refused",
        "predictor.py",
        "~(totals.abs() <= TOLERANCE)",
        "totals.isnan()",
        ("core/test_predictor.py::test_what_is_not_a_log_probability_is_named",),
    ),
    Mutation(
        "impossible-averaged",
        "one conditional probability of zero makes the value infinite",
        "sample.py",
        "values[self.impossible] = math.inf",
        "values[impossible] = values[impossible]",
        ("core/test_estimate.py::test_impossible_data_give_inf_and_say_so",),
    ),
    Mutation(
        "mask-column-in-distributions",
        "the mask token has probability zero",
        "models/nets/network.py",
        "logits[..., self.mask_token] = -torch.inf",
        "logits[..., self.mask_token] += 0.0",
        ("models/test_adapters.py::test_families_against_peer",),
    ),
    Mutation(
        "mask-column-in-costs",
        "the mask token has probability zero where only costs are computed, too",
        "models/nets/network.py",
        "block[:, self.mask_token - start] = -torch.inf",
        "block[:, self.mask_token - start] += 0.0",
        ("models/test_adapters.py::test_nll_is_that_of_a_plain_loop",),
    ),
    Mutation(
        "padded-columns-in-distributions",
        "columns that only pad the vocabulary have probability zero",
        "models/nets/network.py",
        "logits[..., self.tokens :] = -torch.inf",
        "logits[..., self.tokens :] += 0.0",
        ("models/test_adapters.py::test_families_against_peer",),
    ),
    Mutation(
        "padded-columns-in-costs",
        "columns that only pad the vocabulary have probability zero where only costs are computed, too",
        "models/nets/network.py",
        "last = min(self.tokens, self.vocab_size)",
        "last = self.vocab_size",
        ("models/test_adapters.py::test_nll_is_that_of_a_plain_loop",),
    ),
    Mutation(
        "dream-unshifted",
        "Dream's output at a position is about the next one",
        "models/nets/block_network.py",
        "_picked(_next(x), at) if self.shifted else x",
        "_picked(x, at) if self.shifted else x",
        ("models/test_adapters.py::test_families_against_peer",),
    ),
    Mutation(
        "expert-bias-in-the-score",
        "the bias of experts helps to choose and is not in their weight",
        "models/nets/experts.py",
        "weights = scores.gather(-1, chosen)",
        "weights = for_choice.gather(-1, chosen)",
        ("models/test_block_families.py::test_networks_against_peer",),
    ),
    Mutation(
        "experts-of-all-groups",
        "a token chooses among the groups of experts that it keeps",
        "models/nets/experts.py",
        "self._within_groups(for_choice).topk(",
        "for_choice.topk(",
        ("models/test_block_families.py::test_networks_against_peer",),
    ),
    Mutation(
        "queries-not-normalised",
        "queries and keys are normalised before they are turned",
        "models/nets/llama.py",
        "query, key = self.query_norm(query), self.key_norm(key)",
        "key = self.key_norm(key)",
        ("models/test_block_families.py::test_networks_against_peer",),
    ),
    Mutation(
        "modulation-gate-lost",
        "BD3-LM's gate at zero noise is multiplied into the weights",
        "models/adapters/bd3lm.py",
        "second.bias.mul_(gate_mlp)",
        "second.bias.mul_(1)",
        ("models/test_block_families.py::test_networks_against_peer",),
    ),
    Mutation(
        "block-model-run-as-a-full-one",
        "a network of blocks does not answer about a masked row alone",
        "models/nets/block_network.py",
        "if self.block_size and not self.causal:",
        "if self.block_size > 32:",
        ("models/test_block_families.py::test_a_block_model_is_never_run_as_a_full_one",),
    ),
    Mutation(
        "own-clean-block-seen",
        "a noisy token does not see the clean tokens of its own block",
        "models/nets/block_network.py",
        "_beside(clean[:, None, None, :] < query, key == query)",
        "_beside(clean[:, None, None, :] <= query, key == query)",
        ("models/test_block_networks.py::test_who_sees_whom[radd]",),
    ),
    Mutation(
        "stale-clean-texts",
        "clean keys and values are forgotten when weights change",
        "models/clean_texts.py",
        "if weights != self._weights or precision != self._precision or torch.is_grad_enabled():",
        "if precision != self._precision or torch.is_grad_enabled():",
        ("models/test_block_models.py::test_changed_weights_never_meet_kept_texts",),
    ),
    Mutation(
        "levels-dealt-in-order",
        "every block gets its level at random",
        "train/losses.py",
        "return found[torch.randperm(len(found), generator=generator)]",
        "return found",
        ("train/test_block_training.py::test_the_loss_of_every_row_is_unbiased_against_enumeration[k-dce]",),
    ),
    Mutation(
        "last-clean-states-unshifted",
        "a shifted network says what the first token of a block is where the clean one before it stands",
        "models/nets/block_network.py",
        "_next_in_block(found, _next(last), blocks) if self.shifted",
        "_next_in_block(found, last, blocks) if self.shifted",
        ("models/test_block_networks.py::test_who_sees_whom[shifted-llama]",),
    ),
    Mutation(
        "grids-confused",
        "what is known of a text on one grid of blocks is not used on another",
        "models/clean_texts.py",
        "for mine, its in ((self.tokens, other.tokens), (self.blocks, other.blocks))",
        "for mine, its in ((self.tokens, other.tokens),)",
        ("models/test_block_models.py::test_codes_are_for_looking_up_only",),
    ),
    Mutation(
        "positions-of-a-part",
        "a text that is taken up in the middle goes on at its positions",
        "models/clean_texts.py",
        "positions = _padded([np.arange(*span) for span in spans], 0)",
        "positions = _padded([np.arange(*span) - span[0] for span in spans], 0)",
        ("models/test_block_models.py::test_texts_that_begin_alike_share_what_they_begin_with",),
    ),
    Mutation(
        "padding-seen",
        "padding of a batch is not seen by shorter rows",
        "models/model.py",
        "visible = None if bool(there.all()) else self._moved(there)",
        "visible = None",
        ("models/test_adapters.py::test_a_sequence_scores_the_same_in_any_batch",),
    ),
    Mutation(
        "special-tokens-scored",
        "[CLS] and [SEP] are context",
        "models/tokenizers.py",
        "if not added and end > len(prompt)",
        "if added or end > len(prompt)",
        ("models/test_conformance.py::test_special_tokens_are_context",),
    ),
    Mutation(
        "special-tokens-of-windows-scored",
        "[CLS] and [SEP] around a window are context",
        "quantities/perplexity.py",
        "first, last = len(before) + context, len(row) - len(behind)",
        "first, last = len(before) + context, len(row)",
        ("quantities/test_perplexity.py::test_special_tokens_around_a_window_are_context",),
    ),
    # Long texts: every token once, every byte once.
    Mutation(
        "windows-counted-twice",
        "tokens that windows share are scored once",
        "quantities/perplexity.py",
        "context = length - (self.windows.stride or length) if number else 0",
        "context = 0",
        ("quantities/test_perplexity.py::test_windows_cover_every_token_once",),
    ),
    Mutation(
        "bytes-of-windows-counted-twice",
        "the bytes of a document are dealt to its windows once",
        "jobs/documents.py",
        "size * (len(piece) - context) / count",
        "size * len(piece) / count",
        ("jobs/test_engine.py::test_windows_share_the_bytes_of_their_document",),
    ),
    Mutation(
        "characters-for-bytes",
        "bits per byte divide by the bytes of UTF-8",
        "jobs/inputs/reading.py",
        "return len(part.value.encode())",
        "return min(len(part.value.encode()), len(part.value))",
        ("jobs/test_inputs.py::test_bytes_are_those_of_utf_8",),
    ),
    Mutation(
        "characters-for-bytes-of-documents",
        "bits per byte of documents divide by the bytes of UTF-8",
        "jobs/documents.py",
        "[(len(text.encode()), model.encode(text).numpy())]",
        "[(len(text), model.encode(text).numpy())]",
        ("jobs/test_engine.py::test_windows_share_the_bytes_of_their_document",),
    ),
    Mutation(
        "characters-for-bytes-of-a-text",
        "bits per byte of a text divide by the bytes of UTF-8",
        "jobs/documents.py",
        "((len(text.encode()), tokens) for",
        "((len(text), tokens) for",
        ("jobs/test_engine.py::test_windows_share_the_bytes_of_their_document",),
    ),
    Mutation(
        "windows-are-units-of-a-corpus",
        "documents are what a corpus is drawn from",
        "jobs/summary.py",
        "per_token, per_byte = self.documents if self.count > 1 else self.windows",
        "per_token, per_byte = self.windows",
        ("jobs/test_engine.py::test_documents_are_the_units_of_a_corpus",),
    ),
    # Files: what is written is what was computed, once, and on disk before it counts.
    Mutation(
        "records-rounded",
        "records hold six decimals",
        "jobs/job.py",
        "DIGITS = 6",
        "DIGITS = 3",
        ("jobs/test_engine.py::test_records_are_as_of_single_rows_and_bad_rows_are_told",),
    ),
    Mutation(
        "nan-written",
        "infinities and NaN never reach a record",
        "jobs/store.py",
        "allow_nan=False",
        "allow_nan=True",
        ("jobs/test_engine.py::test_what_is_no_number_of_json_is_not_written",),
    ),
    Mutation(
        "manifest-not-synced",
        "a shard counts once its line is on disk",
        "journal.py",
        "os.fsync(handle)",
        "os.fstat(handle)",
        ("jobs/test_engine.py::test_a_shard_counts_once_its_line_is_on_disk",),
    ),
    Mutation(
        "part-not-synced",
        "a part is on disk before it gets its name",
        "files.py",
        "sync(unfinished)",
        "unfinished.stat()",
        ("jobs/test_engine.py::test_a_file_is_on_disk_before_it_gets_its_name",),
    ),
    Mutation(
        "part-unchecked-at-the-join",
        "a part that changed since it was written is not joined",
        "jobs/store.py",
        "if hashlib.sha256(content).hexdigest() != digest:",
        "if not content:",
        ("jobs/test_engine.py::test_a_part_that_changes_before_the_join_is_not_joined",),
    ),
    Mutation(
        "part-unchecked-on-resume",
        "a damaged part is done again",
        "jobs/store.py",
        "            self.lines(shard, digest)\n",
        "            self.path(shard).stat()\n",
        ("jobs/test_engine.py::test_a_damaged_part_is_found_and_redone",),
    ),
    Mutation(
        "torn-line-kept",
        "half a line of a killed run harms no other",
        "journal.py",
        'lines = b"\\n" + lines',
        "pass",
        ("jobs/test_engine.py::test_a_torn_line_of_the_manifest_is_dropped",),
    ),
    Mutation(
        "lock-not-taken",
        "one run at a time works on an output",
        "files.py",
        "return filelock.FileLock(lock, thread_local=False, fallback_to_soft=False).acquire(blocking=False)",
        "return contextlib.nullcontext()",
        ("jobs/test_engine.py::test_one_run_at_a_time",),
    ),
    Mutation(
        "foreign-file-replaced",
        "a file that we did not write is not replaced",
        "files.py",
        "if digest_of(path) not in (_written(path) if hashes is None else hashes):",
        "if not path.stat().st_size:",
        ("jobs/test_files.py::test_what_the_user_changed_is_the_users",),
    ),
    Mutation(
        "hard-links-not-seen",
        "an output that is the input by another name is refused",
        "files.py",
        "found.add((there.st_dev, there.st_ino))",
        "found.add(real)",
        ("jobs/test_files.py::test_paths_are_compared_by_what_they_lead_to",),
    ),
    Mutation(
        "foreign-directory-taken",
        "a directory that we did not make is not worked in",
        "files.py",
        "if foreign is not None and not os.path.lexists(lock):",
        "if foreign is None and os.path.lexists(lock):",
        ("jobs/test_files.py::test_a_foreign_file_in_the_way_is_refused",),
    ),
    Mutation(
        "shards-discarded-too-early",
        "an input that cannot be read costs no finished shard",
        "jobs/run.py",
        "    rows = plan.input.cut(directory / stores.SOURCE)\n",
        "    _ = known or stores.discard(directory)\n    rows = plan.input.cut(directory / stores.SOURCE)\n",
        ("jobs/test_files.py::test_finished_shards_survive_an_input_that_cannot_be_read",),
    ),
    Mutation(
        "result-not-announced",
        "killed between two renames, the next run knows what is there for its own",
        "jobs/run.py",
        "stores.announce(store.directory, *hashes)",
        "stores.announce(store.directory)",
        ("jobs/test_engine.py::test_killed_while_an_old_result_is_replaced_there_is_the_old_or_the_new",),
    ),
    Mutation(
        "tokenizer-not-in-the-settings",
        "a run is not resumed with another tokenizer",
        "models/spec.py",
        '"tokenizer": self.files.tokenizer.digest,',
        '"tokenizer": None,',
        ("jobs/test_score_command.py::test_another_tokenizer_on_resume_is_named",),
    ),
    Mutation(
        "fields-not-in-the-settings",
        "a run is not resumed with other fields of its rows",
        "jobs/inputs/cutting.py",
        "return settings_of(self)",
        "return {name: value for name, value in settings_of(self).items() if name != 'fields'}",
        ("jobs/test_settings.py::test_a_change_of_any_field_is_refused",),
    ),
    Mutation(
        "another-model-loaded",
        "a worker loads the model that the run was begun with",
        "models/spec.py",
        "files.check_same(model.files)",
        "files.directory",
        ("models/test_model.py::test_workers_load_what_the_run_was_begun_with",),
    ),
    Mutation(
        "model-replaced-while-loading",
        "a hash is of what was loaded",
        "models/files.py",
        'raise InputError(f"The model in {self.directory} was changed while it was loaded. Load it again.")',
        "return",
        ("models/test_model.py::test_a_model_replaced_between_hash_and_load_is_noticed",),
    ),
    Mutation(
        "replaced-input-read",
        "an input that was replaced since it was cut is not scored",
        "jobs/inputs/source.py",
        "if state_of(self.path) not in (None, self.state):",
        "if not self.name:",
        ("jobs/test_inputs.py::test_input_that_changes_is_told",),
    ),
    Mutation(
        "footer-unchecked",
        "a Parquet file with another footer is not scored, whatever its size and time",
        "jobs/inputs/parquet.py",
        "if _footer(path) != self.footer:",
        "if not self.footer:",
        ("jobs/test_inputs.py::test_a_parquet_file_replaced_while_it_is_read_is_told",),
    ),
    Mutation(
        "checksum-unchecked",
        "a changed digit of a line is noticed",
        "journal.py",
        "if not fields or found.get(CHECK) != _checksum(fields):",
        "if not fields:",
        (
            "jobs/test_engine.py::test_a_changed_digit_of_the_manifest_is_noticed",
            "apps/test_lm_eval.py::test_a_changed_digit_of_the_cache_is_noticed",
        ),
    ),
    Mutation(
        "index-unchecked",
        "a changed digit of the index of shards is noticed",
        "jobs/inputs/cutting.py",
        'and _noted(directory).digest == known["noted"]',
        "and _noted(directory) is not None",
        ("jobs/test_inputs.py::test_half_of_a_work_directory_is_made_again",),
    ),
    Mutation(
        "commutators-added",
        "the pilot of Auto sees that conditionals agree",
        "auto.py",
        "commutators = (changes - changes.transpose(-1, -2))",
        "commutators = (changes + changes.transpose(-1, -2))",
        ("core/test_estimate.py::test_auto_takes_orders_where_they_are_exact_and_tiles_where_not",),
    ),
    Mutation(
        "budget-left-over",
        "a small budget is spent in full",
        "design.py",
        "min(range(fewest, 2 * fewest), key=lambda count: rows % count)",
        "fewest",
        ("core/test_estimate.py::test_a_budget_is_spent_or_nearly",),
    ),
    Mutation(
        "settings-not-compared",
        "a run is not resumed with other settings",
        "jobs/store.py",
        "if known.get(name) != asked.get(name)]",
        "if known.get(name) != asked.get(name) and name not in asked]",
        ("jobs/test_engine.py::test_other_settings_are_refused_by_name",),
    ),
    Mutation(
        "input-not-compared",
        "a run is not resumed with another input",
        "jobs/run.py",
        "settings = {**plan.settings, INPUT: rows.digest}",
        "settings = {**plan.settings, INPUT: (known or {}).get(INPUT, rows.digest)}",
        ("jobs/test_engine.py::test_other_settings_are_refused_by_name",),
    ),
    Mutation(
        "changed-input-read",
        "an input that changed since it was cut is not scored",
        "jobs/inputs/source.py",
        "or check != shard.check",
        "or not check",
        ("jobs/test_inputs.py::test_input_that_changes_is_told",),
    ),
    Mutation(
        "duplicate-ids-accepted",
        "an id that was used before is refused",
        "jobs/inputs/source.py",
        "found.line not in again",
        "found.line in again",
        ("jobs/test_inputs.py::test_ids_used_twice_are_told_across_shards",),
    ),
    # Score entropies: the whole of time, and what is left at its end.
    Mutation(
        "terminal-term-missing",
        "what is left at the end of the integral is added",
        "noise/dse.py",
        "return last.gather(torch.ones(1).double(), _surplus(",
        "return last.gather(torch.zeros(1).double(), _surplus(",
        ("noise/test_dse.py::test_decomposition_against_exact_for_infinite_and_finite_noise",),
    ),
    Mutation(
        "time-cut",
        "the integral goes up to infinite noise",
        "noise/schedule.py",
        "last = 1.0 if math.isinf(until)",
        "last = 0.9 if math.isinf(until)",
        ("noise/test_dse.py::test_decomposition_against_exact_for_infinite_and_finite_noise",),
    ),
    Mutation(
        "noise-without-clean-rows",
        "rows without a hit count",
        "noise/design.py",
        "float(self.clean * len(table))",
        "float(2 * self.clean * len(table))",
        ("noise/test_noise_design.py::test_weights_integrate_what_depends_on_noise_alone",),
    ),
    Mutation(
        "noise-given-hits",
        "the noise given k hits is the k-th smallest of m uniform numbers",
        "noise/design.py",
        "(length + 1 - sizes).numpy()",
        "(length + 2 - sizes).numpy()",
        ("noise/test_noise_design.py::test_weights_integrate_what_depends_on_noise_alone",),
    ),
    Mutation(
        "mean-taken-for-posterior",
        "a mean is a distribution before the noised token is seen",
        "noise/process.py",
        "marginal = torch.logaddexp(log_mean + stays, token)",
        "marginal = torch.logaddexp(log_mean, token)",
        ("models/test_noise_models.py::test_the_mean_parametrisation_against_exact",),
    ),
    Mutation(
        "score-asked-beyond-what-it-knows",
        "a score of masking is not asked beyond the noise that it knows",
        "noise/scores.py",
        "asked = total.clamp(max=last)",
        "asked = total.clamp(max=1e3)",
        ("noise/test_dse.py::test_a_score_network_of_masking_to_the_end_of_its_schedule_against_exact",),
    ),
    Mutation(
        "rates-transposed",
        "jumps into a state are not those out of it",
        "noise/process.py",
        "(self.matrix - self.matrix.diagonal().diag()).T[noised]",
        "(self.matrix - self.matrix.diagonal().diag())[noised]",
        ("noise/test_dse.py::test_decomposition_against_exact_for_infinite_and_finite_noise",),
    ),
    Mutation(
        "loss-weight-of-time",
        "t-DCE weighs time by sigma (1 - lambda) / lambda",
        "train/losses.py",
        "self.schedule.rate(levels) * (1 - level) / level",
        "self.schedule.rate(levels) / level",
        ("train/test_loss.py::test_cross_entropies_are_unbiased_against_exact[t-dce]",),
    ),
    # Information and consistency.
    Mutation(
        "circulation-across-blocks",
        "circulations of a block model are those of pairs that have two orders",
        "quantities/consistency.py",
        "places = places[blocks[places[:, 0]] == blocks[places[:, 1]]]",
        "places = places + 0",
        ("quantities/test_block_quantities.py::test_circulations_lie_inside_blocks_against_enumeration",),
    ),
    Mutation(
        "prompt-beside-a-masked-row",
        "an audit without the prompt does not show it to a block model",
        "apps/audit/measure.py",
        "        if model.blocks is None:\n            return PromptedItem(item, Item(",
        "        if model.name:\n            return PromptedItem(item, Item(",
        ("quantities/test_block_quantities.py::test_an_audit_takes_the_prompt_out_of_the_row",),
    ),
    Mutation(
        "doctor-trusts-large-blocks",
        "the doctor finds blocks that are larger than those of the training",
        "models/doctor/wirings.py",
        "surely_above(self.back - 2 * self.ahead)",
        "surely_above(self.back - 4 * self.ahead)",
        ("models/test_doctor_blocks.py::test_a_wrong_block_size_is_found",),
    ),
    Mutation(
        "circulation-weights-dropped",
        "pairs have the law of neighbours in a random order",
        "quantities/consistency.py",
        "weight[here] *= ratio",
        "pass",
        ("quantities/test_consistency.py::test_weights_make_pairs_and_sizes_uniform",),
    ),
    Mutation(
        "influence-shares",
        "effects of context tokens add up to the mutual information",
        "quantities/influence.py",
        "_shapley(pair) * (count - 1) / 2",
        "_shapley(pair) * count / 2",
        ("quantities/test_information.py::test_drawn_influence_is_unbiased_and_adds_up",),
    ),
    Mutation(
        "information-left-off-by-one",
        "at size k fewer than k tokens are masked",
        "quantities/information.py",
        "bdtr(np.arange(tokens), tokens,",
        "bdtr(np.arange(1, tokens + 1), tokens,",
        ("quantities/test_information.py::test_information_left_against_quadrature",),
    ),
    # Statistics of audits.
    Mutation(
        "ties-count-nothing",
        "ties count half in an AUROC",
        "apps/audit/separation.py",
        "torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)",
        "2 * torch.searchsorted(ordered, values)",
        ("apps/test_separation.py::test_values_against_peers",),
    ),
    Mutation(
        "given-labelling-forgotten",
        "a permutation p-value is never 0",
        "apps/audit/separation.py",
        "(1 + extreme) / (1 + count)",
        "extreme / count",
        ("apps/test_separation.py::test_forgetting_the_given_labelling_is_caught",),
    ),
    Mutation(
        "conformal-row-forgotten",
        "a conformal p-value is exact, and never 0",
        "apps/audit/separation.py",
        "(1 + higher).double() / (len(reference) + 1)",
        "higher.double() / len(reference)",
        ("apps/test_separation.py::test_conformal_p_values_against_enumeration",),
    ),
    Mutation(
        "permuted-across-clusters",
        "labels are dealt within what rows share",
        "apps/audit/separation.py",
        "dtype=torch.float64) + block",
        "dtype=torch.float64) + 0 * block",
        ("apps/test_separation.py::test_clustered_p_values_against_enumeration",),
    ),
    Mutation(
        "many-features-unadjusted",
        "p-values are adjusted for their number",
        "apps/audit/separation.py",
        "(len(p_values) - place) * p_values[n]",
        "p_values[n]",
        ("apps/test_separation.py::test_adjusted_p_values_against_peer",),
    ),
)


@dataclasses.dataclass(frozen=True)
class Found:
    """What came of a mutation."""

    outcome: Outcome
    told: str
    """The test that failed, or what went wrong."""
    seconds: float = 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", choices=[one.name for one in MUTATIONS])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print the mutations and the properties that they break")
    given = parser.parse_args()
    chosen = [one for one in MUTATIONS if not given.only or one.name in given.only]
    width = max(len(one.name) for one in chosen)
    if given.list:
        print("\n".join(f"{one.name:{width}}  {one.breaks}" for one in chosen))
        return 0
    killed = 0
    os.environ["OMP_NUM_THREADS"] = "1"
    FORKS.set_forkserver_preload(["torch", "scipy.stats", "pytest", "typer.testing"])
    with tempfile.TemporaryDirectory() as scratch:
        trees = [Path(scratch) / str(number) for number in range(max(1, given.jobs))]
        copy_sources(ROOT, trees[0])
        if failing := unmutated(trees[0], chosen, jobs=given.jobs):
            print(f"Without a mutation these fail, so that nothing can be said:\n{failing}", file=sys.stderr)
            return 1
        for tree in trees[1:]:
            shutil.copytree(trees[0], tree)
        for one, found in outcomes(chosen, trees):
            print(f"{found.outcome:8}  {one.name:{width}}  {found.seconds:5.1f} s  {found.told}", flush=True)
            killed += found.outcome == "killed"
    print(f"{killed} of {len(chosen)} killed")
    return 0 if killed == len(chosen) else 1


def copy_sources(root: Path, tree: Path) -> None:
    for name in COPIED:
        if (root / name).is_dir():
            shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(root / name, tree / name)


def unmutated(tree: Path, chosen: list[Mutation], *, jobs: int) -> str:
    """What fails in the sources as they are. It also leaves compiled modules behind, which later runs read."""
    tests = dict.fromkeys(test for one in chosen for test in one.tests)
    code, output = run_tests(tree, [*tests], "-n", str(jobs), compiled=True)
    return "" if code == 0 else "\n".join(failures(output)) or output


def outcomes(chosen: list[Mutation], trees: list[Path]) -> Iterator[tuple[Mutation, Found]]:
    """As many at a time as there are copies; in order."""
    idle: queue.Queue[Path] = queue.Queue()
    for tree in trees:
        idle.put(tree)

    def one(mutation: Mutation) -> Found:
        tree = idle.get()
        try:
            return outcome(mutation, tree)
        finally:
            idle.put(tree)

    with concurrent.futures.ThreadPoolExecutor(len(trees)) as pool:
        yield from zip(chosen, pool.map(one, chosen), strict=True)


def outcome(mutation: Mutation, tree: Path) -> Found:
    """Mutate, test, and put everything back."""
    begin, path = time.monotonic(), mutation.source(tree)
    if (count := mutation.found(tree)) != 1:
        return Found("moved", f"{mutation.file} holds the text to replace {count} times: {mutation.old}")
    before, known = path.read_text(), path.stat()
    path.write_text(before.replace(mutation.old, mutation.new))
    try:
        code, output = run_tests(tree, [*mutation.tests], "-x", "-n", "0", compiled=False)
    finally:
        path.write_text(before)
        os.utime(path, ns=(known.st_atime_ns, known.st_mtime_ns))  # so that what was compiled of it still counts
    seconds = time.monotonic() - begin
    if code == 0:
        return Found("survived", f"{mutation.breaks}: {', '.join(mutation.tests)} did not notice", seconds)
    if code != 1:
        return Found("broken", f"exit code {code}\n{output}", seconds)
    return Found("killed", next(iter(failures(output)), "?"), seconds)


def run_tests(tree: Path, tests: list[str], *options: str, compiled: bool) -> tuple[int | None, str]:
    """The exit code and the output of pytest in a copy. `compiled`: keep what Python compiles."""
    heard = tree / "output"
    words = ["-q", "-p", "no:cacheprovider", *options, *(str(tree / "tests" / test) for test in tests)]
    process = FORKS.Process(target=pytest_in, args=(tree, words, heard, compiled))
    process.start()
    process.join(PATIENCE)
    process.kill()  # if there was no end
    process.join()
    return process.exitcode, heard.read_text()


def pytest_in(tree: Path, words: list[str], heard: Path, compiled: bool) -> None:
    """Run pytest in this process, which was made for it, with a copy of the sources."""
    import pytest

    with heard.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.dont_write_bytecode = not compiled
    os.environ["PYTHONDONTWRITEBYTECODE"] = "" if compiled else "1"
    os.environ["PYTHONPATH"] = str(tree / "src")
    os.environ["COLUMNS"] = "300"  # of the summary
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree / "tests")]
    sys.exit(int(pytest.main(words)))


def failures(output: str) -> list[str]:
    """What pytest's summary tells of failed tests."""
    return re.findall(r"^(?:FAILED|ERROR) (?:\S*/)?tests/(.*)$", output, flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
