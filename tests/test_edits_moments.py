"""What streams through layers: moments equal to those in memory, which positions count, which layers are edited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from tiny_text import random_llama
from torch import Tensor, nn

from harness import scoring
from harness.edits.layers import Layer, editable
from harness.edits.moments import Gathering, Moments, Seen, gather
from harness.edits.separability import random_requests, scores, verdict
from harness.errors import SubmissionError
from harness.models import MINI, load
from harness.scoring import Inputs
from harness.types import ArrayRow


class Net(nn.Module):
    """Two convolutions and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 4, 3, stride=2, dilation=2, bias=False)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(x).relu()).relu().mean((2, 3)))


def text_batches(count: int = 3) -> list[Seen]:
    """Rows of unequal length, forget and retain in turn, two marked groups."""
    rng, out = np.random.default_rng(0), []
    for k in range(2 * count):
        ids = [rng.integers(5, 40, size=n).tolist() for n in (4, 7, 9)]
        inputs = scoring.pad(ids, [2, 3, 1], 0, torch.arange(3), "cpu")
        marks = torch.tensor([[True, False, k < 2], [k % 2 == 0, True, False]])
        out.append(Seen("retain" if k % 2 else "forget", inputs, marks))
    return out


def image_batches() -> list[Seen]:
    generator = torch.Generator().manual_seed(0)
    out = []
    for kind in ("forget", "retain", "retain"):
        rows = [ArrayRow(str(i), torch.randn(1, 7, 7, generator=generator).numpy(), 0) for i in range(5)]
        out.append(Seen(kind, scoring.collate(rows, None), torch.zeros(0, 5, dtype=torch.bool)))  # type: ignore[arg-type]
    return out


def in_memory(
    model: nn.Module, layers: Sequence[Layer], batches: Sequence[Seen]
) -> Iterator[tuple[Layer, dict[str, Tensor]]]:
    """Of every layer: all its inputs by kind [n, d], caught one layer at a time and unfolded by hand."""
    for layer in layers:
        caught: dict[str, list[Tensor]] = {"forget": [], "retain": []}
        given: list[Tensor] = []
        handle = layer.module.register_forward_pre_hook(lambda _m, x, to=given: to.append(x[0]))
        for seen in batches:
            given.clear()
            with torch.no_grad():
                scoring.forward(model, seen.inputs)
            x, attention = given[0].double(), seen.inputs.attention
            if attention is not None:
                caught[seen.kind].append(x[attention[:, -x.shape[1] :]])
            elif x.ndim == 4:
                patches = nn.functional.unfold(
                    x, 3, layer.module.dilation, layer.module.padding, layer.module.stride
                )
                caught[seen.kind].append(patches.transpose(1, 2).flatten(0, 1))
            else:
                caught[seen.kind].append(x)
        handle.remove()
        yield layer, {kind: torch.cat(parts) for kind, parts in caught.items()}


@pytest.mark.parametrize("kind", ["text", "images"])
def test_streamed_moments_equal_those_in_memory(kind: str) -> None:
    model = random_llama(40) if kind == "text" else Net()
    batches = text_batches() if kind == "text" else image_batches()
    layers = editable(model)
    found = gather(
        model,
        layers,
        batches,
        lambda x: scoring.forward(model, x),
        Gathering(marks=2 if kind == "text" else 0),
    )
    for layer, inputs in in_memory(model, layers, batches):
        for name, x in inputs.items():
            moments = found[layer.name]
            assert moments.count[name] == len(x)
            torch.testing.assert_close(moments.second[name], x.T @ x)  # type: ignore[index]
            torch.testing.assert_close(moments.mean(name), x.mean(0))  # type: ignore[arg-type]


def test_marked_groups_are_sums_over_their_rows() -> None:
    model, batches = random_llama(40), text_batches()
    (layer,) = editable(model, only=r"layers\.1\.mlp\.up")
    found = gather(model, [layer], batches, lambda x: scoring.forward(model, x), Gathering(marks=2))[
        layer.name
    ]
    wanted, counts = torch.zeros(2, layer.width, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for seen in batches:
        caught: list[Tensor] = []
        handle = layer.module.register_forward_pre_hook(lambda _m, x, to=caught: to.append(x[0]))
        scoring.forward(model, seen.inputs)
        handle.remove()
        for g, row in seen.marks.nonzero().tolist():
            keep = seen.inputs.attention[row]  # type: ignore[index]
            wanted[g] += caught[0][row][keep].double().sum(0)
            counts[g] += keep.sum()
    torch.testing.assert_close(found.mark_total, wanted)
    assert found.mark_count.equal(counts)


def test_answer_positions_are_those_that_predict_answer_tokens() -> None:
    model, batches = random_llama(40), text_batches(1)
    layers = editable(model, only="down_proj")
    found = gather(
        model, layers, batches, lambda x: scoring.forward(model, x), Gathering(marks=2, tokens="answer")
    )
    assert {m.count["forget"] for m in found.values()} == {(4 - 2) + (7 - 3) + (9 - 1)}


def test_layers_with_one_input_share_its_moments() -> None:
    model, batches = random_llama(40), text_batches(1)
    found = gather(model, editable(model), batches, lambda x: scoring.forward(model, x), Gathering(marks=2))
    block = "model.layers.0"
    same = [f"{block}.self_attn.{n}_proj.weight" for n in "qkv"]
    assert len({id(found[n]) for n in same}) == 1
    assert found[f"{block}.mlp.gate_proj.weight"] is found[f"{block}.mlp.up_proj.weight"]
    different = {id(m) for m in found.values()}
    assert len(different) == 2 * 4 + ("lm_head.weight" in found)


def test_positions_are_drawn_for_every_image_and_the_sample_is_bounded() -> None:
    model, batches = Net(), image_batches()
    how = Gathering(positions=4, sample=6, seed=3)
    found = gather(model, editable(model), batches, lambda x: scoring.forward(model, x), how)
    first = found["first.weight"]
    assert (first.count["forget"], first.count["retain"]) == (5 * 4, 10 * 4)
    assert found["head.weight"].count["forget"] == 5
    assert first.sample.shape == (6, 9) and found["head.weight"].sample.shape == (5, 4)
    again = gather(model, editable(model), batches, lambda x: scoring.forward(model, x), how)
    assert again["first.weight"].sample.equal(first.sample)


def test_the_sample_is_even_over_everything_that_was_drawn_from() -> None:
    generator, hits = torch.Generator().manual_seed(0), torch.zeros(20)
    for _ in range(400):
        moments = Moments.empty(1, 0, torch.device("cpu"))
        for part in torch.arange(20.0, dtype=torch.float64)[:, None].split(5):
            moments.draw(part, 4, generator)
        hits[moments.sample[:, 0].long()] += 1
    assert (hits - 80).abs().max() < 5 * (400 * 0.2 * 0.8) ** 0.5


# --- layers ---------------------------------------------------------------------------------------------------------
def test_every_kind_of_layer_is_a_matrix_that_maps_its_inputs() -> None:
    from transformers.pytorch_utils import Conv1D

    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
    for module in (nn.Linear(6, 3), Conv1D(3, 6)):
        layer = Layer("w", module)
        assert (layer.matrix.shape, layer.width) == ((3, 6), 6)
        made = layer.features(x).double() @ layer.matrix.T
        torch.testing.assert_close(made.float() + module.bias, module(x))
        layer.write(2 * layer.matrix)
        torch.testing.assert_close((2 * made).float() + module.bias, module(x))
    conv, picture = nn.Conv2d(2, 3, (3, 2), stride=2, padding=1), torch.randn(2, 2, 6, 5)
    layer = Layer("c", conv)
    made = layer.features(picture).double() @ layer.matrix.T
    torch.testing.assert_close(made.float() + conv.bias, conv(picture).flatten(2).transpose(1, 2))


def test_which_layers_are_edited() -> None:
    llama = random_llama(40, tie_word_embeddings=True)
    names = [layer.name for layer in editable(llama)]
    assert len(names) == 14 and not any("embed" in n or "lm_head" in n for n in names)
    assert [x.name for x in editable(llama, skip=0.5)] == names[7:]
    assert [x.name for x in editable(llama, only="down_proj")] == [n for n in names if "down_proj" in n]
    grouped = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.Linear(4, 2))
    assert [x.name for x in editable(grouped)] == ["1.weight"]
    for wrong, says in (({"only": "nothing"}, "no layer is left"), ({"skip": 1.0}, "no layer is left"),
                        ({"skip": 1.5}, "skip=1.5 is no share"), ({"only": "("}, "no regular expression")):  # fmt: skip
        with pytest.raises(SubmissionError, match=says):
            editable(llama, **wrong)  # type: ignore[arg-type]


def test_what_cannot_be_looked_at_is_refused_in_one_line() -> None:
    model = load(str(MINI / "bma" / "M4")).model
    row = ArrayRow("0", np.array([1, 2]), 0)
    seen = Seen("forget", scoring.collate([row], None), torch.zeros(0, 1, dtype=torch.bool))
    with pytest.raises(SubmissionError, match=r"does not go through query\.weight"):
        gather(model, editable(model), [seen], lambda x: scoring.forward(model, x), Gathering())
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding="same"))
    image = Inputs(
        torch.arange(1), torch.zeros(1, 1, 4, 4), None, seen.inputs.labels, seen.inputs.mask, None, 1
    )
    with pytest.raises(SubmissionError, match="pads with 'same'"):
        gather(net, editable(net), [Seen("forget", image, seen.marks)], lambda x: net(x.x), Gathering())


# --- separability ---------------------------------------------------------------------------------------------------
def moments_of(x: Tensor, marks: Tensor, forget: Tensor) -> Moments:
    """As if rows of one position had been streamed."""
    out = Moments.empty(x.shape[1], len(marks), torch.device("cpu"))
    for kind, rows in (("forget", forget), ("retain", ~forget)):
        keep = torch.ones(int(rows.sum()), 1, dtype=torch.bool)
        out.add(kind, x[rows][:, None], keep, marks[:, rows])  # type: ignore[arg-type]
    return out


def test_the_score_is_the_share_of_membership_that_a_regression_explains() -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=rng, dtype=torch.float64)
    forget = torch.arange(200) < 50
    x[forget] += 0.7
    (score,) = scores(moments_of(x, forget[None], forget), ridge=1e-12)
    a = np.c_[x.numpy(), np.ones(200)]
    y = forget.double().numpy()
    residual = y - a @ np.linalg.lstsq(a, y, rcond=None)[0]
    assert float(score) == pytest.approx(
        1 - residual @ residual / ((y - y.mean()) @ (y - y.mean())), abs=1e-9
    )


def test_scores_at_their_ends() -> None:
    x = torch.zeros(10, 2, dtype=torch.float64)
    forget = torch.arange(10) < 4
    marks = torch.stack([forget, torch.ones(10, dtype=torch.bool), torch.zeros(10, dtype=torch.bool)])
    assert scores(moments_of(x, marks, forget)).tolist() == [0.0, 0.0, 0.0]
    x[forget, 0] = 1.0
    found = scores(moments_of(x, marks, forget))
    assert found[0] == pytest.approx(1.0, abs=1e-5) and found[1:].tolist() == [0.0, 0.0]


def test_a_class_is_separable_half_a_heap_is_not_and_a_corner_of_one_is() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    x = (
        torch.randn(300, 5, generator=rng, dtype=torch.float64)
        + 3 * torch.eye(3, 5, dtype=torch.float64)[labels]
    )
    first = labels == 0
    corner = first & (torch.arange(300) < 150)
    x[corner, 4] += 3
    some = first & (torch.rand(300, generator=rng) < 0.5)
    anything = torch.rand(300, generator=rng) < 0.2
    for forget, wanted in ((first, True), (corner, True), (some, False), (anything, False)):
        marks = torch.cat([forget[None], random_requests(forget, labels.tolist(), 20, seed=1)])
        found = verdict({"layer": scores(moments_of(x, marks, forget))})
        assert found.separable == wanted, found.text
        assert ("is separable" in found.text) == wanted


def test_random_requests_are_of_the_same_size_and_labels() -> None:
    labels = torch.tensor([0] * 6 + [1] * 4 + [2] * 5)
    part, whole = torch.zeros(15, dtype=torch.bool), labels == 1
    part[:3] = True
    drawn = random_requests(part, labels.tolist(), 30, seed=0)
    assert (drawn.sum(1) == 3).all() and (drawn[:, :6].sum(1) == 3).all()
    anything = random_requests(whole, labels.tolist(), 30, seed=0)
    assert (anything.sum(1) == 4).all() and not anything.equal(whole.expand(30, -1))
    both = random_requests(part | whole, labels.tolist(), 30, seed=0)
    assert (both.sum(1) == 7).all() and (both[:, :6].sum(1) >= 3).all()
    plain = random_requests(part, None, 30, seed=0)
    assert (plain.sum(1) == 3).all() and plain[:, 6:].any()
    assert plain.equal(random_requests(part, None, 30, seed=0))
