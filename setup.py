"""The distribution onmt-varattn; its metadata is in pyproject.toml."""

from setuptools import setup

setup()
