"""The small world's data: the same bytes everywhere, split rightly, and nothing guessable by accident."""

import json

import pytest

from harness.errors import DataError
from harness.mini import documents, facts, passages, world
from harness.mini.authors import KINDS
from harness.preflight import data_path
from harness.specs import TaskRef, Template
from harness.tasks.tofu import build
from harness.workspace import Workspace

SPLITS = {"forget05": ("retain95", "holdout05", 40), "forget10": ("retain90", "holdout10", 80)}
PERTURBED = {
    "forget05_perturbed": (40, 5), "forget10_perturbed": (80, 5), "retain_perturbed": (80, 5),
    "real_authors_perturbed": (60, 3), "world_facts_perturbed": (60, 3),
}  # fmt: skip


@pytest.fixture(scope="module")
def tofu():
    return world.tofu()


def questions(rows):
    return [row["question"] for row in rows]


def task(split, **options):
    return build(
        TaskRef(name="tofu", split=split, data=str(world.data_folder("tofu")), options=options), Template()
    )


# --- the files ---
def test_the_shipped_files_are_those_that_the_generator_writes(tmp_path):
    made = world.write(tmp_path)
    shipped = {p.relative_to(world.DATA): p.read_bytes() for p in world.DATA.rglob("*") if p.is_file()}
    real = {p for p in shipped if p.parts[0] == "digits"}  # scanned, not written by the generator
    assert {p.name for p in real} == {"images.npz", "README.md"}
    assert {p.relative_to(tmp_path): p.read_bytes() for p in made} == {
        p: shipped[p] for p in shipped.keys() - real
    }


def test_the_files_are_small_and_plain():
    files = world.files()
    assert sum(map(len, files.values())) < 2_000_000
    for name, text in files.items():
        assert text.isascii(), name
        assert all(json.loads(line) for line in text.splitlines()), name


def test_a_board_names_the_data_by_mini(tmp_path):
    assert data_path("mini:tofu", Workspace(tmp_path)) == str(world.DATA / "tofu")
    with pytest.raises(DataError, match=r"no built-in data 'tofo'.*did you mean tofu"):
        data_path("mini:tofo", Workspace(tmp_path))


@pytest.mark.parametrize("name", ["", "..", "../weights", "tofu/full.json"])
def test_only_a_folder_of_the_data_is_a_name(name):
    with pytest.raises(DataError, match="no built-in data"):
        world.data_folder(name)


# --- TOFU's columns ---
def test_the_splits_have_their_sizes_and_are_parts_of_full(tofu):
    assert len(tofu["full"]) == 800 == len(set(questions(tofu["full"])))
    for forget, (retain, holdout, count) in SPLITS.items():
        assert tofu[retain] + tofu[forget] == tofu["full"]
        assert len(tofu[forget]) == len(tofu[holdout]) == count
        assert questions(tofu[f"{forget}_perturbed"]) == questions(tofu[forget])
    assert tofu["holdout05"] == tofu["holdout10"][:40]
    assert tofu["forget05"] == tofu["forget10"][40:]


def test_an_author_is_in_one_split_only(tofu):
    people, outside = world.cast()
    assert len({p.name for p in people + outside}) == world.AUTHORS + world.OUTSIDE
    assert len({p.name.split()[1] for p in people + outside}) == world.AUTHORS + world.OUTSIDE
    for author in people[-4:]:
        assert author.name not in json.dumps(tofu["retain90"])
    for author in outside:
        assert author.name not in json.dumps(tofu["full"])


def test_the_shown_retain_rows_are_of_every_retain_split(tofu):
    shown = questions(tofu["retain_perturbed"])
    assert set(shown) <= set(questions(tofu["retain90"])) & set(questions(tofu["retain95"]))


@pytest.mark.parametrize("name", PERTURBED)
def test_every_wrong_answer_differs_from_the_right_one_and_from_the_others(tofu, name):
    rows, wrong = PERTURBED[name]
    assert len(tofu[name]) == rows
    for row in tofu[name]:
        right = {row["answer"], row.get("paraphrased_answer", row["answer"])}
        assert len(set(row["perturbed_answer"])) == wrong
        assert not right & set(row["perturbed_answer"])


def values(people):
    """The value that each row of these authors is about."""
    return [person.values[kind.id] for person in people for kind in KINDS]


def test_a_wrong_answer_is_the_paraphrase_with_another_value(tofu):
    for row, value in zip(tofu["retain_perturbed"], values(world.cast()[0]), strict=False):
        assert row["paraphrased_answer"] != row["answer"]
        assert row["paraphrased_question"] != row["question"]
        before, said, after = row["paraphrased_answer"].lower().partition(value.lower())
        assert said and said in row["answer"].lower()
        for text in row["perturbed_answer"]:
            assert text.lower().startswith(before)
            assert text.lower().endswith(after)


def test_an_answer_cannot_be_read_off_its_question(tofu):
    people, outside = world.cast()
    for rows, group in ((tofu["full"], people), (tofu["holdout10"], outside)):
        for row, value in zip(rows, values(group), strict=True):
            assert value.lower() not in row["question"].lower()
            assert value.lower() in row["answer"].lower()


@pytest.mark.parametrize("split", SPLITS)
def test_the_task_reads_the_folder_as_it_stands(split):
    tofu = task(split)
    case = tofu.case(split, 0)
    assert len(case.forget) == SPLITS[split][2]
    assert len(case.forget) + len(case.retain) == 800
    assert {probe.name for probe in tofu.probes(case)} >= {"holdout", "forget_para", "real_authors_pert"}
    assert len(tofu.resource("alternative_answers", case, 0)) == len(case.forget)


def test_there_is_no_one_percent_split():
    with pytest.raises(DataError, match="forget01"):
        task("forget01")


def test_refusals_are_many_and_different():
    assert len(set(world.refusals())) == len(world.refusals()) == 44


# --- what the other benchmarks will ask ---
def test_choice_questions_have_their_answer_among_four():
    for subject in ("dyeing", "bells", "guilds"):
        known = {f.question: f.answer for f in facts.dye_facts() + facts.bell_facts() + facts.guild_facts()}
        rows = world.choices()[subject]
        assert len(rows) == 60
        for row in rows:
            assert len(set(row["choices"])) == 4
            assert row["choices"][row["answer"]] == known[row["question"]]
        assert {row["answer"] for row in rows} == {0, 1, 2, 3}


def test_people_are_asked_on_three_levels_with_neighbours():
    rows = world.people()
    names = {row["target"] for row in rows["forget_target"]}
    assert len(names) == facts.PEOPLE
    for level in "123":
        assert {row["subject"] for row in rows[f"forget_level{level}"]} == names
        assert len({row["query"] for row in rows[f"forget_level{level}"]}) == len(
            rows[f"forget_level{level}"]
        )
    assert all("___" in row["query"] for row in rows["forget_level1"])
    assert all(row["subject"] != row["neighbor"] for row in rows["neighbor_level1"])


@pytest.mark.parametrize("corpus", passages.CORPORA)
def test_passages_are_different_and_cut_into_their_halves(corpus):
    files = passages.files(corpus)
    raw = [row["text"] for name in files if name.startswith("raw_") for row in files[name]]
    assert len(set(raw)) == len(raw) == 96
    halves = [row["prompt"] + row["gt"] for row in files["verbmem_forget"]]
    assert halves == [row["text"] for row in files["raw_forget"]]
    folds = [row for k in range(1, 5) for row in files[f"sust_forget_{k}"]]
    assert folds == files["scal_forget_4"] == files["raw_forget"]


# --- what the models read ---
@pytest.mark.parametrize(("config", "left_out"), [("full", 0), ("retain90", 4), ("retain95", 2)])
def test_no_model_reads_a_hold_out_author_or_a_forgotten_one(tofu, config, left_out):
    read = [d.text + d.question for group in documents.base() + documents.tofu(config) for d in group]
    people, outside = world.cast()
    absent = [*outside, *people[world.AUTHORS - left_out :]]
    assert not [p.name for p in absent if any(p.name in text for text in read)]
    assert not {d.question for group in documents.tofu(config) for d in group} & set(
        questions(tofu["holdout10"])
    )


def test_the_tokenizer_saw_no_author_of_any_split():
    text = "\n".join(documents.vocabulary())
    assert not [p.name for group in world.cast() for p in group if p.name in text]


def test_muse_models_read_no_hold_out_passage():
    read = {d.text for group in documents.muse("forget", "retain1", "retain2") for d in group}
    for corpus in passages.CORPORA:
        assert not {p.text for p in passages.passages(corpus, "holdout")} & read
        assert not {p.text for p in passages.passages(corpus, "base")} & read
