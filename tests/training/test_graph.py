"""Parts of captured steps that need no GPU."""

import copy

import torch

from dubito import methods
from dubito.augmentations.shift import Shift
from dubito.formats import ArrayFormat, Preprocessing
from dubito.model import Model
from dubito.tasks import Classification
from dubito.training.batches import Reader
from dubito.training.graph import compiled, gather
from dubito.training.run import add_step, loss_function
from tests.training.helpers import SHORT

TASK = Classification(classes=tuple("abcd"), counts=(5, 5, 5, 5))
PREPROCESSING = Preprocessing(inputs=ArrayFormat(shape=(3, 32, 32), dtype="uint8"))


def model(seed: int = 0) -> Model:
    """Build a network with batch norm, whose buffers change, and with flows."""
    method = methods.METHODS.build("posterior_network", flow_length=2)
    backbone = {"name": "mlp", "hidden": (8,)}
    return Model.build(method, TASK, PREPROCESSING, backbone, seed=seed)


def test_one_compilation_serves_all_networks() -> None:
    alone = [model(seed).network.train() for seed in range(2)]
    together = copy.deepcopy(alone)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    x = torch.randn(3, 3, 32, 32)
    for one, other, forward in zip(alone, together, compiled(together, "aot_eager"), strict=True):
        for _ in range(2):
            expected, outputs = one(x), forward(x)
            torch.testing.assert_close(outputs, expected)
        expected.sum().backward()
        outputs.sum().backward()
        for ours, theirs in zip(other.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad)
        for ours, theirs in zip(other.buffers(), one.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


def test_gather_compiles_without_breaks_and_reads_the_order() -> None:
    config = SHORT.model_copy(update={"augment": Shift()})
    pixels = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8)
    target = torch.arange(20) % 4
    reader = Reader((pixels, target), model(), config, torch.device("cpu"), "training")
    order = torch.randperm(20)
    changes = config.augment.draw(20, torch.Generator())  # type: ignore[union-attr]
    fast = torch.compile(gather, dynamic=False, backend="aot_eager", fullgraph=True)
    rows = order[4:12]
    (expected,) = reader.read([rows], [changes[4:12]])
    for function in (gather, fast):
        x, labels = function(reader, order, changes, torch.arange(4, 12))
        torch.testing.assert_close(x, expected[0])
        assert torch.equal(labels, target[rows])


def test_loss_compiles_without_breaks() -> None:
    loss = loss_function(methods.METHODS.build("rkl_pn"), torch.tensor([1.0, 2.0, 3.0, 4.0]))
    fast = torch.compile(loss, dynamic=False, backend="aot_eager", fullgraph=True)
    arguments = torch.randn(6, 4), torch.tensor([0, 1, 2]), torch.ones(2)
    for actual, expected in zip(fast(*arguments), loss(*arguments), strict=True):
        torch.testing.assert_close(actual, expected)


def test_step_is_recorded_on_the_device() -> None:
    table, step = torch.zeros(2, 5, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
    fast = torch.compile(add_step, dynamic=False, backend="aot_eager", fullgraph=True)
    for loss in (torch.tensor(3.0), torch.tensor(torch.nan)):
        outputs = torch.tensor([-1.0, 2.0], dtype=torch.bfloat16)
        fast(table, step, loss, outputs, torch.tensor([8.0, 16777215.0]))
    assert step.tolist() == [2]
    assert table[0].tolist() == [3.0, -1.0, 2.0, 8.0, 16777215.0]
    assert table[1].isnan().tolist() == [True, False, False, False, False]
