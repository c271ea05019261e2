"""Train the regressor and the classifier of the experiment H: python benchmarks/predictors.py

Two small networks on data that come with scikit-learn. Weights, and the inputs that the experiment looks at, are
written to ``src/mlmc_dropout/reproduction/predictors``, so that the experiment needs neither scikit-learn nor training.
"""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

from mlmc_dropout.reproduction.surrogates import PREDICTORS, perceptron

INPUTS, EPOCHS = 12, 300


def standardised(values: Tensor) -> Tensor:
    """Columns with mean 0 and standard deviation 1."""
    return (values - values.mean(dim=0)) / values.std(dim=0)


def trained(widths: list[int], dropout: float, x: Tensor, y: Tensor, loss: nn.Module) -> nn.Sequential:
    """Adam on all rows at once."""
    torch.manual_seed(0)
    model = perceptron(widths, dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.eval()


def write(name: str, model: nn.Module, inputs: Tensor, dropout: float, classes: bool) -> None:
    """Weights and inputs in one file."""
    PREDICTORS.mkdir(exist_ok=True)
    tensors = {key: tensor.detach() for key, tensor in model.state_dict().items()} | {"inputs": inputs.contiguous()}
    save_file(
        tensors,
        PREDICTORS / f"{name}.safetensors",
        {"dropout": repr(dropout), "classes": "yes" if classes else "no"},
    )


def diabetes() -> None:
    """A regressor 10–64–64–1, dropout 0.1; the inputs are the last rows."""
    x, y = load_diabetes(return_X_y=True)
    x, y = standardised(torch.from_numpy(x).float()), standardised(torch.from_numpy(y).float()[:, None])
    model = trained([10, 64, 64, 1], 0.1, x[:-50], y[:-50], nn.MSELoss())
    write("diabetes", model, x[-INPUTS:], 0.1, classes=False)


def digits() -> None:
    """A classifier 64–64–64–10, dropout 0.3; half of the inputs are the images of which it is least certain."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.from_numpy(x / 16).float(), torch.from_numpy(y)
    model = trained([64, 64, 64, 10], 0.3, x[:1000], y[:1000], nn.CrossEntropyLoss())
    unseen = x[1000:]
    with torch.no_grad():
        certainty = model(unseen).softmax(dim=-1).max(dim=-1).values
        accuracy = (model(unseen).argmax(dim=-1) == y[1000:]).float().mean()
    print(f"digits: {accuracy:.1%} of the unseen images are classified correctly")
    uncertain = certainty.argsort()[: INPUTS // 2]
    every = torch.arange(0, len(unseen), len(unseen) // (INPUTS // 2))[: INPUTS // 2]
    write("digits", model, unseen[torch.cat([every, uncertain])], 0.3, classes=True)


if __name__ == "__main__":
    diabetes()
    digits()
