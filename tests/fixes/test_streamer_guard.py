"""streamer-guard: MiMo-V2 with fused FP8 projections is not streamed by accident; everything else is, as before.

The loader is the release's own.  Its stream is a list here, because the streamer is a package of its own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader
from vllm.model_executor.models.mimo_v2 import MiMoV2Model

ALLOW = "FIXPACK_ALLOW_STREAMER"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
KINDS = ("MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM", "MiMoV2OmniForCausalLM")


class Model:
    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def load_weights(self, weights: Any) -> None:
        self.loaded += weights


def configuration(architecture: str, quantization: Any, **more: Any) -> SimpleNamespace:
    hf_config = SimpleNamespace(architectures=[architecture], quantization_config=quantization, **more)
    return SimpleNamespace(model="s3://bucket/model", model_weights="", revision=None, hf_config=hf_config)


def stream(monkeypatch: pytest.MonkeyPatch, config: SimpleNamespace) -> list[Any]:
    """What reaches the model when that configuration is loaded with the streamer."""
    loader = get_model_loader(LoadConfig(load_format="runai_streamer"))
    monkeypatch.setattr(loader, "_get_weights_iterator", lambda *_args: iter([("a", 1), ("b", 2)]))
    model = Model()
    loader.load_weights(model, config)
    return model.loaded


@pytest.fixture(autouse=True)
def not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ALLOW, raising=False)


def pairs() -> bool:
    """Whether this tree keeps a half that waits: upstream's own, or the fix fused-qkv-pairing."""
    code = MiMoV2Model.load_weights.__code__
    return "_pending_fp8_qkv_proj" in (*code.co_consts, *code.co_names)


@pytest.mark.parametrize("value", [None, "0", ""])
@pytest.mark.parametrize("kind", KINDS)
def test_refused(monkeypatch: pytest.MonkeyPatch, kind: str, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv(ALLOW, value)
    configs = [configuration(kind, FP8), configuration(kind, SimpleNamespace(quant_method="fp8")),
               configuration(kind, None, text_config=SimpleNamespace(quantization_config=FP8))]
    for config in configs:
        with pytest.raises(ValueError, match="--load-format runai_streamer") as caught:
            stream(monkeypatch, config)
        told = str(caught.value)
        assert told.startswith(f"{kind} with fused FP8 qkv_proj weights")
        assert "qkv_proj is zero" in told
        assert "object-store" in told
        assert "Drop --load-format runai_streamer" in told
        assert (f"set {ALLOW}=1" in told) == pairs()


def test_override(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allowed where the halves are paired; where they are not, the operator's word is not enough."""
    from vllm.model_executor.models import mimo_v2

    monkeypatch.setenv(ALLOW, "1")
    config = configuration(KINDS[0], FP8)

    class Forgets(MiMoV2Model):
        def load_weights(self, weights: Any) -> set[str]:
            raise NotImplementedError

    class Keeps(MiMoV2Model):
        def load_weights(self, weights: Any) -> set[str]:
            self._pending_fp8_qkv_proj = {}
            raise NotImplementedError

    if pairs():
        assert stream(monkeypatch, config) == [("a", 1), ("b", 2)]
    else:
        with pytest.raises(ValueError, match="FIXPACK_ALLOW_STREAMER=1 does not help"):
            stream(monkeypatch, config)
    monkeypatch.setattr(mimo_v2, "MiMoV2Model", Forgets)
    with pytest.raises(ValueError, match="FIXPACK_ALLOW_STREAMER=1 does not help"):
        stream(monkeypatch, config)
    monkeypatch.setattr(mimo_v2, "MiMoV2Model", Keeps)
    assert stream(monkeypatch, config) == [("a", 1), ("b", 2)]


def test_value_of_the_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOW, "yes")
    with pytest.raises(ValueError, match="FIXPACK_ALLOW_STREAMER is 'yes'; it must be 1, 0 or not set"):
        stream(monkeypatch, configuration(KINDS[0], FP8))


# Guards.


@pytest.mark.parametrize(
    ("kind", "quantization"),
    [
        ("MiMoV2FlashForCausalLM", None),
        ("MiMoV2ForCausalLM", {"quant_method": "mxfp4"}),
        ("LlamaForCausalLM", FP8),
        ("LlamaForCausalLM", None),
    ],
)
def test_streamed(monkeypatch: pytest.MonkeyPatch, kind: str, quantization: Any) -> None:
    assert stream(monkeypatch, configuration(kind, quantization)) == [("a", 1), ("b", 2)]


def test_configuration_without_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(model="m", model_weights="", revision=None, hf_config=SimpleNamespace(architectures=None))
    assert stream(monkeypatch, bare) == [("a", 1), ("b", 2)]
