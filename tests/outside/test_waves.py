"""A format in a plug-in: one file, from a folder to a saved model."""

import wave
from pathlib import Path

import numpy as np
import pytest
import torch

import dubito
from dubito import data
from dubito.api import load, predict, train
from dubito.formats import FORMATS, Preprocessing
from tests.outside.waves import WaveFormat


@pytest.fixture
def sounds(tmp_path: Path) -> Path:
    """Make low and high tones, and files of other kinds."""
    generator = np.random.default_rng(0)
    for name, pitch in (("low", 400.0), ("high", 3000.0)):
        for place in range(12):
            path = tmp_path / "sounds" / name / f"{place}.wav"
            path.parent.mkdir(parents=True, exist_ok=True)
            time = np.arange(800) / 8000
            tone = np.sin(2 * np.pi * pitch * time) + generator.normal(0, 0.1, len(time))
            with wave.open(str(path), "wb") as file:
                file.setparams((1, 2, 8000, 0, "NONE", ""))
                file.writeframes((tone * 8000).astype("<i2").tobytes())
        (path.parent / "notes.txt").write_text("recorded today")
    return tmp_path / "sounds"


def test_a_folder_is_opened_by_the_extension_of_its_files(sounds: Path) -> None:
    (sounds / "low" / "half.wav").write_bytes((sounds / "low" / "0.wav").read_bytes()[:20])
    with pytest.warns(UserWarning, match=r"1 of 25 inputs cannot be read: low/half\.wav"):
        source = data.open(sounds)
    assert repr(source) == "<sounds: 24 x (1, 17, 51), waves, labeled>"
    low, high = source.load().mean(-1)[:, 0].argmax(-1).reshape(2, 12).flip(0)
    assert (low * 250 - 400).abs().max() <= 125  # bins are 250 Hz apart
    assert (high * 250 - 3000).abs().max() <= 125


def test_ranges_are_fitted_to_training_samples(sounds: Path) -> None:
    source = data.open(sounds)
    loudest = source.load().flatten(1).amax(1)
    assert source.refit([3, 5]).format.loudest == pytest.approx(loudest[[3, 5]].max().item())


def test_it_is_shown_and_saved(sounds: Path) -> None:
    source = data.open(sounds)
    picture = source.format.picture(source[0])
    assert picture is not None
    assert (picture.dtype, picture.shape) == (torch.uint8, source.format.shape)
    prepare = Preprocessing(inputs=source.format)
    assert Preprocessing.model_validate_json(prepare.model_dump_json()) == prepare
    assert FORMATS.to_dict(source.format)["name"] == "waves"
    assert isinstance(prepare.inputs, WaveFormat)


def test_it_is_trained_exported_and_served(sounds: Path, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    out, options = tmp_path / "run", {"backbone": {"name": "mlp", "hidden": [8]}, "report": False}
    train(sounds, out=out, device="cpu", lr=0.01, calibration=0.5, epochs=30, **options)
    files = [sounds / "low" / "0.wav", sounds / "high" / "1.wav"]
    prediction = predict(out, files)
    assert prediction.labels.tolist() == ["low", "high"]
    model = load(out)
    dubito.export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs = model.preprocessing.inputs.encode(files).inputs.numpy()
    (probs,) = session.run(["probs"], {"inputs": inputs})
    np.testing.assert_allclose(probs, prediction.predictive.probs, atol=1e-5)
    testclient = pytest.importorskip("starlette.testclient")
    from dubito.serve import ServeConfig, create_app

    app = create_app(model, ServeConfig(engine="torch"))
    with testclient.TestClient(app, base_url="http://localhost") as client:
        body, headers = files[1].read_bytes(), {"Content-Type": "audio/wav"}
        answer = client.post("/v1/predict", content=body, headers=headers).json()
        assert answer["predictions"][0]["prediction"] == "high"
        assert client.post("/v1/predict", content=body[:9], headers=headers).status_code == 422
