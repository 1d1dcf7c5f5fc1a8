"""The distribution onmt-varattn."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
COMMANDS = {
    "analysis": ["align", "evaluate", "explore", "plot_alignment"],
    "nmt": [
        "average_models",
        "build_vocab",
        "preprocess",
        "release_model",
        "server",
        "train",
        "translate",
        "translate_dynamic",
    ],
    "vqa": ["evaluate", "preprocess", "train"],
}
SCRIPTS = [
    f"onmt_{'vqa_' * (room == 'vqa')}{command} = onmt_varattn.bin.{room}.{command}:main"
    for room, commands in COMMANDS.items()
    for command in commands
]

setup(
    name="onmt-varattn",
    version=re.search(r'__version__ = "(.*)"', (HERE / "onmt_varattn/__init__.py").read_text("utf-8"))[1],
    description="Latent alignment and variational attention for OpenNMT-py",
    long_description=(HERE / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    packages=find_packages(include=["onmt_varattn", "onmt_varattn.*"]),
    package_data={"onmt_varattn.analysis": ["explorer.html"]},
    python_requires=">=3.10",
    install_requires=[
        "OpenNMT-py==2.3.0",
        "torch>=2.6",
        "torchtext==0.5.0",
        "sentencepiece",
        "sacrebleu",
        "sacremoses",
        "subword-nmt",
        "tqdm",
        "matplotlib",
        "entmax",
        "h5py",
        "pillow",
        "pyyaml",
        "flask",
        "waitress",
    ],
    extras_require={
        "dev": [
            "pytest",
            "pytest-xdist",
            "hypothesis",
            "ruff",
            "mypy",
            "types-PyYAML",
            "selenium",
            "sphinx",
            "myst-parser",
            "myst-nb",
            "ipykernel",
            "furo",
        ],
    },
    entry_points={
        "console_scripts": [
            "onmt_varattn = onmt_varattn.__main__:main",
            *SCRIPTS,
        ],
    },
)
