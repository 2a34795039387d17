"""Few-shot classification on frozen features: episodes, heads, the batched solver, figures.

>>> import torch
>>> from dubito.data import Arrays
>>> centres = 3 * torch.eye(8).repeat(30, 1)
>>> data = Arrays(centres + torch.rand(240, 8), torch.arange(240) % 8, tuple("abcdefgh"))
>>> engine = Engine(Pool.of(data), None, Setting(ways=4, shots=5), head("iedl", fisher_weight=0.01))
>>> figures = summary(evaluate(engine, episodes=100))
>>> figures["accuracy"].mean > 0.9, figures["ood/alpha0/aupr"].episodes
(True, 100)
"""

from dubito.fewshot.engine import Engine
from dubito.fewshot.episodes import PROTOCOLS, Episodes, Pool, Sampler, Setting
from dubito.fewshot.heads import HEADS, Head, head
from dubito.fewshot.lbfgs import Solver
from dubito.fewshot.presets import PRESETS, Preset
from dubito.fewshot.results import PART, Figure, Shard, evaluate, run, summary
from dubito.fewshot.scalings import SCALINGS, Scaling, scaling

__all__ = [
    "HEADS",
    "PART",
    "PRESETS",
    "PROTOCOLS",
    "SCALINGS",
    "Engine",
    "Episodes",
    "Figure",
    "Head",
    "Pool",
    "Preset",
    "Sampler",
    "Scaling",
    "Setting",
    "Shard",
    "Solver",
    "evaluate",
    "head",
    "run",
    "scaling",
    "summary",
]
