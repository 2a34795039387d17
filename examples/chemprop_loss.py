"""Train chemprop's evidential network with dubito's loss, which takes censored targets as well.

    pip install chemprop
    python examples/chemprop_loss.py

Registered as "dubito-evidential", it can be named wherever chemprop looks up a loss. The script
first prints the gradients of both losses where nu is 1e-20.
"""

import argparse
import logging
import sys

import torch
from torch import Tensor

from dubito import NormalInverseGamma
from dubito.targets import Target

try:
    from chemprop import data, models, nn
    from chemprop.nn.metrics import EvidentialLoss, LossFunctionRegistry
    from lightning import pytorch as lightning
    from rdkit.Chem import Crippen
except ImportError:
    sys.exit("this example needs chemprop: pip install chemprop")


@LossFunctionRegistry.register("dubito-evidential")
class StableEvidentialLoss(EvidentialLoss):  # type: ignore[misc]
    """Loss of deep evidential regression of predictions (b, t, 4): mean, nu, alpha and beta.

    Targets of `lt_mask` are less than the value, those of `gt_mask` greater: they count with the
    probability of that.
    """

    def _calc_unreduced_loss(
        self, preds: Tensor, targets: Tensor, mask: Tensor, weights: Tensor, lt: Tensor, gt: Tensor
    ) -> Tensor:
        mean, nu, alpha, beta = preds.unbind(-1)
        least = torch.finfo(preds.dtype).tiny  # softplus has underflowed, and its slope with it
        dist = NormalInverseGamma(mean, nu.clamp(least), alpha - 1, beta.clamp(least))
        lower = torch.where(gt, targets, -torch.inf)
        target = Target(targets, None, lower, torch.where(lt, targets, torch.inf))
        return dist.nll(target) + self.v_kl * dist.evidence_penalty(target)


def gradient(loss: EvidentialLoss) -> float:
    """Return the slope of a loss in the raw output of nu, -46."""
    raw = torch.tensor(-46.0, requires_grad=True)
    nu, one = torch.nn.functional.softplus(raw), torch.ones(())
    preds = torch.stack((0 * one, nu, 2 * one, one)).reshape(1, 1, 4)
    loss(preds, torch.ones(1, 1)).backward()
    assert raw.grad is not None
    return raw.grad.item()


def molecules() -> tuple[data.MoleculeDataset, data.MoleculeDataset]:
    """Return small molecules with their calculated logP: 90 for training and 30 others."""
    smiles = [chain + "C" * n + end for chain in ("C", "N", "OC", "c1ccccc1") for n in range(6)
              for end in ("", "O", "N", "C(=O)O", "Cl")]  # fmt: skip
    points = [data.MoleculeDatapoint.from_smi(text, y=[0.0]) for text in smiles]
    for point in points:
        point.y[0] = Crippen.MolLogP(point.mol)
    training = [point for place, point in enumerate(points) if place % 4]
    return data.MoleculeDataset(training), data.MoleculeDataset(points[::4])


def main(arguments: list[str] | None = None) -> None:
    """Compare the gradients, train, and print the error of the mean and the median deviation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args(arguments)
    for name in ("evidential", "dubito-evidential"):
        print(f"{name:18} gradient at nu = 1e-20: {gradient(LossFunctionRegistry[name]()):.3g}")

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning.seed_everything(0, verbose=False)
    training, held_out = molecules()
    scaler = training.normalize_targets()
    held_out.normalize_targets(scaler)
    head = nn.EvidentialFFN(
        criterion=LossFunctionRegistry["dubito-evidential"](v_kl=0.01),
        output_transform=nn.UnscaleTransform.from_standard_scaler(scaler),
    )
    network = models.MPNN(nn.BondMessagePassing(), nn.MeanAggregation(), head)
    trainer = lightning.Trainer(
        max_epochs=options.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    batches = data.build_dataloader(held_out, shuffle=False, num_workers=0)
    trainer.fit(network, data.build_dataloader(training, num_workers=0), batches)
    mean, nu, alpha, beta = torch.cat(trainer.predict(network, batches)).unbind(-1)
    dist = NormalInverseGamma(mean, nu, alpha - 1, beta)
    y = torch.from_numpy(scaler.inverse_transform(held_out.Y)).float()
    error, spread = (y - mean).square().mean().sqrt(), y.std()
    print(f"rmse {error:.3f} of logP, whose deviation is {spread:.2f}")
    print(f"median predicted deviation {dist.variance.sqrt().median():.3f}")


if __name__ == "__main__":
    main()
