from __future__ import annotations

import math
import warnings
import zlib

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from harness.metrics import composites, mean_score, memorization, metric_info, privacy, text, utility
from harness.types import TokenScores

VOCAB = 7


def tokens(*rows, vocab=VOCAB):
    """`TokenScores` of rows given as (logp, hit, ends with EOS)."""
    logp = [np.asarray(r[0], np.float32) for r in rows]
    eos = [[*([False] * (len(r[0]) - 1)), r[2]][: len(r[0])] for r in rows]
    count = sum(map(len, logp))
    return TokenScores(
        np.concatenate(logp) if rows else np.zeros(0, np.float32),
        np.array([h for r in rows for h in r[1]], dtype=bool),
        np.array([e for row in eos for e in row], dtype=bool),
        np.full(count, -math.log(vocab), np.float32),
        np.full(count, 0.25, np.float32),
        np.cumsum([0, *map(len, logp)]).astype(np.int64),
    )


def greedy(labels, said, eos=False):
    """One row whose hits are where `said` equals `labels`."""
    return tokens(([-1.0] * len(labels), [a == b for a, b in zip(labels, said, strict=True)], eos))


PERFECT = tokens(([0.0] * 5, [True] * 5, True))
UNIFORM = tokens(([-math.log(VOCAB)] * 5, [False] * 5, True))
EMPTY = tokens(([], [], False))
ONE_TOKEN = tokens(([-0.5], [True], False))
EOS_ONLY = tokens(([-0.5], [True], True))

BY_ROW = {
    "loss": (memorization.loss, 0.0, math.log(VOCAB), 0.5, 0.5),
    "probability": (memorization.probability, 1.0, 1 / VOCAB, math.exp(-0.5), math.exp(-0.5)),
    "es": (memorization.extraction_strength, 1.0, 0.0, 1.0, None),
    "es.published": (memorization.extraction_strength_published, 1.0, 0.25, None, None),
    "em": (memorization.exact_memorization, 1.0, 0.0, 1.0, None),
    "em.published": (memorization.exact_memorization_published, 1.0, 0.0, None, None),
    "min_k": (privacy.min_k, 0.0, math.log(VOCAB), 0.5, None),
    "min_k_pp": (privacy.min_k_pp, -2 * math.log(VOCAB), 0.0, 1.0 - 2 * math.log(VOCAB), None),
}


@pytest.mark.parametrize("name", BY_ROW)
def test_ends(name):
    metric, perfect, uniform, one, eos_only = BY_ROW[name]
    assert metric(PERFECT) == [pytest.approx(perfect, abs=1e-6)]
    assert metric(UNIFORM) == [pytest.approx(uniform, abs=1e-6)]
    assert metric(ONE_TOKEN) == [one if one is None else pytest.approx(one, abs=1e-6)]
    assert metric(EOS_ONLY) == [eos_only if eos_only is None else pytest.approx(eos_only, abs=1e-6)]
    assert metric(EMPTY) == [None]
    assert metric(tokens()) == []


@pytest.mark.parametrize("name", BY_ROW)
def test_a_broken_model_gets_no_value(name):
    broken = tokens(([math.nan, -1.0, -1.0], [False, False, False], True), ([-1.0, -1.0], [True, True], True))
    values = BY_ROW[name][0](broken)
    assert math.isnan(values[0]) and math.isfinite(values[1])
    score = mean_score(dict(enumerate(values)))
    assert score.value is None and score.why == "1 of 2 rows are not finite"
    assert score.per_row == {0: None, 1: values[1]}


def test_extraction_strength_reaches_zero_and_published_does_not():
    labels = [5, 6, 7, 8]
    ours, theirs = memorization.extraction_strength, memorization.extraction_strength_published
    assert ours(greedy(labels, [1, 1, 1, 1])) == [0.0]
    assert ours(greedy(labels, [1, 1, 7, 8])) == [0.5]
    assert ours(greedy(labels, labels)) == [1.0]
    with_eos = [*labels, 2]
    assert theirs(greedy(with_eos, [1, 1, 1, 1, 2], eos=True)) == [0.25]
    assert theirs(greedy(with_eos, [1, 1, 7, 8, 1], eos=True)) == [0.5]
    assert theirs(greedy(with_eos, [*labels, 1], eos=True)) == [1.0]
    assert ours(greedy(with_eos, [1, 1, 1, 1, 2], eos=True)) == [0.0]


def test_published_rules_lose_the_last_token_of_plain_text():
    row = tokens(([-3.0, -1.0, -9.0], [True, True, False], False))
    assert memorization.extraction_strength(row) == [0.0]
    assert memorization.extraction_strength_published(row) == [1.0]
    assert memorization.exact_memorization(row) == [pytest.approx(2 / 3)]
    assert memorization.exact_memorization_published(row) == [1.0]
    assert privacy.min_k(row) == [9.0] and privacy.min_k(row, published=True) == [3.0]
    assert privacy.min_k_pp(row) != privacy.min_k_pp(row, published=True)
    assert memorization.loss(row) == [pytest.approx(13 / 3)]


def test_min_k_takes_at_least_one_token_and_rounds_down():
    row = tokens(([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -0.1], [True] * 7, True))
    assert privacy.min_k(row) == [pytest.approx(5.5)]  # int(.4 * 6) = 2 tokens
    assert privacy.min_k(row, k=0.01) == [pytest.approx(6.0)]


def test_min_k_pp_standardises_and_clamps_the_variance():
    row = TokenScores(
        np.array([-4.0, -1.0, -0.1], np.float32), np.ones(3, bool), np.array([False, False, True]),
        np.array([-2.0, -2.0, -2.0], np.float32), np.array([4.0, 0.0, 1.0], np.float32), np.array([0, 3]),
    )  # fmt: skip
    assert privacy.min_k_pp(row) == [pytest.approx(1.0)]
    assert privacy.min_k_pp(row, k=1.0) == [pytest.approx(-(-1.0 + 1000.0) / 2)]


def test_zlib_divides_by_the_compressed_size():
    assert privacy.zlib(UNIFORM, ["The grey heron."]) == [
        pytest.approx(math.log(VOCAB) / len(zlib.compress(b"The grey heron.")))
    ]
    assert privacy.zlib(EMPTY, [""]) == [None]


def test_truth_ratio_variants():
    assert memorization.truth_ratio([1.0], [[2.0, 4.0]]) == [pytest.approx(0.1353, abs=5e-5)]
    assert memorization.truth_ratio([1.0], [[2.0, 4.0]], "arithmetic") == [pytest.approx(0.2088, abs=5e-5)]
    assert memorization.truth_share(memorization.truth_ratio([1.0], [[2.0, 4.0]])) == [
        pytest.approx(0.881, abs=5e-4)
    ]
    assert memorization.truth_ratio([None, 1.0, 1.0], [[1.0], [None, 1.0], []]) == [None, None, None]


def test_truth_ratio_aggregates():
    ratios = [0.5, 2.0, 0.25]
    assert np.mean(memorization.forget_truth_ratio(ratios)) == pytest.approx(0.4167, abs=5e-5)
    assert np.mean(memorization.retain_truth_ratio(ratios)) == pytest.approx(0.4167, abs=5e-5)
    assert memorization.forget_truth_ratio([0.0, None]) == [0.0, None]
    assert memorization.retain_truth_ratio([0.0, None, 5.0]) == [1.0, None, 0.0]


def test_option_probability():
    assert memorization.option_probability([0.6], [[0.2, 0.1, 0.1]]) == [pytest.approx(0.6)]
    assert memorization.option_probability([0.0, None, 0.5], [[0.0], [0.1], [None]]) == [0.0, None, None]


def test_auc_orientation():
    assert privacy.auc([0.1, 0.2], [3.0, 4.0]).value == 1.0
    assert privacy.auc([3.0, 4.0], [0.1, 0.2]).value == 0.0
    assert privacy.auc([1.0, 2.0, 2.0], [1.0, 2.0, 2.0]).value == 0.5
    assert privacy.auc([1.0, None], [2.0, None]).value == 1.0
    assert "no hold-out row" in privacy.auc([1.0], [None]).why
    assert "not finite" in privacy.auc([math.inf], [1.0]).why


def test_privleak_values():
    news, books = 1 - 0.4772, 1 - 0.5393
    assert privacy.privleak(1.0, news).value == pytest.approx(-100)
    assert privacy.privleak(0.0, news).value == pytest.approx(109.56, abs=0.005)
    assert privacy.privleak(0.0, books).value == pytest.approx(85.43, abs=0.005)
    assert privacy.privleak(0.5, news).value == pytest.approx(4.78, abs=0.005)
    assert privacy.privleak(0.5, books).value == pytest.approx(-7.29, abs=0.005)
    assert privacy.privleak(0.00002, 0.5).value == pytest.approx(99.996)


def test_privleak_without_a_usable_reference_is_null():
    assert privacy.privleak(0.3, None).value is None
    assert privacy.privleak(None, 0.5).value is None
    score = privacy.privleak(0.3, 1.0)
    assert score.value is None and "reference AUC is 1" in score.why


SEPARATED = {2: 0.333, 3: 0.1, 4: 0.0286, 5: 0.0079, 10: 1.08e-5, 20: 1.45e-11, 40: 1.86e-23}


@pytest.mark.parametrize(("n", "p"), [*SEPARATED.items(), (200, 1.943e-119), (400, 1.064e-239)])
def test_forget_quality_of_separated_samples_is_the_floor(n, p):
    result = privacy.forget_quality(list(np.arange(n) / n), list(2 + np.arange(n) / n))
    assert result.p == pytest.approx(p, rel=0.01) and result.d == 1.0
    assert result.log10p == pytest.approx(math.log10(result.p), abs=1e-6)
    assert (result.n, result.m) == (n, n)


def test_forget_quality_does_not_underflow():
    result = privacy.forget_quality(list(np.linspace(0, 1, 700)), list(np.linspace(2, 3, 700)))
    assert result.p == pytest.approx(0, abs=1e-300)
    assert result.log10p == pytest.approx(
        (math.log(2) - math.lgamma(1401) + 2 * math.lgamma(701)) / math.log(10)
    )


def test_forget_quality_needs_both_sides():
    assert "reference" in privacy.forget_quality([0.5], [])
    assert "the model" in privacy.forget_quality([None], [0.5])
    assert "not finite" in privacy.forget_quality([math.nan], [0.5])
    same = privacy.forget_quality([0.4, 0.7, 0.2], [0.4, 0.7, 0.2])
    assert (same.p, same.log10p, same.d) == (1.0, 0.0, 0.0)


def test_harmonic_mean_is_strict():
    assert utility.harmonic_mean({"a": 0.6, "b": 0.0, "c": 0.5}).value == 0.0
    for bad, shown in (
        (-0.1, "b is -0.1"),
        (math.nan, "b is nan"),
        (None, "b is missing"),
        (math.inf, "b is inf"),
    ):
        score = utility.harmonic_mean({"a": 0.6, "b": bad, "c": 0.5})
        assert (score.value, score.why) == (None, shown)
    assert utility.harmonic_mean({}).value is None


def test_model_utility_needs_all_nine():
    nine = dict.fromkeys(utility.MODEL_UTILITY_PARTS, 0.5)
    assert utility.model_utility(nine).value == 0.5
    assert utility.model_utility({**nine, "forget.prob": 0.0}).value == 0.5
    nine.pop("world_facts.truth_ratio")
    assert utility.model_utility(nine).why == "world_facts.truth_ratio is missing"


@pytest.mark.parametrize(
    ("parts", "agg"),
    [
        ((0.7160, 0.8468, 0.6673), 0.7360),
        ((0.6362, 0.9999, 0.6753), 0.7402),
        ((0.8440, 0.6856, 0.6444), 0.7151),
        ((0.6920, 0.9010, 0.6474), 0.7318),
    ],
)
def test_published_composites(parts, agg):
    assert composites.floored_harmonic_mean(dict(enumerate(parts))).value == pytest.approx(agg, abs=5e-5)


def test_composites():
    assert composites.mem(0.5, 0.5, 0.5, 0.5).value == pytest.approx(0.5)
    assert composites.mem(1.0, 0.5, 0.5, 0.5).value == pytest.approx(0.0, abs=1e-11)
    assert composites.mem(0.5, None, 0.5, 0.5).why == "1 - exact memorisation is missing"
    assert composites.priv({"loss": 0.5, "zlib": 0.9}, {"loss": 0.5, "zlib": 0.4}).value == pytest.approx(
        2 / 3
    )
    assert composites.priv({"loss": 0.5}, {}).value is None
    assert composites.ds_es(0.3, 0.6).value == pytest.approx(50.0)
    assert composites.ds_es(None, 0.6).value is None
    assert composites.eq(0.5, 0.5, 0.5, 0.5).value == pytest.approx(5.0)
    assert composites.rq(0.5, 0.5).value == pytest.approx(5.0)
    assert composites.sbq(8.0, 6.0).value == pytest.approx(math.sqrt(50))
    assert composites.sbq(None, 6.0).value is None


def test_rouge_of_wordless_answers_is_zero():
    said = ["", " ", ".", "...", "\n"]
    assert text.rouge(said, ["Stephen King"] * 5) == [0.0] * 5
    assert sum(text.empty(said)) == 5
    assert text.rouge(["", "a"], ["", "..."]) == [0.0, 0.0]


def test_rouge_variants():
    assert text.rouge(["He run daily"], ["He runs daily"], part="f1", stem=False) == [pytest.approx(2 / 3)]
    assert text.rouge(["He run daily"], ["He runs daily"], part="f1") == [1.0]
    assert text.rouge(["Paris Rome Oslo Bonn"], ["Paris"]) == [1.0]
    assert text.rouge(["Paris Rome Oslo Bonn"], ["Paris"], part="f1") == [pytest.approx(0.4)]
    assert text.rouge(["b a"], ["a b"]) == [0.5] and text.rouge(["b a"], ["a b"], kind="rouge1") == [1.0]
    assert text.empty(["Да", "日本", "7", "_"]) == [0.0, 0.0, 0.0, 1.0]


def test_infos_come_from_the_function():
    info = metric_info(memorization.probability, "forget.prob", "lower")
    assert (info.low, info.high, info.unit, info.direction) == (0.0, 1.0, "probability", "lower")
    assert info.text.startswith("Geometric mean") and "open-unlearning" in info.source


def test_mean_score_counts_what_it_averages():
    assert mean_score({"a": 1.0, "b": None, "c": 0.0}).n == 2
    assert mean_score({"a": None}).why == "none of 1 rows has a value"
    assert mean_score(None, "not asked").why == "not asked"
    assert mean_score({"a": 0.5}, shown={"a": 2.0}).per_row == {"a": 2.0}


# --- invariants and oracles ---
values = st.lists(st.floats(0, 50, allow_nan=False), min_size=1, max_size=30)
shares = st.dictionaries(st.text("abcdefg", min_size=1), st.floats(1e-6, 1), min_size=1, max_size=9)
answer = st.lists(st.tuples(st.floats(-30, 0), st.booleans()), min_size=1, max_size=12)


@given(values, values)
def test_auc_is_the_mann_whitney_statistic(members, others):
    u = scipy.stats.mannwhitneyu(others, members).statistic / (len(members) * len(others))
    assert privacy.auc(members, others).value == pytest.approx(u, abs=1e-9)
    assert privacy.auc(others, members).value == pytest.approx(1 - u, abs=1e-9)


@given(values, values)
def test_forget_quality_is_scipys_exact_test(own, reference):
    result = privacy.forget_quality(own, reference)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # its fallback, where p is all but 1
        oracle = scipy.stats.ks_2samp(own, reference, method="exact")
    assert result.p == pytest.approx(oracle.pvalue) and result.d == pytest.approx(oracle.statistic)
    assert result.log10p <= 0


@given(shares)
def test_harmonic_mean_is_scipys_and_between_the_ends(parts):
    got = utility.harmonic_mean(parts).value
    assert got == pytest.approx(scipy.stats.hmean(list(parts.values())))
    assert min(parts.values()) * (1 - 1e-9) <= got <= max(parts.values()) * (1 + 1e-9)


@given(answer, st.booleans())
def test_memorisation_invariants(row, eos):
    scores = tokens(([x for x, _ in row], [h for _, h in row], eos))
    (es,), (em,) = memorization.extraction_strength(scores), memorization.exact_memorization(scores)
    (published,) = memorization.extraction_strength_published(scores)
    assert (es is None) == (em is None)
    if es is not None:
        assert 0 <= es <= em <= 1
    if published is not None:
        assert 1 / (len(row) - 1) - 1e-12 <= published <= 1
        if eos and es:
            assert published == pytest.approx(es)
    (p,) = memorization.probability(scores)
    assert 0 <= p <= 1
    (lowest,), (mean,) = privacy.min_k(scores, k=0.4) if not eos else [0.0], memorization.loss(scores)
    assert eos or lowest >= mean - 1e-5


@given(st.lists(st.floats(0, 20), min_size=1, max_size=6), st.floats(0, 20))
def test_truth_ratio_means_are_ordered(wrong, right):
    (geometric,) = memorization.truth_ratio([right], [wrong])
    (arithmetic,) = memorization.truth_ratio([right], [wrong], "arithmetic")
    assert 0 <= geometric <= arithmetic * (1 + 1e-9)
    assert 0 <= memorization.forget_truth_ratio([geometric])[0] <= 1
    assert 0 <= memorization.retain_truth_ratio([geometric])[0] <= 1


@given(st.text(max_size=40), st.text(max_size=40))
def test_rouge_never_raises_and_stays_in_range(said, right):
    for kind in ("rougeL", "rouge1"):
        for part in ("recall", "f1"):
            assert 0.0 <= text.rouge([said], [right], kind=kind, part=part)[0] <= 1.0
