"""Runs: from a configuration to a folder with a trained network, and what that network is worth.

>>> from tempfile import TemporaryDirectory
>>> config = configure(
...     {
...         "data": {"source": "digits"},
...         "backbone": {"hidden": [32]},
...         "training": {"epochs": 4, "learning_rate": 0.005},
...     }
... )
>>> with TemporaryDirectory() as folder:
...     (summary,) = train(plan(config, folder))
...     judged = evaluate(load(folder), noise=[0.5])
>>> summary["validation_accuracy"] > 0.8, judged.result["noise"]["0.5"]["samples"]
(True, 359)
"""

from dubito.runs._config import AUGMENTS, AUTO, SECTIONS, Config, configure, known_keys, read_config
from dubito.runs._evaluate import HELD_OUT, Evaluation, averaged, evaluate
from dubito.runs._folder import Facts, Recorded, Run, folders, load, save
from dubito.runs._outside import inputs_of, part_of
from dubito.runs._report import write_report
from dubito.runs._sections import unknown
from dubito.runs._train import FINISHED, NEW, STOPPED, Member, Plan, device_named, plan, train

__all__ = [
    "AUGMENTS",
    "AUTO",
    "FINISHED",
    "HELD_OUT",
    "NEW",
    "SECTIONS",
    "STOPPED",
    "Config",
    "Evaluation",
    "Facts",
    "Member",
    "Plan",
    "Recorded",
    "Run",
    "averaged",
    "configure",
    "device_named",
    "evaluate",
    "folders",
    "inputs_of",
    "known_keys",
    "load",
    "part_of",
    "plan",
    "read_config",
    "save",
    "train",
    "unknown",
    "write_report",
]
