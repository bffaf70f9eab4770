"""Optional packages, imported when a feature needs them.

The core needs torch, NumPy and safetensors. Everything else belongs to an extra of the distribution. A feature whose
package is missing raises ``MissingExtraError``, which names the extra.
"""

from importlib import import_module
from typing import Any

from gossamer.core.errors import GossamerError

EXTRAS = {
    "rich": "cli",
    "sklearn": "data",
    "scipy": "data",
    "pooch": "data",
    "tqdm": "data",
    "requests": "data",
    "matplotlib": "plot",
    "jinja2": "plot",
    "pandas": "frame",
    "flwr": "flower",
    "cryptography": "secure",
    "dp_accounting": "privacy",
    "httpx": "flower",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "sqlalchemy": "mlflow",
    "alembic": "mlflow",
    "wandb": "wandb",
    "transformers": "transformers",
    "peft": "peft",
    "onnx": "onnx",
    "onnxscript": "onnx",
    "onnxruntime": "onnx",
}
"""The extra that installs each optional package, by the package's import name."""


class MissingExtraError(GossamerError, ModuleNotFoundError):
    """A package of an extra is not installed."""

    def __init__(self, package: str) -> None:
        extra = EXTRAS.get(package)
        install = f"'gossamer[{extra}]'" if extra else package
        super().__init__(f"this needs {package}: pip install {install}", name=package)


def need(module: str) -> Any:
    """Import a module of an optional package; raise ``MissingExtraError`` if the package is not installed.

    >>> need("json").loads("3")
    3
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) from error


def missing(error: ModuleNotFoundError) -> MissingExtraError:
    """Return the ``MissingExtraError`` for a failed import."""
    return error if isinstance(error, MissingExtraError) else MissingExtraError(str(error.name).partition(".")[0])
