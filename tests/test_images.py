"""The task `images`: its rows and requests, its loaders, its scores at their ends, its models."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny_images import REQUESTS, digits, hub_folder, image_job, model

from harness import answers as answering
from harness import models, scoring, vision
from harness.errors import DataError, ModelError
from harness.mini import families, images
from harness.mini.digits import halves
from harness.mini.images_worlds import DIGITS, WORLDS
from harness.mini.world import data_folder
from harness.plugins import load_task, outline
from harness.runs import cut_case, cut_probes
from harness.scores import texts
from harness.specs import TaskRef, Template
from harness.tasks import images_data
from harness.tasks.images import SAMPLE
from harness.tasks.images_data import Columns
from harness.types import Answers, ArrayRow, ClassAnswers, FeatureAnswers, Features, RowValues, Task
from harness.workspace import Workspace


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- rows and requests ---
def test_the_task_is_that_of_the_board():
    task = digits()
    board = Workspace.find(Path(__file__).parent).board("digits-mini")
    assert board.task.options["requests"] == REQUESTS
    assert isinstance(task, Task)
    assert task.case_ids() == ("class", "half", "random")
    sizes = {c: (len(task.case(c, 0).forget), len(task.case(c, 0).retain)) for c in task.case_ids()}
    assert sizes == {"class": (92, 809), "half": (46, 855), "random": (92, 809)}
    assert len(task.rows("test")) == 896
    row = task.case("class", 0).forget[0]
    assert (row.label, row.inputs.shape, row.inputs.dtype) == (3, (1, 8, 8), np.uint8)
    assert task.data_hash() == digits().data_hash()


@pytest.mark.slow
def test_the_images_are_those_that_scikit_learn_bundles():
    from sklearn.datasets import load_digits

    bundled = load_digits()
    task = digits()
    train, test = halves(bundled.target)
    for split, index in (("train", train), ("test", test)):
        rows = task.rows(split)
        assert np.array_equal(np.stack([r.inputs[0] for r in rows]), bundled.images[index])
        assert [r.label for r in rows] == bundled.target[index].tolist()
    assert not set(train) & set(test)


def test_forget_and_retain_are_all_training_rows_once():
    task = digits()
    for name in task.case_ids():
        case = task.case(name, 1)
        ids = [r.id for r in (*case.forget, *case.retain)]
        assert sorted(ids) == sorted(r.id for r in task.rows("train"))
        assert len(set(ids)) == len(ids)


def test_a_half_is_a_coherent_half_of_its_class():
    task = digits()
    whole, half = ({r.id for r in task.case(c, 0).forget} for c in ("class", "half"))
    assert half < whole
    other = [r for r in task.case("class", 0).forget if r.id not in half]
    mine = np.stack([r.inputs.ravel() for r in task.case("half", 0).forget]).astype(float)
    rest = np.stack([r.inputs.ravel() for r in other]).astype(float)
    spread = np.linalg.norm(mine.mean(0) - rest.mean(0))
    shuffled = np.random.default_rng(0).permutation(np.concatenate([mine, rest]))
    chance = np.linalg.norm(shuffled[: len(mine)].mean(0) - shuffled[len(mine) :].mean(0))
    assert spread > 2 * chance


def test_a_random_request_has_as_many_rows_of_all_classes():
    rows = digits().case("random", 0).forget
    assert len({r.label for r in rows}) == 10


def test_the_rows_never_change():
    """Shipped weights were trained on these: after a change, train them again and raise the version."""
    task = digits()
    assert [r.id for r in task.case("half", 0).forget[:4]] == ["train-17", "train-36", "train-37", "train-39"]
    assert [r.id for r in task.case("random", 0).forget[:4]] == [
        "train-8",
        "train-10",
        "train-12",
        "train-13",
    ]
    assert task.data_hash()[:16] == "075a69800dd937cb"


def test_the_hash_sees_a_request():
    other = REQUESTS | {"half": {"classes": ["4"], "part": "half"}}
    assert digits(requests=other).data_hash() != digits().data_hash()


def test_wrong_labels_are_wrong_and_fixed():
    task = digits()
    case = task.case("class", 0)
    first, again, other = (task.resource("random_labels", case, seed) for seed in (0, 0, 1))
    assert [r.id for r in first] == [r.id for r in case.forget]
    assert all(r.label != 3 and 0 <= r.label < 10 for r in first)
    assert [r.label for r in first] == [r.label for r in again] != [r.label for r in other]
    with pytest.raises(DataError, match="random_labels"):
        task.resource("random_lables", case, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"requests": {}}, "no requests"),
        ({"requests": {"a": {"classes": []}}}, "request 'a'"),
        ({"requests": {"a": {"classes": ["3"], "parts": "half"}}}, "classes and part"),
        ({"requests": {"a": {"classes": ["3"], "part": "most"}}}, "random"),
        ({"requests": {"a": {"classes": ["33"]}}}, "did you mean 3"),
        ({"requests": {"a": {"classes": [str(k) for k in range(10)]}}}, "901 of 901"),
        ({"columns": {"images": "img"}}, "did you mean image"),
        ({"request": {}}, "did you mean requests"),
        ({"columns": "img"}, "columns is 'img'; it is a table"),
        ({"columns": {"channels": 2}}, "channels is 2; it is 1 or 3"),
        ({"requests": {"a": {"classes": "33"}}}, "classes is a list of names"),
        ({"requests": {"a": {"classes": 3}}}, "classes is a list of names"),
        ({"requests": {"a": {"classes": ["3", "3"]}}}, "request 'a' names a class twice; 3, 3"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_in_one_line(options, said):
    with pytest.raises(DataError, match=said) as caught:
        digits(**options)
    assert "\n" not in str(caught.value)


def test_other_mistakes_are_refused(tmp_path):
    for ref, said in (
        (TaskRef(name="images", split="x", data="mini:digits"), "takes no split"),
        (TaskRef(name="images", options={"requests": REQUESTS}), "no data"),
        (TaskRef(name="images", data=str(tmp_path / "no"), options={"requests": REQUESTS}), "does not exist"),
    ):
        with pytest.raises(DataError, match=said):
            load_task(ref, Template())
    with pytest.raises(DataError, match="pick one"):
        digits().case("klass", 0)


def test_what_a_row_is_and_what_was_answered_is_told_by_name():
    task = digits()
    rows = task.rows("test")[:3]
    logits = np.eye(10, dtype=np.float32)[[rows[0].label, 7, 3]]
    probe, answer = Features("test", rows), FeatureAnswers(tuple(r.id for r in rows), logits, logits)
    told = texts([probe], Answers({"test": answer}), task.class_names)["test"]
    assert [t["target"] for t in told.values()] == [str(r.label) for r in rows]
    assert [t["answer"] for t in told.values()] == [str(rows[0].label), "7", "3"]
    assert not any("prompt" in t for t in told.values())
    few = ArrayRow("pair", np.array([3, 61]), 0)
    answer = ClassAnswers(("pair",), np.array([[0.0, 1.0, 0.5]], np.float32))
    told = texts([Features("f", [few])], Answers({"f": answer}), ("cat", "dog"))
    assert told == {"f": {"pair": {"target": "cat", "prompt": "3 61", "answer": "dog"}}}
    assert texts([Features("f", [few])], Answers({}))["f"]["pair"] == {"target": "0", "prompt": "3 61"}


# --- loaders ---
def test_a_folder_in_the_hubs_shape(tmp_path):
    folder = hub_folder(tmp_path / "set")
    images = images_data.load(str(folder), Columns(image="img", label="fine_label"))
    assert images.names == ("oak", "pine", "seal")
    assert images.train.pixels.shape == (12, 3, 6, 6) and images.test.pixels.dtype == np.uint8
    assert images.train.pixels[:, 0, 0, 0].tolist() == images.train.labels.tolist()
    ref = TaskRef(
        name="images", data=str(folder),
        options={
            "columns": {"image": "img", "label": "fine_label"}, "requests": {"trees": {"classes": ["oak", "pine"]}},
        },
    )  # fmt: skip
    task = load_task(ref, Template())
    assert len(task.case("trees", 0).forget) == 8
    with pytest.raises(DataError, match="did you mean"):
        images_data.load(str(folder), Columns(image="img", label="fine_lable"))
    with pytest.raises(DataError, match=r"\(valid\) cannot be read"):
        images_data.load(str(folder), Columns(image="img", label="fine_label", test="valid"))


@pytest.mark.parametrize(
    ("values", "labels", "said"),
    [
        ([b"no image"], [0], "'image' has a value that is no image; UnidentifiedImageError"),
        ([b""], [0], "'image' has a value that is no image"),
        ([None], [0], "'image' has a value that is no image"),
        ([b"x"], ["a"], "1 labels such as 'a'"),
        ([b"x"], [None], "1 labels such as None"),
        ([b"x"], [0.5], "1 labels such as 0.5"),
        (1, [0], "'image' holds no images"),
    ],
)
def test_columns_of_other_things_are_refused(tmp_path, values, labels, said):
    column = [values] if values == 1 else [v if v is None else {"bytes": v, "path": None} for v in values]
    bytes_or_path = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {"image": pa.array(column, pa.int64() if values == 1 else bytes_or_path), "label": labels}
    )
    for split in ("train", "test"):
        pq.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    with pytest.raises(DataError) as caught:
        images_data.load(str(tmp_path), Columns())
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_offline_the_hub_gives_one_line():
    with pytest.raises(DataError, match="cannot be read") as caught:
        images_data.load("uoft-cs/cifar100", Columns())
    said = str(caught.value)
    assert "give a folder with its files as data" in said and "--data-dir" not in said and "\n" not in said


def test_arrays_that_do_not_fit_are_refused(tmp_path):
    x, y = np.zeros((4, 5, 5), np.uint8), np.array([0, 1, 2, 3])
    good = {
        "train_images": x,
        "train_labels": y,
        "test_images": x,
        "test_labels": y,
        "names": np.array(list("abcd")),
    }
    for change, said in (
        ({"train_labels": y[:3]}, "4 images"), ({"test_labels": y + 1}, "labels 1 to 4"),
        ({"train_images": x.astype(float)}, "float64"), ({"train_labels": y + 0.5}, r"labels \(4,\) \(float64\)"),
        ({"train_labels": np.array(list("abcd"))}, "whole numbers"), ({"train_images": x.reshape(4, 25)}, r"\(4, 25\)"),
        ({"test_labels": y[:, None]}, r"labels \(4, 1\)"), ({"names": np.array("a")}, r"names \(\)"),
        ({"test_images": x[:, :4]}, r"\(1, 5, 5\) and test images \(1, 4, 5\)"),
        ({"names": np.array(["a", None], dtype=object)}, "cannot be read; Object arrays"),
        ({"names": np.array(list("abcb"))}, "2 classes named 'b'; numbers 1, 3; give each class a name"),
    ):  # fmt: skip
        np.savez(tmp_path / "images.npz", **good | change)
        with pytest.raises(DataError, match=said):
            images_data.load(str(tmp_path), Columns())
    np.savez(tmp_path / "images.npz", **{k: v for k, v in good.items() if k != "names"})
    with pytest.raises(DataError, match="has no names"):
        images_data.load(str(tmp_path), Columns())
    whole = (tmp_path / "images.npz").read_bytes()
    for content in (b"", b"no arrays", whole[: len(whole) // 2]):
        (tmp_path / "images.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"cannot be read; .*savez") as caught:
            images_data.load(str(tmp_path), Columns())
        assert "\n" not in str(caught.value)
    colour = np.zeros((4, 5, 6, 3), np.uint8)
    np.savez(tmp_path / "images.npz", **good | {"train_images": colour, "test_images": colour})
    assert images_data.load(str(tmp_path), Columns()).train.pixels.shape == (4, 3, 5, 6)


def test_the_boards_can_be_told_without_data():
    workspace = Workspace.find(Path(__file__).parent)
    for name in workspace.board_names():
        if not name.startswith("images-"):
            continue
        board = workspace.board(name)
        known = outline(board.task)
        assert known is not None and known.hub == (board.task.data,)
        assert set(board.cases) <= set(known.cases)
        assert {c.split("@")[0] for c in board.columns if not c.startswith("cost.")} <= {
            m.id for m in known.metrics
        }
        assert {c.split("@")[1] for c in board.columns if "@" in c} <= set(known.cases)
        family = board.models["target"].removeprefix("mini:").split("/")[0]
        assert WORLDS[family].board == name and families.FAMILIES[family] == ("images", family)


# --- scores ---
def asked(task, name, case="class"):
    """All answers of a built-in model."""
    loaded = model(name)
    rows = task.case(case, 0)
    return Answers(answering.answer(loaded, task.probes(rows), None))


@pytest.fixture(scope="module")
def told():
    """Answers on the request `class`: of the target, a retrained model, and one of another start."""
    task = digits()
    return {name: asked(task, name) for name in ("target-0", "class-retain-0", "class-again-0")}


def scores(told, own, other="class-retain-0"):
    task = digits()
    references = {"retain": told[other]} if other else {}
    return task.score(task.case("class", 0), told[own], references)


def test_the_retrained_model_is_at_the_aim(told):
    found = scores(told, "class-retain-0")
    assert found["tow"].value == 1.0 and found["forget.acc"].value == 0.0
    zero = [k for k in found if k.endswith(".gap") or k in ("output.divergence", "mia.gap")]
    zero += [
        f"features.{d}{v}" for d in ("mmd2", "mmd2_multi", "bures_w2", "sliced_w2") for v in ("", ".direct")
    ]
    assert {k: found[k].value for k in zero} == pytest.approx(dict.fromkeys(zero, 0.0), abs=1e-9)


def test_the_target_has_everything_that_was_to_be_forgotten(told):
    found = scores(told, "target-0")
    assert found["tow"].value == 0.0 and found["forget.acc"].value == 1.0
    assert found["mia.acc"].value > 0.9 and found["mia.gap"].value > 0.9
    assert found["probe.acc"].value > 0.95
    assert found["features.gap"].value > 0.5 and found["output.divergence"].value > 1.0


def test_a_second_retraining_is_close_in_what_it_says(told):
    found = scores(told, "class-again-0")
    target = scores(told, "target-0")
    for name in ("tow", "output.divergence", "features.gap", "mia.gap"):
        assert abs(found[name].value - (name == "tow")) < abs(target[name].value - (name == "tow")) / 5, name


def test_tow_is_that_of_the_accuracies(told):
    found = scores(told, "class-again-0")
    gaps = [found[f"{name}.acc.gap"].value for name in ("forget", "retain", "test")]
    assert found["tow"].value == pytest.approx(np.prod([1 - g for g in gaps]))


def test_without_a_retrained_model_what_needs_one_is_null(told):
    found = scores(told, "target-0", "")
    assert set(found) == {m.id for m in digits().metrics()}
    for info in digits().metrics():
        assert (found[info.id].value is None) == bool(info.roles), info.id
    assert "retrained" in found["tow"].why


def test_parts_of_a_class_have_no_probe():
    task = digits()
    case = task.case("half", 0)
    assert "test_sample" not in {p.name for p in task.probes(case)}
    found = task.score(
        case, asked(task, "target-0", "half"), {"retain": asked(task, "half-retain-0", "half")}
    )
    assert found["probe.acc"].value is None and "as a whole" in found["probe.acc"].why
    assert found["tow"].value is not None and found["features.gap"].value is not None


@pytest.mark.parametrize("case_id", ["class", "random"])
def test_a_limited_run_is_scored_too(case_id):
    """As the stages cut it: the first rows of the case, then the first rows of every probe."""
    task, loaded = digits(), model()
    for limit in (1, 3):
        case = cut_case(task.case(case_id, 0), limit)
        probes = cut_probes(task.probes(case), limit)
        answers = Answers(answering.answer(loaded, probes, None))
        found = task.score(case, answers, {"retain": answers})
        assert set(found) == {m.id for m in task.metrics()}
        assert found["tow"].value == 1.0
        assert found["mia.gap"].value in (0.0, None) and found["probe.gap"].value in (0.0, None)


def test_answers_that_are_not_finite_make_everything_null(told):
    probes = dict(told["target-0"].probes)
    forget = probes["forget"]
    broken = forget.features.copy()
    broken[0, 0] = np.nan
    probes["forget"] = dataclasses.replace(forget, features=broken)
    found = digits().score(digits().case("class", 0), Answers(probes), {})
    assert all(s.value is None and "NaN" in s.why for s in found.values())


def test_answers_to_other_rows_are_refused(told):
    probes = dict(told["target-0"].probes)
    del probes["retain"]
    with pytest.raises(DataError, match="probe 'retain'"):
        digits().score(digits().case("class", 0), Answers(probes), {})


def test_constant_logits_are_scored_without_a_fall(told):
    """All logits tie, all features are equal: accuracies are those of class 0, distances have no scale."""
    flat = {
        name: dataclasses.replace(a, logits=np.zeros_like(a.logits),
                                  **({"features": np.ones_like(a.features)} if isinstance(a, FeatureAnswers) else {}))
        for name, a in told["target-0"].probes.items()
    }  # fmt: skip
    task = digits()
    found = task.score(task.case("class", 0), Answers(flat), {"retain": Answers(flat)})
    assert found["forget.acc"].value == 0.0 and found["tow"].value == 1.0
    assert found["features.gap"].value is None and found["features.gap"].why
    assert found["probe.acc"].value == 0.5


def test_samples_are_as_large_as_the_forget_set(told):
    task = digits()
    probes = {p.name: p for p in task.probes(task.case("class", 0))}
    assert len(probes["retain_sample"].rows) == len(probes["forget"].rows) == 92 < SAMPLE
    inside = [r.label == 3 for r in probes["test_sample"].rows]
    assert sum(inside) == len(inside) - sum(inside) == 91
    assert {r.id for r in probes["retain_sample"].rows} <= {r.id for r in probes["retain"].rows}


def test_weights_are_compared_with_the_retrained_models(told):
    task, own = digits(), model("class-again-0")
    found = task.compare(own, {"retain": lambda: model("class-retain-0")})
    case = task.case("class", 0)
    score = task.score(
        case, Answers({**told["class-again-0"].probes, **found}), {"retain": told["class-retain-0"]}
    )
    p, q = (
        torch.cat([w.detach().flatten().double() for w in model(n).model.parameters()])
        for n in ("class-again-0", "class-retain-0")
    )
    assert score["weights.error"].value == pytest.approx(float((p - q).norm() / q.norm()))
    assert set(score["weights.error"].per_row) == {n for n, _ in own.model.named_parameters()}
    same = task.compare(model("class-retain-0"), {"retain": lambda: model("class-retain-0")})
    score = task.score(
        case, Answers({**told["class-retain-0"].probes, **same}), {"retain": told["class-retain-0"]}
    )
    assert score["weights.error"].value == 0.0
    lacking = task.compare(own, {})
    assert all(isinstance(v, RowValues) and "no retrained" in v.why for v in lacking.values())


# --- answers ---
def test_features_survive_the_disk_and_are_what_the_head_reads(tmp_path, told):
    loaded, task = model(), digits()
    probe = Features("forget", task.case("class", 0).forget[:5])
    made = answering.answer(loaded, [probe], None)
    answering.write(made, tmp_path)
    back = answering.read(tmp_path)["forget"]
    assert isinstance(back, FeatureAnswers) and back.ids == made["forget"].ids
    assert np.array_equal(back.features, made["forget"].features) and np.array_equal(
        back.logits, made["forget"].logits
    )
    with torch.no_grad():
        logits = vision.head(loaded.model)(torch.tensor(back.features))
    assert np.allclose(logits, back.logits, atol=1e-5)
    assert np.allclose(scoring.classify(loaded.model, probe.rows), back.logits, atol=1e-5)
    assert not isinstance(told["target-0"].probes["retain"], FeatureAnswers)
    assert isinstance(told["target-0"].probes["retain"], ClassAnswers)


# --- models ---
def test_a_saved_model_is_the_same_model(tmp_path):
    loaded = model()
    models.save(loaded, tmp_path / "m")
    back = models.load(str(tmp_path / "m"))
    rows = digits().rows("test")[:20]
    assert np.array_equal(scoring.classify(loaded.model, rows), scoring.classify(back.model, rows))
    assert vision.Pixels.of(back.model) == vision.Pixels.of(loaded.model)
    assert models.reads_images(str(tmp_path / "m")) and not models.reads_text(str(tmp_path / "m"))
    models.check(str(tmp_path / "m"), needs_tokenizer=False)


def test_pixels_are_scaled_moved_and_enlarged():
    pixels = vision.Pixels(4, 1 / 16, (0.5,), (0.25,))
    x = torch.tensor([[[[0, 16], [8, 8]]]], dtype=torch.uint8)
    out = pixels.apply(x, torch.float32)
    assert out.shape == (1, 1, 4, 4)
    assert out[0, 0, 0, 0].item() == -2.0 and out[0, 0, 0, 3].item() == 2.0
    assert out.mean().item() == pytest.approx(0.0, abs=1e-6)


def test_a_hub_checkpoint_brings_its_pixels_in_its_preprocessor(tmp_path):
    loaded = model()
    config = copy.deepcopy(loaded.model.config)
    config.pixels = None
    with pytest.raises(ModelError, match="preprocessor_config"):
        vision.read(tmp_path, config)
    given = {"size": {"shortest_edge": 224}, "image_mean": [0.4], "image_std": [0.2], "rescale_factor": 0.01}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(given))
    assert vision.read(tmp_path, config) == {"size": 224, "scale": 0.01, "mean": [0.4], "std": [0.2]}


@pytest.mark.parametrize("kind", ["resnet", "vit"])
def test_jobs_work_on_both_kinds_of_models(kind, tmp_path):
    loaded = model() if kind == "resnet" else tiny_vit(tmp_path)
    job = image_job(loaded=loaded, effective=4, folder=tmp_path / "run")
    inputs = job.collate(job.forget[:4])
    out = job.forward(inputs, hidden=(0, 1))
    assert out.logits.shape == (4, 1, 10) and out.logits.requires_grad
    width = loaded.model.config.hidden_sizes[1] if kind == "resnet" else loaded.model.config.hidden_size
    assert out.hidden[1].shape == (4, 1, width)
    assert torch.equal(job.hidden(inputs, 1), out.hidden[1])
    reference = job.frozen_reference()
    with torch.no_grad():
        vision.head(job.model).bias.add_(1.0)
    assert torch.allclose(reference(inputs).logits + 1.0, job.forward(inputs).logits, atol=1e-5)
    assert not reference(inputs).logits.requires_grad
    job.checkpoint()
    kept = models.load(str(tmp_path / "run" / "checkpoint" / "model"))
    assert np.allclose(
        scoring.classify(kept.model, job.forget[:4]), job.forward(inputs).logits[:, 0].detach(), atol=1e-5
    )


def tiny_vit(folder: Path) -> models.LoadedModel:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8, patch_size=4,
        num_channels=1, num_labels=10, pixels=vision.Pixels(8, 1 / 16, (0.5,), (0.5,)).as_json(),
    )  # fmt: skip
    torch.manual_seed(0)
    models.save(models.LoadedModel(ViTForImageClassification(config), None), folder / "vit")
    return models.load(str(folder / "vit"))


def test_batches_of_large_images_are_smaller():
    loaded = model()
    assert vision.batch(loaded.model) == vision.BATCH_PIXELS // 32**2
    loaded.model.config.pixels = {**loaded.model.config.pixels, "size": 1 << 13}
    assert vision.batch(loaded.model) == 1


# --- the built-in models ---
def test_the_shipped_models_are_good():
    found = images.check(models.MINI / "digits")
    assert len(found) == 21 + 2 * 21 + 6
    assert [c for c in found if not c.ok] == []


def test_models_of_one_seed_start_from_the_same_weights():
    plans = DIGITS.plans()
    names = ("target-1", "half-retain-1", "half-again-1", "target-2")
    a, b, c, d = (next(iter(images.start(DIGITS, plans[n].seed).parameters())) for n in names)
    assert torch.equal(a, b) and torch.equal(a, c) and not torch.equal(a, d)
    assert plans["half-again-1"].order != plans["half-retain-1"].order == plans["target-1"].order


def test_a_world_from_pre_trained_weights_keeps_what_it_starts_from(tmp_path):
    start = models.resolve("mini:digits/target-0")
    world = dataclasses.replace(DIGITS, name="fine", start=start, seeds=(0,))
    assert [n for n in world.plans() if n.startswith("init")] == ["init-0"]
    assert images.build(tmp_path, progress=lambda _: None, which=["init-0"], world=world) == ("init-0",)
    made, begun = models.load(str(tmp_path / "init-0")), model()
    assert all(
        torch.equal(p, q) for p, q in zip(made.model.parameters(), begun.model.parameters(), strict=True)
    )


@pytest.mark.slow
def test_training_again_gives_a_good_model_and_skips_it_then(tmp_path):
    said: list[str] = []
    assert images.build(tmp_path, progress=said.append, which=["class-retain-0"]) == ("class-retain-0",)
    assert images.build(tmp_path, progress=said.append, which=["class-retain-0"]) == ()
    manifest = json.loads((tmp_path / "manifest.json").read_text())["models"]["class-retain-0"]
    shipped = json.loads((models.MINI / "digits" / "manifest.json").read_text())["models"]["class-retain-0"]
    assert manifest["recipe_hash"] == shipped["recipe_hash"]
    assert manifest["scores"]["test.acc"] == pytest.approx(shipped["scores"]["test.acc"], abs=0.03)
    assert manifest["scores"]["forget.acc"] == 0.0


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(ModelError, match="did you mean target-0"):
        images.build(tmp_path, progress=print, which=["target0"])
    with pytest.raises(ModelError, match="uharness mini build --family cifar100-vit"):
        models.resolve("mini:cifar100-vit/target-0", (tmp_path,))
    assert not all(c.ok for c in images.check(tmp_path))
    assert data_folder("digits").is_dir()


BOARD = """
title = "Tiny digits"
rank_by = "tow"
columns = ["tow", "forget.acc", "mia.gap", "features.gap", "weights.error", "output.divergence", "cost.updates"]
seeds = [0]
cases = ["class"]
[task]
name = "images"
data = "mini:digits"
[task.options.requests]
class = { classes = ["3"] }
[models]
target = "mini:digits/target-{seed}"
retain = "mini:digits/{case}-retain-{seed}"
again = "mini:digits/{case}-again-{seed}"
[batch]
effective = 16
[budget]
updates = 2
"""


@pytest.mark.slow
def test_runs_on_digits_from_weights_to_table(uharness, workspace):
    (workspace / "leaderboards" / "tiny-digits.toml").write_text(BOARD)
    for name in ("retrain_again", "scrub"):
        ran = uharness("submit", name, "--board", "tiny-digits")
        assert ran.code == 0, ran.err
    records = [
        json.loads(p.read_text()) for p in (workspace / "leaderboards/tiny-digits/results").glob("*.json")
    ]
    found = {r["submission"]: {k: s["value"] for k, s in r["scores"].items()} for r in records}
    assert all(r["status"] == "ok" for r in records)
    assert found["retrain_again"]["tow"] > 0.95 and 0 < found["retrain_again"]["weights.error"] < 0.5
    assert found["scrub"]["cost.updates"] == 2 and found["scrub"]["tow"] < 0.2
    assert all(None not in row.values() for row in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("reference", [(), ("--reference", "mini:digits/class-again-0")])
def test_a_checkpoint_is_compared_with_the_retrained_model(uharness, workspace, reference):
    (workspace / "leaderboards" / "tiny-digits.toml").write_text(BOARD)
    ran = uharness(
        "evaluate", "mini:digits/target-0", "--board", "tiny-digits", "--json", "out.json", *reference
    )
    assert ran.code == 0, ran.err
    report = json.loads((workspace / "out.json").read_text())
    other = reference[1].rpartition("/")[2] if reference else "class-retain-0"
    mine, theirs = (models.load(str(models.MINI / "digits" / n)).model for n in ("target-0", other))
    p, q = (torch.cat([w.detach().flatten().double() for w in m.parameters()]) for m in (mine, theirs))
    assert report["scores"]["weights.error"]["value"] == pytest.approx(float((p - q).norm() / q.norm()))
