"""Small models built with other people's packages, and inputs of a few rows.

``ENTRIES`` maps a name to an :class:`Entry`; ``entry.make()`` builds a :class:`Case` anew, with weights that follow
from a seed and are rough enough for dropout to matter. Nothing is downloaded, and a package is imported when an
entry that needs it is built.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from testing.outside.vision import declare_operators

__all__ = ["ENTRIES", "Case", "Entry"]


@dataclass(frozen=True, slots=True)
class Case:
    """A model as a user would hand it over; ``module`` is what holds its mode, where ``model`` is a function."""

    model: Any
    x: Any
    transform: Callable[[Any], Any] | None = None
    module: nn.Module | None = None

    @property
    def trained(self) -> nn.Module:
        """The module whose mode decides."""
        return self.model if self.module is None else self.module


@dataclass(frozen=True, slots=True)
class Entry:
    """How to build a case, and what is expected of the library on it."""

    name: str
    build: Callable[[], Case]
    package: str
    seed: int
    idle: int = 0  # random kernels in training whose numbers have no effect
    refused: str = ""  # the cause that a typed error has to name, where passes cannot be controlled
    warned: str = ""  # the cause that a warning of the library has to name
    slow: bool = False

    @property
    def missing(self) -> str:
        """Why the entry cannot be built here; empty if it can."""
        found = importlib.util.find_spec(self.package) is not None
        return "" if found else f"{self.package} is not installed (make outside)"

    def make(self) -> Case:
        """The case, in eval(), the same every time."""
        declare_operators()
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # of other people's constructors
            torch.manual_seed(self.seed)
            case = self.build()
        case.trained.eval()
        return case


ENTRIES: dict[str, Entry] = {}


def _add(name: str, build: Callable[[], Case], package: str, **options: Any) -> None:
    ENTRIES[name] = Entry(name, build, package, seed=len(ENTRIES) + 1, **options)


def _entry(package: str, **options: Any) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a function that builds a case, under its own name."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        _add(build.__name__, build, package, **options)
        return build

    return register


def _rough(model: nn.Module, scale: float = 1.5) -> nn.Module:
    """Weights for which dropout matters, and statistics of BatchNorm that differ from those of a batch."""
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            bound, centre = scale * parameter[0].numel() ** -0.5, 0.0
        else:
            bound, centre = 0.3, float(name.endswith("weight"))
        parameter.data.uniform_(centre - bound, centre + bound)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.uniform_(-0.3, 0.3)
        if name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)
    return model


# --------------------------------------------------------------------------------- transformers

_ROWS, _LENGTH, _WORDS = 4, 7, 40
_P = 0.15


def _words() -> dict[str, Tensor]:
    """Sentences of different lengths."""
    mask = torch.ones(_ROWS, _LENGTH, dtype=torch.long)
    mask[1, 5:] = 0
    return {"input_ids": torch.randint(3, _WORDS, (_ROWS, _LENGTH)), "attention_mask": mask}


def _encoder(name: str, **more: Any) -> Any:
    """A configuration with the names of BERT's."""
    import transformers

    return getattr(transformers, name)(
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, hidden_dropout_prob=_P, attention_probs_dropout_prob=_P, **more,
    )  # fmt: skip


def _distilbert() -> Any:
    import transformers

    return transformers.DistilBertConfig(
        vocab_size=_WORDS, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=24,
        dropout=_P, attention_dropout=_P,
    )  # fmt: skip


def _gpt2() -> Any:
    import transformers

    return transformers.GPT2Config(
        vocab_size=_WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=24,
        resid_pdrop=_P, embd_pdrop=_P, attn_pdrop=_P, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip


def _gpt_neox() -> Any:
    import transformers

    return transformers.GPTNeoXConfig(
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=24, attention_dropout=_P, hidden_dropout=_P, bos_token_id=1, eos_token_id=2,
        pad_token_id=0,
    )  # fmt: skip


def _opt(layerdrop: float = 0.0) -> Any:
    import transformers

    return transformers.OPTConfig(
        vocab_size=_WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, ffn_dim=24,
        max_position_embeddings=24, word_embed_proj_dim=16, dropout=_P, attention_dropout=_P, layerdrop=layerdrop,
    )  # fmt: skip


def _bart() -> Any:
    import transformers

    return transformers.BartConfig(
        vocab_size=_WORDS, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=24, dropout=_P,
        attention_dropout=_P, activation_dropout=_P, bos_token_id=0, pad_token_id=1, eos_token_id=2,
        decoder_start_token_id=2,
    )  # fmt: skip


def _t5() -> Any:
    import transformers

    return transformers.T5Config(
        vocab_size=_WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_decoder_layers=1, num_heads=2,
        dropout_rate=_P, decoder_start_token_id=0,
    )  # fmt: skip


def _vit() -> Any:
    import transformers

    return transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=8, patch_size=4,
        num_channels=1, hidden_dropout_prob=_P, attention_probs_dropout_prob=_P,
    )  # fmt: skip


def _swin() -> Any:
    import transformers

    return transformers.SwinConfig(
        image_size=16, patch_size=2, num_channels=1, embed_dim=8, depths=[2, 1], num_heads=[2, 2], window_size=2,
        hidden_dropout_prob=_P, attention_probs_dropout_prob=_P, drop_path_rate=0.3,
    )  # fmt: skip


def _two_sides() -> dict[str, Tensor]:
    return _words() | {"decoder_input_ids": torch.randint(3, _WORDS, (_ROWS, 4))}


def _images(size: int, channels: int = 1) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(3, channels, size, size)}


def _first(output: Any) -> Tensor:
    """The first place of a sequence, which classifiers look at."""
    return output.last_hidden_state[:, 0]


def _next(output: Any) -> Tensor:
    """The first few words that may come next."""
    return output.logits[:, -1, :12]


# name -> class, configuration, inputs, what is looked at
_FAMILIES: dict[str, tuple[str, Callable[[], Any], Callable[[], dict[str, Tensor]], Callable[[Any], Tensor]]] = {
    "bert": ("BertModel", lambda: _encoder("BertConfig"), _words, _first),
    "roberta": (
        "RobertaForSequenceClassification", lambda: _encoder("RobertaConfig", num_labels=8), _words,
        lambda output: output.logits,
    ),
    "distilbert": ("DistilBertModel", _distilbert, _words, _first),
    "albert": ("AlbertModel", lambda: _encoder("AlbertConfig", embedding_size=12), _words, _first),
    "electra": ("ElectraModel", lambda: _encoder("ElectraConfig", embedding_size=12), _words, _first),
    "gpt2": ("GPT2LMHeadModel", _gpt2, _words, _next),
    "gpt_neox": ("GPTNeoXForCausalLM", _gpt_neox, _words, _next),
    "opt": ("OPTModel", _opt, _words, lambda output: output.last_hidden_state[:, -1]),
    "bart": ("BartModel", _bart, _two_sides, _first),
    "t5": ("T5ForConditionalGeneration", _t5, _two_sides, _next),
    "vit": ("ViTModel", _vit, lambda: _images(8), _first),
    "swin": ("SwinModel", _swin, lambda: _images(16), lambda output: output.pooler_output),
}  # fmt: skip
_WHOLE = ("bert", "gpt2", "bart", "vit")  # also with the whole ModelOutput: caches, None and all


def _transformer(family: str, attention: str, whole: bool = False) -> Case:
    import transformers

    kind, configuration, inputs, reduce = _FAMILIES[family]
    config = configuration()
    config._attn_implementation = attention
    model = _rough(getattr(transformers, kind)(config))
    if model.config._attn_implementation != attention:
        raise RuntimeError(f"{kind} took {model.config._attn_implementation} attention instead of {attention}")
    return Case(model, inputs(), None if whole else reduce)


for _family in _FAMILIES:
    for _kind in ("eager", "sdpa"):
        _build = functools.partial(_transformer, _family, _kind)
        _add(f"{_family}_{_kind}", _build, "transformers")
for _family in _WHOLE:
    _build = functools.partial(_transformer, _family, "eager", True)
    _add(f"{_family}_whole_output", _build, "transformers")


@_entry("transformers", refused="rand")
def opt_layerdrop() -> Case:
    """Whole layers are skipped by an ``if`` on a random number: no mask can stand for that."""
    import transformers

    config = _opt(layerdrop=0.4)
    return Case(_rough(transformers.OPTModel(config)), _words(), _first)


# ----------------------------------------------------------------------------- timm, torchvision


@_entry("timm")
def timm_vit() -> Case:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=8, patch_size=4, in_chans=1, num_classes=6, embed_dim=16, depth=3, num_heads=2, mlp_ratio=2,
        pos_drop_rate=0.1, proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.3, drop_rate=0.1,
    )  # fmt: skip
    return Case(_rough(model), torch.randn(4, 1, 8, 8))


@_entry("timm")
def timm_convnext() -> Case:
    from timm.models.convnext import ConvNeXt

    model = ConvNeXt(
        in_chans=1, num_classes=6, depths=(1, 1, 2, 1), dims=(4, 8, 8, 12), drop_path_rate=0.4, drop_rate=0.2
    )
    return Case(_rough(model), torch.randn(4, 1, 32, 32))


@_entry("timm")
def timm_resnet() -> Case:
    from timm.models.resnet import BasicBlock, ResNet

    model = ResNet(
        BasicBlock, (1, 1, 2, 1), num_classes=6, in_chans=1, stem_width=4, channels=(4, 8, 8, 12), drop_path_rate=0.4,
        drop_rate=0.2,
    )  # fmt: skip
    return Case(_rough(model), torch.randn(4, 1, 32, 32))


@_entry("torchvision")
def torchvision_efficientnet() -> Case:
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    one = functools.partial(MBConvConfig, width_mult=1.0, depth_mult=1.0)
    settings = [one(1, 3, 1, 8, 8, 2), one(2, 3, 2, 8, 16, 2)]
    model = EfficientNet(settings, dropout=0.2, stochastic_depth_prob=0.4, num_classes=6, last_channel=16)
    return Case(_rough(model), torch.randn(4, 3, 16, 16))


@_entry("torchvision")
def torchvision_convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    settings = [CNBlockConfig(8, 12, 2), CNBlockConfig(12, None, 2)]
    return Case(_rough(ConvNeXt(settings, stochastic_depth_prob=0.4, num_classes=6)), torch.randn(4, 3, 16, 16))


@_entry("torchvision")
def torchvision_swin() -> Case:
    from torchvision.models.swin_transformer import SwinTransformer

    model = SwinTransformer(
        patch_size=[4, 4], embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=[2, 2], dropout=0.1,
        attention_dropout=0.1, stochastic_depth_prob=0.3, num_classes=6,
    )  # fmt: skip
    return Case(_rough(model), torch.randn(4, 3, 16, 16))


@_entry("torchvision")
def torchvision_mobilenet() -> Case:
    from torchvision.models.mobilenetv2 import MobileNetV2

    settings = [[1, 8, 1, 1], [2, 8, 2, 2]]
    model = MobileNetV2(num_classes=6, width_mult=0.25, inverted_residual_setting=settings, dropout=0.3)
    return Case(_rough(model), torch.randn(4, 3, 16, 16))


# ------------------------------------------------------------------------------- torch_geometric


def _graph(nodes: int = 12) -> tuple[Tensor, Tensor]:
    """Features of the nodes, and a ring with a few chords, both ways."""
    ring = torch.arange(nodes)
    ends = torch.cat([torch.stack([ring, (ring + 1) % nodes]), torch.stack([ring[::3], (ring[::3] + 5) % nodes])], 1)
    return torch.randn(nodes, 5), torch.cat([ends, ends.flip(0)], 1)


def _on_nodes(net: nn.Module) -> Case:
    features, edges = _graph()
    return Case(lambda ids: net(features, edges)[ids], torch.arange(12), module=net)


@_entry("torch_geometric")
def pyg_gcn() -> Case:
    from torch_geometric.nn import GCN

    return _on_nodes(_rough(GCN(5, 16, num_layers=3, out_channels=4, dropout=0.3)))


@_entry("torch_geometric")
def pyg_gat() -> Case:
    from torch_geometric.nn import GAT

    return _on_nodes(_rough(GAT(5, 16, num_layers=2, out_channels=4, heads=2, dropout=0.3)))


# ----------------------------------------------------------------------------------------- deepxde


def _dropped_tanh(h: Tensor) -> Tensor:
    return F.dropout(torch.tanh(h), 0.1)


def _deepxde() -> Any:
    os.environ.setdefault("DDE_BACKEND", "pytorch")
    import deepxde

    return deepxde


@_entry("deepxde")
def deepxde_fnn() -> Case:
    net = _deepxde().nn.FNN([2, 24, 24, 24, 2], _dropped_tanh, "Glorot normal")
    return Case(_rough(net), torch.rand(8, 2))


@_entry("deepxde")
def deepxde_pfnn() -> Case:
    net = _deepxde().nn.PFNN([2, 24, [16, 16], [16, 16], 2], _dropped_tanh, "Glorot normal")
    net.apply_feature_transform(lambda x: torch.cat([x, x.square()], 1)[:, :2])
    return Case(_rough(net), torch.rand(8, 2))


# ------------------------------------------------------------------------------------------- MONAI


@_entry("monai")
def monai_unet() -> Case:
    from monai.networks.nets import UNet

    net = UNet(
        spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8), strides=(2,), num_res_units=1, dropout=0.2
    )
    return Case(_rough(net), torch.randn(3, 1, 8, 8))


@_entry("monai")
def monai_densenet() -> Case:
    from monai.networks.nets import DenseNet

    net = DenseNet(
        spatial_dims=2, in_channels=1, out_channels=5, init_features=4, growth_rate=4, block_config=(2, 2), bn_size=2,
        dropout_prob=0.2,
    )  # fmt: skip
    return Case(_rough(net), torch.randn(4, 1, 32, 32))


# ------------------------------------------------------------------------------------------- darts

_TRAINER = {
    "accelerator": "cpu",
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "logger": False,
    "enable_checkpointing": False,
}


def _quiet() -> None:
    """Trainers report what they found on the machine, and more."""
    for name in ("lightning.pytorch", "pytorch_lightning", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _fitted(kind: str, **options: Any) -> nn.Module:
    """The network inside a model of darts, after one epoch on a short series."""
    import darts.models
    from darts import TimeSeries

    _quiet()
    values = np.sin(np.arange(40) / 3) + 0.1 * np.random.default_rng(0).standard_normal(40)
    series = TimeSeries.from_values(values.astype(np.float32))
    model = getattr(darts.models, kind)(
        input_chunk_length=8,
        output_chunk_length=4,
        n_epochs=1,
        random_state=0,
        pl_trainer_kwargs=_TRAINER,
        dropout=0.2,
        **options,
    )
    return _rough(model.fit(series).model)


def _on_series(net: nn.Module, *names: str) -> Callable[..., Tensor]:
    """The network of darts as a function of tensors: its own inputs are an object with fields."""
    from darts.utils.data.torch_datasets.utils import PLModuleInput

    return lambda *values: net(PLModuleInput(**dict(zip(names, values, strict=True)))).prediction


@_entry("darts", slow=True)
def darts_tcn() -> Case:
    net = _fitted("TCNModel", num_filters=6, kernel_size=3, num_layers=2)
    return Case(_on_series(net, "past_target"), torch.randn(4, 8, 1), module=net)


@_entry("darts", slow=True)
def darts_block_lstm() -> Case:
    net = _fitted("BlockRNNModel", model="LSTM", hidden_dim=8, n_rnn_layers=2)
    return Case(_on_series(net, "past_target"), torch.randn(4, 8, 1), module=net)


@_entry("darts", slow=True, refused="PLModuleInput")
def darts_block_lstm_object() -> Case:
    """The network itself, whose input is an object with fields: nobody knows which of them have rows."""
    from darts.utils.data.torch_datasets.utils import PLModuleInput

    net = _fitted("BlockRNNModel", model="LSTM", hidden_dim=8, n_rnn_layers=2)
    return Case(net, PLModuleInput(torch.randn(4, 8, 1)), lambda output: output.prediction)


@_entry("darts", slow=True)
def darts_tft() -> Case:
    net = _fitted("TFTModel", hidden_size=8, lstm_layers=2, num_attention_heads=2, add_relative_index=True)
    index = torch.linspace(-1, 1, 12)[None, :, None].repeat(4, 1, 1)
    model = _on_series(net, "past_target", "historic_future_covariates", "future_covariates")
    return Case(model, (torch.randn(4, 8, 1), index[:, :8], index[:, 8:]), module=net)


# ---------------------------------------------------------------------- lightning, skorch, baal


def _perceptron(outputs: int = 2) -> nn.Sequential:
    layers = [nn.Linear(3, 24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(24, outputs))


@_entry("lightning", slow=True)
def lightning_after_fit() -> Case:
    import lightning

    class Regressor(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = _perceptron()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any) -> Tensor:
            loss = F.mse_loss(self(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 0.01)

    model = Regressor()
    _rough(model)
    _quiet()
    data = torch.utils.data.TensorDataset(torch.randn(32, 3), torch.randn(32, 2))
    lightning.Trainer(max_epochs=2, **_TRAINER).fit(model, torch.utils.data.DataLoader(data, 8))
    return Case(model, torch.randn(6, 3))


@_entry("skorch")
def skorch_after_fit() -> Case:
    from skorch import NeuralNetRegressor

    net = NeuralNetRegressor(_perceptron, max_epochs=2, train_split=None, verbose=0)
    rng = np.random.default_rng(0)
    net.fit(rng.standard_normal((32, 3), dtype=np.float32), rng.standard_normal((32, 2), dtype=np.float32))
    return Case(_rough(net.module_), torch.randn(6, 3))


def _pictures() -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(96, 16)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


@_entry("baal")
def baal_dropout() -> Case:
    from baal.bayesian.dropout import patch_module

    return Case(_rough(patch_module(_pictures(), inplace=False)), torch.randn(4, 1, 6, 6))


@_entry("baal")
def baal_mc_module() -> Case:
    from baal.bayesian.dropout import MCDropoutModule

    return Case(_rough(MCDropoutModule(_pictures())), torch.randn(4, 1, 6, 6))


@_entry("baal")
def baal_weight_drop() -> Case:
    from baal.bayesian.weight_drop import patch_module

    return Case(_rough(patch_module(_pictures(), ["Linear"], 0.2, inplace=False)), torch.randn(4, 1, 6, 6))


@_entry("baal")
def baal_consistent() -> Case:
    from baal.bayesian.consistent_dropout import patch_module

    return Case(_rough(patch_module(_pictures(), inplace=False)), torch.randn(4, 1, 6, 6))
