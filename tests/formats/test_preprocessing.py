"""Preprocessing: fit and normalization."""

import pytest
import torch
from pydantic import ValidationError

from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, ImageFormat, Preprocessing

IMAGES = ImageFormat(size=(8, 8), mode="RGB")


def fit(x, **options):
    return Preprocessing.fit(ArrayFormat.fit(x.numpy()), x, **options)


def test_flat_numbers_are_standardized_or_stay():
    x = torch.randn(500, 2) * torch.tensor([3.0, 0.1]) + torch.tensor([5.0, -7.0])
    normalized = fit(x).normalize(x)
    torch.testing.assert_close(normalized.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalized.std(0, correction=0), torch.ones(2))
    assert torch.equal(fit(x, standardize=False).normalize(x), x)
    assert Preprocessing.model_validate_json(fit(x).model_dump_json()) == fit(x)


def test_numbers_far_from_zero_keep_their_digits():
    x = 1e7 + torch.arange(100.0)[:, None]
    exact = x.double()
    exact = (exact - exact.mean()) / exact.std(correction=0)
    torch.testing.assert_close(fit(x).normalize(x).double(), exact, atol=1e-6, rtol=0)


def test_binary_and_constant_features_keep_their_scale():
    x = torch.stack([torch.arange(6.0) % 2, torch.full((6,), 4.0), torch.arange(6.0)], 1)
    preprocessing = fit(x)
    assert preprocessing.mean == pytest.approx((0, 4, 2.5))
    assert preprocessing.std == pytest.approx((1, 1, x[:, 2].std(correction=0).item()))


def test_pixels_are_scaled_and_on_request_standardized():
    x = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    plain = Preprocessing.fit(IMAGES, x)
    assert plain.mean is None
    torch.testing.assert_close(plain.normalize(x), x / 255)
    normalized = Preprocessing.fit(IMAGES, x, standardize=True).normalize(x)
    torch.testing.assert_close(normalized.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(normalized.std((0, 2, 3), correction=0), torch.ones(3))


def test_mean_and_deviation_are_given():
    x = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalized = Preprocessing.fit(IMAGES, x, mean=mean, std=std).normalize(x)
    expected = (x / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    torch.testing.assert_close(normalized, expected)
    with pytest.raises(DubitoError, match="mean and std go together"):
        Preprocessing.fit(IMAGES, x, mean=mean)
    with pytest.raises(DubitoError, match="standardize=False contradicts"):
        Preprocessing.fit(IMAGES, x, standardize=False, mean=mean, std=std)


def test_normalize_can_be_exported_and_differentiated():
    preprocessing = fit(torch.randn(50, 3))
    x = torch.randn(5, 3, requires_grad=True)
    with torch.inference_mode():
        preprocessing.normalize(torch.randn(5, 3))  # must not leave inference tensors in the cache
    preprocessing.normalize(x).sum().backward()
    torch.testing.assert_close(x.grad, 1 / torch.tensor(preprocessing.std).expand(5, 3))

    class Normalize(torch.nn.Module):
        def forward(self, x):
            return preprocessing.normalize(x)

    exported = torch.export.export(Normalize(), (x.detach(),)).module()
    torch.testing.assert_close(exported(x.detach()), preprocessing.normalize(x.detach()))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": (0.0, 0.0, 0.0)}, "mean and std go together"),
        ({"mean": (0.0,), "std": (1.0,)}, "1 values of mean or std for 3 channels"),
        ({"mean": (0.0,) * 3, "std": (1.0, 0.0, 1.0)}, "greater than 0"),
    ],
)
def test_wrong_values(values, message):
    with pytest.raises(ValidationError, match=message):
        Preprocessing(inputs=IMAGES, **values)
