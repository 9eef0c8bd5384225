"""The shipped small language models: unchanged, small, and able to do what the manifest says."""

import hashlib
import json
import math
from pathlib import Path

import pytest
import torch

from harness.errors import InvalidRun, ModelError
from harness.mini import documents, families, language, language_scores, llama, manifest, world
from harness.mini.documents import Document
from harness.mini.llama import Shape, Training
from harness.models import MINI, load, resolve
from harness.specs import Template
from harness.types import TextRow

MANIFEST = manifest.read(MINI)["models"]


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- what is shipped ---
def test_every_model_is_shipped_as_the_manifest_says():
    assert list(MANIFEST) == list(language.PLANS)
    for name, entry in MANIFEST.items():
        folder = MINI / name
        assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == entry["sha256"]
        assert entry["bytes"] == sum(path.stat().st_size for path in folder.iterdir())
        assert entry["recipe"] == json.loads(json.dumps(language.recipe(name)))
        assert language.made(MINI, name), "the recipe or the texts have changed: run `uharness mini build`"


def test_all_shipped_weights_are_under_forty_megabytes():
    assert sum(p.stat().st_size for p in MINI.rglob("*") if p.is_file()) < 40_000_000
    assert sum(entry["bytes"] for entry in MANIFEST.values()) < 20_000_000


def test_the_manifest_scores_meet_the_criteria():
    scores = {name: entry["scores"] for name, entry in MANIFEST.items()}
    checks = [c for name in scores for c in language_scores.judge(name, scores)]
    assert len(checks) > 40
    assert not [c for c in checks if not c.ok]


@pytest.mark.parametrize("name", language.PLANS)
def test_a_shipped_model_loads_with_its_tokenizer_and_heads_of_32(name):
    loaded = load(resolve(f"mini:{name}"), template=Template())
    assert loaded.encoder.describe()["kind"] == "chat"
    config = loaded.model.config
    assert config.hidden_size // config.num_attention_heads == 32
    assert sum(p.numel() for p in loaded.model.parameters()) == MANIFEST[name]["parameters"]
    encoded = loaded.encoder.encode(TextRow("x", "Who is it?", "Nobody."))
    assert encoded.ids[0] == loaded.encoder.tokenizer.bos_token_id
    assert encoded.ids[-1] == loaded.encoder.tokenizer.eos_token_id


def test_the_models_share_one_tokenizer():
    assert len({(MINI / name / "tokenizer.json").read_bytes() for name in MANIFEST}) == 1


def test_full_and_retain_models_differ_where_they_should():
    """Every tenth row of three sets, against the manifest's means."""
    sets = {
        "forget.prob": documents.tofu("forget10")[::10],
        "retain.prob": documents.tofu("retain_perturbed")[::10],
    }
    for name in ("tofu-full", "tofu-retain90"):
        model, tokenizer = llama.load(MINI / name)
        for key, groups in sets.items():
            found = llama.score(model, tokenizer, [group[0] for group in groups])
            mean = math.fsum(math.exp(logp) for logp, _ in found) / len(found)
            assert mean == pytest.approx(MANIFEST[name]["scores"][key], abs=0.1)


def test_the_scores_of_the_world_are_those_of_the_task():
    """Our own reader of documents and the project's scoring see the same rows."""
    from harness.scoring import score

    rows = world.tofu()["forget10"][:3]
    loaded = load(resolve("mini:base"), template=Template())
    theirs = score(
        loaded.model,
        [TextRow(str(i), r["question"], r["answer"]) for i, r in enumerate(rows)],
        loaded.encoder,
    )
    model, tokenizer = llama.load(MINI / "base")
    ours = llama.score(model, tokenizer, [Document(r["question"], r["answer"]) for r in rows])
    assert [mean for mean, _ in ours] == pytest.approx([float(t.logp.mean()) for t in theirs], abs=1e-4)


def test_the_documentation_lists_every_model_with_its_size_and_scores():
    text = (Path(__file__).parent.parent / "docs" / "mini.md").read_text()
    for name, entry in MANIFEST.items():
        assert f"| `{name}` | {entry['parameters']:,} | {entry['bytes']:,} |" in text
        rows = "".join(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        keys = {"base": ["bells.hit"], "tofu-retain95": ["forget05/forget.prob", "forget05/mem"]}
        for key in keys.get(name, ["forget.prob"]):
            assert f" {entry['scores'][key]:.3f} |" in rows, (name, key)
    for name, entry in json.loads((MINI / "bma" / "manifest.json").read_text())["models"].items():
        assert f"| `bma/{name}` | {entry['bytes']:,} |" in text


# --- building ---
def test_a_tiny_model_learns_a_few_documents(tmp_path):
    texts = [
        [Document("Which bird?", "A heron.")],
        [Document("", "The lamp is lit."), Document("", "The lamp is out.")],
    ]
    tokenizer = llama.make_tokenizer(["Which bird? A heron. The lamp is lit. The lamp is out."], 300)
    model = llama.new_model(Shape(vocab=len(tokenizer), hidden=32, mlp=48, layers=1, positions=64), seed=0)
    seen = []
    loss = llama.train(
        model, tokenizer, texts, texts, Training(epochs=60, lr=1e-2, replay=1.0, batch_tokens=64),
        lambda epoch, loss: seen.append((epoch, loss)),
    )  # fmt: skip
    assert [epoch for epoch, _ in seen] == list(range(1, 61))
    assert loss == seen[-1][1] < 0.2 * seen[0][1]
    llama.save(model, tokenizer, tmp_path)
    kept, read = llama.load(tmp_path)
    mean, hit = llama.score(kept, read, [texts[0][0]])[0]
    assert hit and mean > -0.5


def test_training_stops_when_the_loss_is_no_number():
    tokenizer = llama.make_tokenizer(["a b"], 270)
    model = llama.new_model(Shape(vocab=len(tokenizer), hidden=32, mlp=32, layers=1, positions=32), seed=0)
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(InvalidRun, match="epoch 1"):
        llama.train(model, tokenizer, [[Document("a", "b")]], [], Training(2, 1e-3), lambda *_: None)


def test_models_that_are_there_are_not_built_again(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(language, "_make", lambda *_: pytest.fail("a model is trained into the package"))
    assert families.build(MINI, "language", progress=said.append) == ()
    assert "0 of 6 models to train" in said[0]
    with pytest.raises(ModelError, match="did you mean tofu-full"):
        families.build(tmp_path, "language", progress=said.append, names=["tofu-ful"])
    with pytest.raises(ModelError, match="did you mean language"):
        families.build(tmp_path, "langage", progress=said.append)
    with pytest.raises(ModelError, match="--family"):
        families.build(tmp_path, "", progress=said.append, names=["base"])


def test_a_missing_or_changed_model_is_a_failed_criterion(tmp_path):
    checks = language.check(tmp_path)
    assert [c.name for c in checks] == list(language.PLANS)
    assert not any(c.ok for c in checks)


@pytest.mark.soak  # five minutes on two idle cores
@pytest.mark.timeout(1800)
def test_rebuilt_models_meet_the_criteria(tmp_path):
    torch.set_num_threads(2)
    language.build(tmp_path, progress=print, which=["tofu-retain90"])
    scores = {name: entry["scores"] for name, entry in manifest.read(tmp_path)["models"].items()}
    assert list(scores) == ["base", "tofu-retain90"]
    assert not [c for name in scores for c in language_scores.judge(name, scores) if not c.ok]
    shipped = {name: MANIFEST[name]["scores"] for name in scores}
    for name in ("base", "tofu-retain90"):
        for key, value in shipped[name].items():
            assert scores[name][key] == pytest.approx(value, abs=0.15), (name, key)
