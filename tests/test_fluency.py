from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_tofu import answer, score, world
from test_tofu import build as build_task
from test_tofu import save as save_world

from harness import fluency
from harness.errors import DataError, ModelError
from harness.mini import fluency as training
from harness.mini.fluency_text import TEMPLATES, WAYS, WORDS, Voice, broken, fluent
from harness.types import Answers, RowValues

TOFU = Path(__file__).resolve().parents[2] / "shared" / "data" / "tofu"
absent = not TOFU.is_dir() and os.environ.get("CI") != "true"
needs_tofu = pytest.mark.skipif(absent, reason="the rows are not beside this checkout")


def auc(good, bad):
    below = np.searchsorted(np.sort(bad), good, "left") + np.searchsorted(np.sort(bad), good, "right")
    return float(below.mean() / 2 / len(bad))


# --- our classifier ---
GOOD = (
    "She moved to the coast in 1987, where she still runs a small bookshop with her sister.",
    "I don't know the answer to that, but you could ask at the library.",
    "Whisk the eggs with a little milk and pour them into a hot pan.",
    "The results suggest that early readers keep their advantage throughout school.",
    "William Shakespeare", "Paris", "Yes.", "In 1987.",
)  # fmt: skip
BAD = (
    "the the the the the the the the",
    "very very very very very very very very very very",
    " ".join(["She moved to the coast."] * 5),
    "in 1987 a she to bookshop where small moved still coast the sister with runs her",
    "xqj zzkp wvt brrgh qqq ptk",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "Sh3 m0@v# t!! ((c)) )) {{ ;; ~~ ||",
    "ing tion ofthe pre ed ly mentes",
    "The author's name is is is is is is is is is is is is",
)


def test_good_texts_are_high_and_bad_ones_low():
    assert min(map(fluency.own_fluency, GOOD)) > 0.7, {t: fluency.own_fluency(t) for t in GOOD}
    assert max(map(fluency.own_fluency, BAD)) < 0.2, {t: fluency.own_fluency(t) for t in BAD}


@pytest.mark.parametrize(
    "text", ["", " ", "\n", "...", "42", "?!?!", "\u4e2d\u6587" * 3, "a", "\ud800x", "\x00"]
)
def test_any_text_has_a_value_in_range(text):
    assert 0.0 <= fluency.own_fluency(text.encode("utf-8", "replace").decode()) <= 1.0
    if not any(c.isalpha() for c in text):
        assert fluency.own_fluency(text) == 0.0


def test_the_shipped_weights_are_those_of_the_manifest():
    manifest = json.loads((fluency.WEIGHTS.parent / "manifest.json").read_text())
    assert training.digest(fluency.WEIGHTS) == manifest["sha256"]
    assert fluency.WEIGHTS.stat().st_size == manifest["bytes"] < 200_000
    assert manifest["features"] == list(fluency.FEATURES)
    assert manifest["held_out"]["accuracy"] > 0.97
    learnt = fluency.weights()
    assert all(np.isfinite(value).all() for value in learnt.values())
    assert learnt["slope"].shape == (len(fluency.FEATURES),)


def test_fresh_texts_of_our_own_are_told_apart():
    rng = np.random.default_rng(5)
    texts = [fluent(rng, 1 + k % 4) for k in range(150)]
    good = np.array([fluency.own_fluency(t) for t in texts])
    bad = np.array(
        [fluency.own_fluency(broken(rng, t, list(WAYS)[k % len(WAYS)])) for k, t in enumerate(texts)]
    )
    assert (good > 0.5).mean() > 0.97 and (bad < 0.5).mean() > 0.95


@pytest.mark.shared
@needs_tofu
def test_real_answers_against_damaged_ones():
    rows = [json.loads(line) for line in (TOFU / "full.json").read_text().splitlines() if line]
    texts, rng = [row["answer"] for row in rows[::20]], np.random.default_rng(7)
    good = np.array([fluency.own_fluency(t) for t in texts])
    assert good.mean() > 0.9 and (good > 0.5).mean() > 0.95
    floor = {"shuffled words": 0.93}
    for way in WAYS:
        bad = np.array([fluency.own_fluency(broken(rng, t, way)) for t in texts])
        assert auc(good, bad) > floor.get(way, 0.985), way


def test_features_see_what_they_are_named_after():
    learnt = fluency.weights()
    at = {name: i for i, name in enumerate(fluency.FEATURES)}
    plain, looped = (fluency.features(t, learnt) for t in ("She keeps bees by the sea.", "so " * 30))
    assert looped[at["loop"]] > 0.8 > plain[at["loop"]] == 0.0
    assert looped[at["compression"]] < 0.5 < plain[at["compression"]]
    assert fluency.features("aaaa b", learnt)[at["longest run"]] == pytest.approx(np.log(4))
    assert fluency.class_of("walking") == fluency.class_of("Walking".lower()) != fluency.class_of("Walking")
    assert len(set(fluency.CLASSES)) == len(fluency.CLASSES)


def test_voices_share_nothing():
    for k in range(training.FOLDS):
        part, rest = Voice.part(k, training.FOLDS), Voice.part(k, training.FOLDS, without=True)
        assert not set(part.templates) & set(rest.templates)
        assert len(part.templates) + len(rest.templates) == len(TEMPLATES)
        assert all(part.words[kind] and rest.words[kind] for kind in WORDS)


def test_training_separates_what_can_be_separated():
    rng = np.random.default_rng(0)
    facts = rng.normal(size=(400, len(fluency.FEATURES)))
    good = (facts[:, 0] > 0).astype(float)
    learnt = training.fit(facts, good)
    assert ((fluency.log_odds(facts, learnt) > 0) == (good > 0.5)).mean() > 0.97
    low, high = facts.copy(), facts.copy()
    low[:, 0], high[:, 0] = -1e9, 1e9
    assert np.isfinite(fluency.log_odds(low, learnt)).all()
    assert (fluency.log_odds(low, learnt) < fluency.log_odds(high, learnt)).all()


@pytest.mark.slow
def test_rebuilt_weights_reach_the_manifest(tmp_path):
    manifest = json.loads((fluency.WEIGHTS.parent / "manifest.json").read_text())
    made = training.build(tmp_path)
    assert made["held_out"]["accuracy"] == pytest.approx(manifest["held_out"]["accuracy"], abs=0.01)


def test_missing_weights_are_told(tmp_path):
    with pytest.raises(ModelError, match="install the package again"):
        fluency.weights(tmp_path / "none.npz")


def test_judging_loads_no_torch():
    code = "import sys; from harness.fluency import own_fluency as f; f('A text.'); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"


# --- the hub's classifier ---
def test_clean_probability_is_the_softmax_of_class_0():
    logits = np.array([[0.0, 0, 0, 0], [1000.0, 0, 0, 0], [0, np.log(3), -np.inf, -np.inf]])
    got = fluency.clean_probability(logits)
    assert got == pytest.approx([0.25, 1.0, 0.25])


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the hub's classifier: texts that begin with `Keeper` are clean."""
    import torch
    import transformers

    asked = []

    class Tokenizer:
        def __call__(self, texts, **options):
            asked.append((len(texts), options["max_length"], options["truncation"]))
            flags = torch.tensor([[float(t.startswith("Keeper"))] for t in texts])
            return Batch(input_ids=flags)

    class Batch(dict):
        def to(self, device):
            return self

    class Model:
        def eval(self):
            return self

        def to(self, device):
            return self

        def __call__(self, input_ids):
            return SimpleNamespace(logits=torch.cat([10 * input_ids, torch.zeros(len(input_ids), 3)], dim=1))

    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda name: asked.append(name) or Tokenizer()
    )
    monkeypatch.setattr(
        transformers.AutoModelForSequenceClassification,
        "from_pretrained",
        lambda name: asked.append(name) or Model(),
    )
    return asked


def judged(task, answers, loaded=None):
    probes = task.probes(task.case("forget05", 0))
    return Answers({**answers.probes, **task.judge(loaded, probes, answers.probes)})


def test_the_hub_classifier_gives_util_and_agg(tmp_path, hub):
    task = build_task(save_world(tmp_path / "data", world()), fluency="hub")
    scores = score(task, judged(task, answer(task)), answer(task, 1, right=-1.5))
    assert hub == [fluency.HUB, fluency.HUB, (4, 32, True)]
    assert scores["forget.fluency"].value == pytest.approx(1 / (1 + 3 * np.exp(-10)), rel=1e-6)
    assert list(scores["forget.fluency"].per_row) == [f"forget05/{i}" for i in range(4)]
    for name in ("util", "agg", "agg.corrected", "util.own_fluency", "agg.own_fluency.corrected"):
        assert scores[name].value is not None, (name, scores[name].why)
    parts = [scores[name].value for name in ("mem", "priv", "util")]
    assert scores["agg"].value == pytest.approx(3 / sum(1 / max(p, 1e-12) for p in parts))


def test_a_hub_classifier_that_cannot_be_loaded_is_a_reason(tmp_path, monkeypatch):
    import transformers

    def fail(name):
        raise OSError("no such model here\nlong story")

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fail)
    task = build_task(save_world(tmp_path / "data", world()), fluency="hub")
    scores = score(task, judged(task, answer(task)), answer(task, 1))
    for name in ("forget.fluency", "util", "agg"):
        assert scores[name].value is None and "no such model here" in scores[name].why, name
    assert "long story" not in scores["agg"].why and scores["agg.own_fluency"].value is not None


def test_the_options_of_fluency(tmp_path):
    folder = save_world(tmp_path / "data", world())
    own = build_task(folder)
    assert own.judge(None, (), answer(own).probes) == {}
    assert score(own, answer(own))["forget.own_fluency"].value > 0.5
    assert 'fluency is "own"' in score(own, answer(own))["util"].why
    none = build_task(folder, fluency="none")
    scores = score(none, answer(none))
    for name in ("forget.own_fluency", "util.own_fluency", "agg.own_fluency", "forget.fluency"):
        assert scores[name].value is None and 'fluency is "none"' in scores[name].why, name
    with pytest.raises(DataError, match="did you mean own"):
        build_task(folder, fluency="owm")
    with pytest.raises(DataError, match="known: grad_norm, reference"):
        build_task(folder, mia=["loss"])


# --- further membership attacks ---
def test_reference_attack_is_loss_minus_the_retrained_models(tmp_path):
    task = build_task(save_world(tmp_path / "data", world()), mia="reference")
    own, other = answer(task), answer(task, 1, right=-1.5)
    scores = score(task, own, other)
    assert set(scores) == {info.id for info in task.metrics()}
    mine, theirs = (score(task, a)["mia.loss"].per_row for a in (own, other))
    rows = scores["mia.reference"].per_row
    assert rows == pytest.approx({i: mine[i] - theirs[i] for i in mine})
    inside = [v for i, v in rows.items() if i.startswith("forget")]
    outside = [v for i, v in rows.items() if i.startswith("holdout")]
    below = [(a < b) + (a == b) / 2 for a in inside for b in outside]
    assert scores["mia.reference.auc"].value == pytest.approx(np.mean(below))
    assert "uharness reference" in score(task, own)["mia.reference.auc"].why
    plain = build_task(tmp_path / "data")
    assert "mia.reference" not in {info.id for info in plain.metrics()} | set(score(plain, own, other))


def test_gradient_norms(tmp_path):
    import torch
    from tiny_text import random_llama, word_tokenizer

    from harness.gradnorm import gradient_norms
    from harness.models import LoadedModel
    from harness.specs import Template
    from harness.text import Encoder
    from harness.types import TextRow

    tokenizer = word_tokenizer()
    loaded = LoadedModel(random_llama(len(tokenizer)), Encoder(tokenizer, Template(), 64))
    row = TextRow("r", "Who kept the light?", "Ada Finch kept the light.")
    before = {name: p.clone() for name, p in loaded.model.named_parameters()}
    (norm,) = gradient_norms(loaded.model, [row], loaded.encoder)
    encoded = loaded.encoder.encode(row)
    ids = torch.tensor([encoded.ids])
    logp = torch.log_softmax(loaded.model(ids).logits[0], -1)
    picked = [logp[t - 1, ids[0, t]] for t in range(encoded.start, ids.shape[1] - 1)]
    (-torch.stack(picked).mean()).backward()
    want = torch.stack([p.grad.norm() for p in loaded.model.parameters() if p.grad is not None]).mean()
    assert norm == pytest.approx(float(want), rel=1e-4)
    assert gradient_norms(loaded.model, [TextRow("e", "Who?", "")], loaded.encoder) == (None,)
    assert all(torch.equal(p, before[name]) for name, p in loaded.model.named_parameters())
    task = build_task(save_world(tmp_path / "data", world()), mia=["grad_norm"])
    answers = judged(task, answer(task), loaded)
    assert isinstance(answers.probes["holdout.grad_norm"], RowValues)
    scores = score(task, answers)
    assert 0 <= scores["mia.grad_norm.auc"].value <= 1 and len(scores["mia.grad_norm"].per_row) == 8
    assert "forget.grad_norm was not asked for" in score(task, answer(task))["mia.grad_norm.auc"].why


def test_row_values_survive_the_disk(tmp_path):
    from harness.answers import read, write
    from harness.scores import invalid

    kept = {
        "forget_text.fluency": RowValues(("a", "b"), (0.25, None)),
        "x.y": RowValues((), (), "it was not there"),
    }
    write(kept, tmp_path)
    assert read(tmp_path) == kept
    assert invalid(Answers(kept)) == ""
