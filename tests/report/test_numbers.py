"""The report's numbers: read, compared with the published ones, and counted."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dubito.report import reproduction
from dubito.report.reproduction.formats import markdown
from dubito.report.reproduction.layout import Entry, Table
from dubito.report.reproduction.published import Published, key_of, published, verdict
from dubito.report.reproduction.records import Records
from dubito.report.reproduction.summary import grouped
from report import synthetic

Made = reproduction.Report
Data = list[dict[str, Any]]


CELL = """[[table]]
label = 'x'
cell = [{ method = 'edl', ways = 5, shots = 1, metric = 'accuracy', mean = 61.0, deviation = 0.2 }]
"""
CODE = """[code]
cell = [{ method = 'edl', ways = 5, shots = 1, accuracy = [60.0, 0.6], confidence = [79.0], \
aupr = [74.0], auroc = [71.0] }]
"""


def table_of(made: Made, key: str) -> Table:
    return next(table for table in made.tables if table.key == key)


def entry_of(made: Made, label: str) -> Entry:
    return next(e for t in made.tables for e in t.entries if e.label == label)


# --- published numbers and verdicts --------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "mean", "deviation", "better", "wanted"),
    [
        (98.54, 98.34, 0.2, "higher", "agrees"),  # ends belong to it, whatever rounding makes
        (98.14, 98.34, 0.2, "higher", "agrees"),
        (98.13, 98.34, 0.2, "higher", "worse"),
        (98.55, 98.34, 0.2, "higher", "better"),
        (98.55, 98.34, 0.2, "lower", "worse"),
        (98.13, 98.34, 0.2, "lower", "better"),
        (84.88, 84.85, 0.0, "higher", "agrees"),  # 0.0 was rounded from less than 0.05
        (84.91, 84.85, 0.0, "higher", "better"),
        (math.inf, 84.85, 0.1, "higher", None),
    ],
)
def test_verdicts(ours: float, mean: float, deviation: float, better: Any, wanted: Any) -> None:
    assert verdict(ours, Published(mean, deviation, "tab"), better) == wanted


def test_the_papers_numbers_are_found_however_names_are_spelt(paper: dict[str, Any]) -> None:
    found = published(paper)
    one = found[key_of("CIFAR-10", "I_EDL", "SVHN", "alpha0", "aupr")]
    assert (one.mean, one.deviation, one.table) == (82.96, 2.2, "tab_ood")
    assert found[key_of("cifar10", "posterior-network")].mean == 84.85
    assert found[key_of("mnist", "edl", "fmnist", "max_prob", "auroc")].mean == 97.39
    # 44 cells of tab_ood, 17 of tab_conf; the appendix repeats Max.P and alpha0 of AUPR
    assert len(found) == 44 + 17 + (5 * 8 - 5 * 2) + 6 * (8 - 2)
    assert not any("imagenet" in key[0] for key in found)


def test_numbers_that_are_printed_twice_and_differently_say_so(paper: dict[str, Any]) -> None:
    one = published(paper)[key_of("mnist", "edl", "kmnist", "alpha0", "aupr")]
    assert one.deviation == 2.0
    assert one.also == ("app_exp_auroc_other has 96.31 ±0.2",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "idl"}, r"unknown method .*'idl'; known: .*'iedl'"),
        ({"metric": "f1"}, r"unknown metric .*known: 'accuracy'"),
        ({"measure": "alpha"}, r"unknown measure .*'max_alpha'"),
        ({"mean": None}, r"lacks 'mean'"),
        ({"mean": "x"}, r"'mean' in a cell of the table 'tab_x' of the paper must be a number"),
        ({"deviation": math.nan}, r"'deviation' .* must be a number >= 0, not nan"),
        ({"mean": True}, r"'mean' .* must be a number, not True"),
        ({"method": 3}, r"'method' .* must be a text, not 3"),
        ({"metric": ["aupr"]}, r"'metric' .* must be a text"),
    ],
)
def test_bad_cells_of_the_paper_are_named(change: dict[str, Any], words: str) -> None:
    cell = {"method": "edl", "data": "mnist", "metric": "aupr", "measure": "max_prob",
            "mean": 1.0, "deviation": 0.1} | change  # fmt: skip
    cell = {key: value for key, value in cell.items() if value is not None}
    with pytest.raises(ValueError, match=words):
        published({"table": [{"label": "tab_x", "cell": [cell]}]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("=", "is no toml"),
        ("\xff".encode("latin-1"), "is no toml: 'utf-8' codec"),
        ("table = 3", "`table` must be a list of tables, not int"),
        ("[table]\nlabel = 'x'", "`table` must be a list of tables, not dict"),
        ("table = [3]", "`table` must be a list of tables, and 3 is none"),
        ("[[table]]\ncell = []", "a table of the paper needs a text as its `label`, not None"),
        ("[[table]]\nlabel = 3", "a table of the paper needs a text as its `label`, not 3"),
        ("[[table]]\nlabel = 'x'\ncell = 3", "`cell` of the table 'x' must be a list of tables"),
        ("[[table]]\nlabel = 'x'\ncell = ['y']", "and 'y' is none"),
        (CELL.replace("61.0", "'61'"), "'mean' in a cell of the table 'x' .* must be a number"),
        (CELL.replace("shots = 1, ", ""), "lacks 'shots'"),
        (CELL.replace("ways = 5", "ways = 'five'"), "'ways' .* must be a whole number"),
        (CELL.replace("accuracy", "aupr"), "lacks 'measure'"),
        (CELL.replace("accuracy", "auprr"), "lacks 'measure'"),
        (CELL.replace("'accuracy'", "'auprr', measure = 'alpha0'"), "unknown metric .* 'auprr'"),
        (CELL.replace("'accuracy'", "'aupr', measure = 'alfa0'"), "unknown measure .* 'alfa0'"),
        (CELL.replace("0.2", "-0.2"), "'deviation' .* must be a number >= 0, not -0.2"),
        ("code = 3", "`code` must be a table that has a list `cell`, not 3"),
        ("[code]\ncell = 3", "`cell` of `code` must be a list of tables"),
        ("[code]\ncell = [{ ways = 5 }]", "a cell of `code` lacks 'method'"),
        (CODE.replace("[60.0, 0.6]", "60.0"), r"'accuracy' .* must be \[mean\] or .*, not 60.0"),
        (CODE.replace("[79.0]", "[1, 2, 3]"), "'confidence' in a cell of `code` must be"),
    ],
)
def test_a_file_of_published_numbers_that_is_none_is_named(
    tmp_path: Path, text: str | bytes, words: str
) -> None:
    path = tmp_path / "mine.toml"
    for whole in (CELL, CODE):
        path.write_text(whole)
        assert reproduction.read_paper(path)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"mine.toml .*{words}"):
        reproduction.read_paper(path)


# --- records -------------------------------------------------------------------------------------


def test_reading_gives_what_was_written(tmp_path: Path) -> None:
    every = [synthetic.record("mnist-edl", seed) for seed in (322, 365)]
    for record in every:
        path = tmp_path / record["recipe"] / f"seed-{record['seed']}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record))
    (tmp_path / "results.json").write_text("{}")
    assert reproduction.read(tmp_path) == every
    path.write_text("{")
    with pytest.raises(ValueError, match=r"seed-365.json is no json"):
        reproduction.read(tmp_path)


def written(folder: Path, record: object, seed: int = 322) -> None:
    path = folder / "mnist-edl" / f"seed-{seed}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(record))


def test_seeds_of_another_state_of_a_recipe_are_left_out(tmp_path: Path) -> None:
    old, new, faster = (synthetic.record("mnist-edl", seed) for seed in (322, 365, 382))
    old["created"], new["created"], faster["created"] = "2026-01-01", "2026-01-03", "2026-01-02"
    new["config"]["training"]["epochs"] = faster["config"]["training"]["epochs"] = 7
    faster["config"]["training"]["compile"] = True  # which changes nothing
    for record in (old, new, faster):
        written(tmp_path, record, record["seed"])
    words = r"'mnist-edl', seed 322, is left out: it has another training.epochs than the newest"
    with pytest.warns(UserWarning, match=words):
        assert reproduction.read(tmp_path) == [new, faster]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([1, 2], "a record is a table, not list"),
        ({"config": None}, "has config None"),
        ({"config": {"training": 3}}, "has config"),
        ({"seed": "x"}, "has seed 'x'"),
        ({"recipe": None}, "has recipe None"),
        ({"result": {"accuracy": float("nan")}}, "NaN is no figure"),
    ],
)
def test_a_foreign_record_is_named(tmp_path: Path, record: Any, words: str) -> None:
    whole = synthetic.record("mnist-edl", 322)
    written(tmp_path, {**whole, **record} if isinstance(record, dict) else record)
    told = rf"seed-322.json (can't be reported|is no json): .*{words}"
    with pytest.raises(ValueError, match=told):
        reproduction.read(tmp_path)


def test_a_folder_without_records_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no records"):
        reproduction.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        reproduction.read(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 2}, "seed 365, has format 2: this version reads 1"),
        ({"quick": True}, "quick are the records of mnist-edl"),
        ({"seed": 322}, "two records of the recipe 'mnist-edl' have the seed 322"),
        ({"result": None}, "lacks result"),
    ],
)
def test_records_that_do_not_fit_are_refused(change: dict[str, Any], words: str) -> None:
    first, second = (synthetic.record("mnist-edl", seed) for seed in (322, 365))
    second = {k: v for k, v in (second | change).items() if v is not None}
    with pytest.raises(ValueError, match=words):
        Records([first, second])


# --- tables --------------------------------------------------------------------------------------


def test_every_table_of_the_issue_is_there(made: Made) -> None:
    keys = {table.key for table in made.tables}
    for data, others in synthetic.OOD.items():
        assert {f"ood-{data}-{name}" for name in others} <= keys
        for kind in ("confidence", "ablation", "lambda", "label-smoothing", "calibration",
                     "calibrated-ood", "fpr95", "aurc", "energy"):  # fmt: skip
            assert f"{kind}-{data}" in keys
        assert f"noise-{data}-0.1" in keys
    assert "people-cifar10" in keys
    assert "people-mnist" not in keys
    assert len(keys) == len(made.tables)
    assert table_of(made, "ood-cifar10-svhn").title == "CIFAR-10 → SVHN (re-cropped)"


def test_cells_are_the_mean_and_deviation_of_the_records(made: Made, all_records: Data) -> None:
    checked = 0
    for recipe in ("mnist-iedl", "cifar10-posterior-network"):
        mine = [r["result"] for r in all_records if r["recipe"] == recipe]
        for ood in mine[0]["ood"]:
            for measure in ("max_prob", "alpha0", "differential_entropy", "mutual_information"):
                for metric in ("aupr", "auroc", "fpr95"):
                    values = [100 * r["ood"][ood]["detection"][measure][metric] for r in mine]
                    entry = entry_of(made, f"{recipe}/ood/{ood}/{measure}/{metric}")
                    assert entry.mean == pytest.approx(np.mean(values))
                    assert entry.deviation == pytest.approx(np.std(values, ddof=1))
                    assert entry.ours == f"{np.mean(values):.2f}"
                    assert entry.spread == f"±{np.std(values, ddof=1):.2f}"
                    checked += 1
    assert checked == 2 * 2 * 4 * 3
    after = entry_of(made, "mnist-iedl/calibrated/calibration/ece")
    before = entry_of(made, "mnist-iedl/calibration/ece")
    assert after.mean is not None
    assert after.mean == pytest.approx((before.mean or 0) / 5)


def test_the_best_of_a_column_is_marked(made: Made) -> None:
    for key, better in (("ood-mnist-kmnist", max), ("fpr95-cifar10", min)):
        table = table_of(made, key)
        for at in range(len(table.columns)):
            column = [row.entries[at] for row in table.rows]
            shown = [round(e.mean, 2) for e in column if e.mean is not None]
            marked = {round(e.mean, 2) for e in column if e.best and e.mean is not None}
            assert marked == {better(shown)}


def test_rows_are_the_papers_and_what_else_was_run(made: Made, records: Data, paper: Any) -> None:
    names = [row.name for row in table_of(made, "ood-mnist-kmnist").rows]
    assert names == ["Softmax", "Label smoothing", "MC Dropout", "KL-PN", "RKL-PN", "PostN",
                     "R-EDL", "EDL", "I-EDL"]  # fmt: skip
    few = [r for r in records if r["recipe"] in ("mnist-iedl", "mnist-edl")]
    few.append(synthetic.record("mnist-iedl-longer", 322))
    less = table_of(reproduction.report(few, paper), "ood-mnist-kmnist")
    assert [row.name for row in less.rows] == [
        "MC Dropout", "KL-PN", "RKL-PN", "PostN", "EDL", "I-EDL", "I-EDL (longer)"
    ]  # fmt: skip
    # a recipe of our own is beside the paper's, and not compared with it
    assert all(e.published is None for e in less.rows[-1].entries)
    assert all(e.runs for e in less.rows[-1].entries)


def test_what_is_missing_says_why(records: Data, paper: Any) -> None:
    few = [r for r in records if r["recipe"] not in ("mnist-kl-pn", "mnist-rkl-pn")]
    for record in few:
        if record["recipe"] == "mnist-edl":
            del record["result"]["ood"]["kmnist"], record["result"]["calibrated"]
            record["result"]["misclassification"] = {}
    made = reproduction.report(few, paper)
    reasons = {
        "mnist-kl-pn/ood/kmnist/max_prob/aupr": "not run",
        "mnist-mc-dropout/ood/kmnist/alpha0/aupr": "this method has no α₀",
        "mnist-edl/ood/kmnist/max_prob/aupr": "not measured: the records have no 'kmnist'",
        "mnist-edl/calibrated/calibration/ece": "not calibrated",
        "mnist-edl/misclassification/max_prob/aupr": "all predictions are alike",
    }
    for label, reason in reasons.items():
        entry = entry_of(made, label)
        assert (entry.ours, entry.reason, entry.verdict) == ("–", reason, None)
        assert entry.hint.startswith(reason)
    assert "paper: 92.97 ±1.2, tab_ood" in entry_of(made, next(iter(reasons))).hint
    missing = {finding.entry.label for finding in made.summary.missing}
    assert "mnist-kl-pn/ood/kmnist/max_prob/aupr" in missing
    assert "mnist-mc-dropout/ood/kmnist/alpha0/aupr" not in missing  # the paper has none either


def test_one_seed_has_no_deviation_and_still_a_verdict(paper: Any) -> None:
    made = reproduction.report([synthetic.record("mnist-iedl", 322)], paper)
    entry = entry_of(made, "mnist-iedl/ood/kmnist/max_prob/aupr")
    assert entry.spread == ""
    assert entry.verdict is not None
    assert entry.hint.startswith("1 seed (322: ")


def test_infinity_is_shown_as_such(records: Data, paper: Any) -> None:
    for record in records:
        if record["recipe"] == "mnist-softmax":
            record["result"]["calibration"]["nll"] = "inf"
    entry = entry_of(reproduction.report(records, paper), "mnist-softmax/calibration/nll")
    assert (entry.ours, entry.spread, entry.best) == ("∞", "", False)


def test_the_sweep_is_by_lambda_and_has_what_stands_beside_it(made: Made) -> None:
    table = table_of(made, "lambda-mnist")
    assert [row.name for row in table.rows] == ["0", "0.001", "0.005", "0.01", "0.05", "0.1"]
    assert table.rows[0].recipe == "mnist-iedl-no-logdet"
    assert table.rows[4].recipe == "mnist-iedl-lambda-0.05"
    assert table_of(made, "ablation-mnist").rows[1].seeds == ()  # MSE + log det was not run


# --- summary -------------------------------------------------------------------------------------


def test_each_published_number_is_counted_once(made: Made, paper: Any) -> None:
    counts = made.summary.counts
    assert sum(counts.values()) == len(published(paper))
    judged = {e.label: e.verdict for t in made.tables for e in t.entries if e.published}
    assert counts["worse"] == sum(v == "worse" for v in judged.values()) > 0
    assert counts["better"] == sum(v == "better" for v in judged.values()) > 0
    assert counts["agrees"] == sum(v == "agrees" for v in judged.values()) > 0
    assert counts["missing"] == 0
    named = [f.entry.label for group in grouped(made.summary.worse) for f in group.findings]
    assert sorted(named) == sorted(label for label, v in judged.items() if v == "worse")
    assert str(counts["worse"]) in made.summary.sentence


def test_a_name_that_is_spelt_like_a_methods_has_no_published_number(
    records: Data, paper: Any
) -> None:
    total = sum(reproduction.report(records, paper).summary.counts.values())
    more = [{**r, "recipe": "mnist-kl_pn"} for r in records if r["recipe"] == "mnist-kl-pn"]
    assert more
    assert sum(reproduction.report([*records, *more], paper).summary.counts.values()) == total


def test_the_order_of_methods_is_checked(made: Made, records: Data, paper: Any) -> None:
    order = made.summary.order
    # the paper has I-EDL ahead in all of its 32 OOD cells and three on confidence and accuracy
    assert order.compared == 4 * 8 + 3
    assert order.kept + len(order.broken) == order.compared
    other = {"mnist-edl": "mnist-iedl", "mnist-iedl": "mnist-edl"}
    for record in records:
        record["recipe"] = other.get(record["recipe"], record["recipe"])
    swapped = reproduction.report(records, paper).summary.order
    assert swapped.compared == 16
    assert swapped.kept == 16 - sum("MNIST" in words for words in swapped.broken)
    assert len(swapped.broken) > 12
    assert any(w.startswith("MNIST → KMNIST, AUPR Max.P: ") for w in swapped.broken)


def test_the_order_of_what_both_methods_vary_is_counted_apart(records: Data, paper: Any) -> None:
    assert reproduction.report(records, paper).summary.order.variants == ()
    varied = {"mnist-edl": "mnist-iedl-averaged", "mnist-iedl": "mnist-edl-averaged"}  # swapped
    more = [{**r, "recipe": varied[r["recipe"]]} for r in records if r["recipe"] in varied]
    alone = [{**r, "recipe": "mnist-iedl-long"} for r in records if r["recipe"] == "mnist-iedl"]
    plain = reproduction.report(records, paper).summary.order
    order = reproduction.report([*records, *more, *alone], paper).summary.order
    assert (order.kept, order.compared, order.broken) == (plain.kept, plain.compared, plain.broken)
    ((name, kept, of, on),) = order.variants
    assert (name, of, on) == ("averaged", 16, "MNIST")
    assert kept < 4
    assert f"(averaged in {kept} of 16 on MNIST)" in order.sentence


def test_the_order_is_told_where_variants_alone_were_run(records: Data, paper: Any) -> None:
    given = [
        {**r, "recipe": f"{r['recipe']}-{variant}"}
        for r in records
        if r["recipe"] in ("mnist-edl", "mnist-iedl")
        for variant in ("averaged", "long")
    ]
    summary = reproduction.report(given, paper).summary
    (_, kept, of, on), again = summary.order.variants
    assert again == ("long", kept, of, on)
    assert of == 16
    assert summary.sentence.endswith(
        f"in the paper. I-EDL (averaged) is ahead of EDL (averaged) in {kept} of the 16 cells in "
        f"which the paper has it so (long in {kept} of 16 on MNIST)."
    )
    alone = [r for r in given if r["recipe"] != "mnist-edl-long"]
    order = reproduction.report(alone, paper).summary.order
    assert order.sentence.endswith("cells in which the paper has it so.")
    assert reproduction.report(given[:1], paper).summary.sentence.endswith("none in the paper.")


def test_an_order_that_is_not_kept_is_named_and_explained(records: Data, paper: Any) -> None:
    other = {"mnist-edl": "mnist-iedl", "mnist-iedl": "mnist-edl"}
    for record in records:
        record["recipe"] = other.get(record["recipe"], record["recipe"])
    notes = {"mnist-iedl/*": "Swapped on purpose.", "cifar10-iedl/accuracy": "Not of this."}
    swapped = reproduction.report(records, paper, notes)
    order = swapped.summary.order
    assert order.notes == ("Swapped on purpose.",)
    text = markdown(swapped.sections, swapped.summary, False, "figures")
    assert order.sentence in text
    named = text.partition("## Where I-EDL is not ahead of EDL\n\n")[2].partition("\n## ")[0]
    assert named.count("\n- ") + 1 == len(order.broken)
    assert "Swapped on purpose." in named
    assert "Not of this." not in named


def test_notes_explain_by_label_and_by_pattern(records: Data, paper: Any) -> None:
    label = "mnist-kl-pn/ood/kmnist/alpha0/aupr"
    notes = {"mnist-kl-pn/*": "All of it.", label: "This one."}
    found = {
        f.entry.label: f.note for f in reproduction.report(records, paper, notes).summary.worse
    }
    assert found[label] == "This one."
    assert found["mnist-kl-pn/ood/kmnist/max_prob/aupr"] == "All of it."
    assert {n for one, n in found.items() if "kl-pn" not in one} <= {""}
    made = reproduction.report(records, paper, notes)
    named = markdown(made.sections, made.summary, False, "figures").partition("\n## ")[2]
    named = named.partition("\n## ")[0]
    assert len({f.table.key for f in made.summary.worse if f.note == "All of it."}) > 1
    assert named.count("All of it.") == 1
    assert named.rindex(", KL-PN: ") < named.index("All of it.")
    wrong = label.replace("alpha0", "alpha")
    with pytest.raises(ValueError, match=f"{wrong}' is about no cell.* mean '{label}'"):
        reproduction.report(records, paper, {wrong: "Why?"})


def test_variants_that_reach_a_number_are_named_beside_it(records: Data, paper: Any) -> None:
    label = "mnist-kl-pn/ood/kmnist/alpha0/aupr"
    for variant, aupr in (("short", 0.95), ("long", 0.99), ("worst", 0.1)):
        record = copy.deepcopy(next(r for r in records if r["recipe"] == "mnist-kl-pn"))
        record["recipe"] += f"-{variant}"
        record["result"]["ood"]["kmnist"]["detection"]["alpha0"]["aupr"] = aupr
        records.append(record)
    made = reproduction.report(records, paper)
    found = {f.entry.label: f for f in made.summary.worse}
    assert found[label].reached == ("long 99.00", "short 95.00")
    assert label.replace("alpha0", "max_prob") in found  # which they all have as it was
    assert not found[label.replace("alpha0", "max_prob")].reached
    reached = sum(bool(finding.reached) for finding in made.summary.worse)
    assert 0 < reached < len(found)
    assert f" are not reached (a variant of the method reaches {reached} of them) and " in (
        made.summary.sentence
    )
    only = replace(made.summary, worse=(found[label],), counts=made.summary.counts | {"worse": 1})
    assert " 1 are not reached (a variant of the method reaches all of them) and " in only.sentence
    text = markdown(made.sections, made.summary, False, "figures")
    assert f"(paper {found[label].entry.paper}; variants: long 99.00, short 95.00)" in text


def test_notes_are_read_from_beside_the_records(tmp_path: Path) -> None:
    assert reproduction.read_notes(tmp_path) == {}
    (tmp_path / reproduction.NOTES).write_text('"mnist-edl/*" = "Why."\n')
    assert reproduction.read_notes(tmp_path) == {"mnist-edl/*": "Why."}
    (tmp_path / reproduction.NOTES).write_text("[mnist]\nedl = 1\n")
    with pytest.raises(ValueError, match=r"'mnist' must be a text in quotes"):
        reproduction.read_notes(tmp_path)
    for wrong in (b"=", b"'mnist-edl/*' = '\xff'"):
        (tmp_path / reproduction.NOTES).write_bytes(wrong)
        with pytest.raises(ValueError, match=rf"{reproduction.NOTES} is no toml"):
            reproduction.read_notes(tmp_path)
