"""Module → the package that has it, if known. Data."""

from __future__ import annotations

from typing import Final

_DIFFERING: Final = {
    "absl": "absl-py",
    "antlr4": "antlr4-python3-runtime",
    "attr": "attrs",
    "Bio": "biopython",
    "bs4": "beautifulsoup4",
    "Crypto": "pycryptodome",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "GitPython",
    "google.protobuf": "protobuf",
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "imblearn": "imbalanced-learn",
    "jwt": "pyjwt",
    "mpl_toolkits": "matplotlib",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "pkg_resources": "setuptools<81",
    "pynvml": "nvidia-ml-py",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "umap": "umap-learn",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}
_EQUAL: Final = (
    *("accelerate", "datasets", "deepspeed", "diffusers", "einops", "evaluate", "lightning", "matplotlib", "mpi4py"),
    *("numpy", "omegaconf", "pandas", "peft", "pytorch_lightning", "requests", "safetensors", "scipy"),
    *("sentence_transformers", "sentencepiece", "tensorboard", "timm", "tokenizers", "torchaudio", "torchmetrics"),
    *("torchvision", "tqdm", "transformers", "trl", "wandb"),
)
PACKAGES: Final = {**_DIFFERING, **{name: name.replace("_", "-") for name in _EQUAL}}
