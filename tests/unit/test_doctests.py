"""The examples in the docstrings of the library run, and every public class has one."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch
from torch import nn

from onmt_varattn import latent, modules

pytestmark = pytest.mark.torch_only

PACKAGES = {"latent": latent, "modules": modules}
MODULES = [
    f"{package.__name__}.{module.name}"
    for package in PACKAGES.values()
    for module in pkgutil.iter_modules(package.__path__)
]
# What a reader of the reference has imported.
NAMES = {"torch": torch, "nn": nn} | {name: getattr(p, name) for p in PACKAGES.values() for name in p.__all__}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    torch.manual_seed(0)
    failed, _ = doctest.testmod(importlib.import_module(name), extraglobs=NAMES)
    assert failed == 0


@pytest.mark.parametrize(
    ("package", "name"), [(key, name) for key, package in PACKAGES.items() for name in package.__all__]
)
def test_every_public_class_and_function_has_an_example(package, name):
    thing = getattr(PACKAGES[package], name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert ">>>" in (thing.__doc__ or ""), f"{package}.{name} has no example in its docstring"
