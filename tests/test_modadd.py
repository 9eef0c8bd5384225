"""The fast engine is the textbook model, training keeps good states only, and folders round-trip."""

import json

import numpy as np
import pytest
import torch
from plain_modadd import plain_logits
from torch.nn.functional import cross_entropy

from harness.errors import InvalidRun, ModelError, StoreError
from harness.exact import exact_nll
from harness.modadd import ModularConfig, ModularTransformer, read_config
from harness.modadd_train import Recipe, keep_freed_memory, train


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


CONFIG = ModularConfig(n=11, classes=13, d_model=24, heads=4, d_mlp=40)


def batch(rows, seed=0, config=CONFIG):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, config.n, (rows, 2), generator=generator)
    return inputs, torch.randint(0, config.classes, (rows,), generator=generator)


def doubled(config=CONFIG, seed=3):
    """A float64 model whose biases are not 0."""
    model = ModularTransformer(config, seed=seed).double()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for bias in (model.mlp_in.bias, model.mlp_out.bias):
            bias.normal_(0, 0.3, generator=generator)
    return model


def gradients(model, loss):
    return torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize("rows", [1, 7, 200])
def test_logits_and_gradients_are_those_of_the_plain_form(rows):
    model, (inputs, labels) = doubled(), batch(rows)
    fast, plain = model(inputs), plain_logits(model, inputs)
    assert (fast - plain).abs().max() < 1e-12
    ours = gradients(model, exact_nll(fast, labels).mean())
    theirs = gradients(model, cross_entropy(plain, labels))
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm(), name


def test_the_hidden_vector_gives_the_logits_and_carries_gradients():
    model, (inputs, _) = doubled(), batch(20)
    logits, hidden = model(inputs, hidden=True)
    assert hidden.shape == (20, CONFIG.d_model)
    assert (logits - plain_logits(model, inputs)).abs().max() < 1e-12
    assert (hidden @ model.unembed.weight.T - logits).abs().max() < 1e-12
    direction = torch.randn(CONFIG.d_model, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    trained = [p for name, p in model.named_parameters() if name != "unembed.weight"]
    ours = torch.autograd.grad((hidden @ direction).pow(2).mean(), trained)
    with_direction = ModularTransformer(ModularConfig(11, 1, 24, 4, 40)).double()
    weights = {**model.state_dict(), "unembed.weight": direction[None]}
    with_direction.load_state_dict(weights)
    theirs = torch.autograd.grad(
        plain_logits(with_direction, inputs).pow(2).mean(),
        [p for name, p in with_direction.named_parameters() if name != "unembed.weight"],
    )
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-11 * b.norm()


def test_parameters_agree_after_50_adamw_steps():
    inputs, labels = batch(60)
    models = [doubled(), doubled()]
    for model, forward in zip(models, (ModularTransformer.__call__, plain_logits), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1.0, betas=(0.9, 0.98))
        for _ in range(50):
            optimizer.zero_grad()
            exact_nll(forward(model, inputs), labels).mean().backward()
            optimizer.step()
    for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert (a - b).abs().max() < 1e-11


@pytest.mark.parametrize("frozen", ["embed", "query", "value", "output", "mlp_in", "mlp_out", "unembed", ""])
def test_any_part_may_be_frozen(frozen):
    model, (inputs, labels) = doubled(), batch(9)
    for name, weight in model.named_parameters():
        weight.requires_grad_(not name.startswith(frozen) if frozen else name == "unembed.weight")
    ours = gradients(model, exact_nll(model(inputs), labels).mean())
    theirs = gradients(model, cross_entropy(plain_logits(model, inputs), labels))
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-12 * b.norm()


def test_no_gradient_is_built_without_need():
    model, (inputs, _) = doubled(), batch(4)
    with torch.no_grad():
        assert not model(inputs).requires_grad
    model.requires_grad_(False)
    assert not model(inputs).requires_grad


def test_the_seed_decides_the_weights_and_leaves_torch_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (ModularTransformer(CONFIG, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(a[k], b[k]) for k in a)
    assert not torch.equal(a["key.weight"], c["key.weight"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_round_trips(tmp_path, dtype):
    model = ModularTransformer(CONFIG, seed=4)
    model.save(tmp_path / "m", dtype=dtype)
    assert json.loads((tmp_path / "m" / "config.json").read_text())["model_type"] == "modular_addition"
    back = ModularTransformer.load(tmp_path / "m")
    assert back.config == CONFIG
    for a, b in zip(model.parameters(), back.parameters(), strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(a if dtype == "float32" else a.bfloat16().float(), b)


def test_bad_folders_are_named_in_one_line(tmp_path):
    def fails(expected):
        with pytest.raises(ModelError, match=expected) as caught:
            ModularTransformer.load(tmp_path)
        assert "\n" not in str(caught.value)

    fails("no config.json")
    ModularTransformer(CONFIG).save(tmp_path)
    weights = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").unlink()
    fails("no model.safetensors")
    (tmp_path / "model.safetensors").write_bytes(weights[:100])
    fails("does not fit")
    (tmp_path / "model.safetensors").write_bytes(weights)
    config = json.loads((tmp_path / "config.json").read_text())
    for change, expected in (
        ({"classes": 7}, "does not fit"),
        ({"model_type": "llama"}, "'llama'"),
        ({"depth": 3}, "unknown fields"),
        ({"heads": 5}, "do not divide"),
        ({"n": 0}, "whole numbers"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        fails(expected)
    (tmp_path / "config.json").write_text("{")
    fails("cannot be read")
    with pytest.raises(ModelError, match="float16"):
        ModularTransformer(CONFIG).save(tmp_path, dtype="float16")


def sums(n=7):
    pairs = np.array([(a, b) for a in range(n) for b in range(n)])
    return ModularConfig(n, n, 64, 4, 128), (pairs, pairs.sum(1) % n)


def test_training_memorises_and_says_which_state_it_kept():
    config, rows = sums()
    seen = []
    trained = train(
        config, rows, Recipe(epochs=300, weight_decay=0.1, seed=1), progress=lambda *told: seen.append(told)
    )
    assert [epoch for epoch, _, _ in seen] == list(range(0, 301, 10))
    assert trained.p_right > 0.9999 and 270 <= trained.epoch <= 300
    with torch.no_grad():
        logits = trained.model(torch.from_numpy(rows[0]))
    assert (logits.argmax(1).numpy() == rows[1]).all()
    p_right = torch.exp(-exact_nll(logits, torch.from_numpy(rows[1]))).mean().item()
    assert p_right == pytest.approx(trained.p_right, abs=1e-6)


def test_training_that_memorised_nothing_is_refused():
    config, rows = sums()
    with pytest.raises(InvalidRun, match=r"no state in the last 10% of 20 epochs"):
        train(config, rows, Recipe(epochs=20))


def test_training_goes_on_where_it_was_killed(tmp_path):
    config, rows = sums()
    recipe = Recipe(epochs=300, weight_decay=0.1, seed=1)
    whole = train(config, rows, recipe)

    class Killed(Exception):
        pass

    def kill(epoch, loss, p_right):
        if epoch == 290:
            raise Killed

    path = tmp_path / "deep" / "checkpoint.pt"
    with pytest.raises(Killed):
        train(config, rows, recipe, progress=kill, checkpoint=path)
    assert path.is_file()
    with pytest.raises(StoreError, match="another recipe"):
        train(config, rows, Recipe(epochs=300, weight_decay=0.1, seed=2), checkpoint=path)
    told = []
    resumed = train(config, rows, recipe, progress=lambda *t: told.append(t), checkpoint=path)
    assert [t[0] for t in told] == [290, 300]
    assert not path.exists()
    assert resumed.epoch == whole.epoch
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_read_config_and_malloc(tmp_path):
    ModularTransformer(CONFIG).save(tmp_path)
    assert read_config(tmp_path) == CONFIG
    assert keep_freed_memory() in (True, False)
