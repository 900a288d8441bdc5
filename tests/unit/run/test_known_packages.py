"""The table of modules and their packages: its form, and what packages that are installed here say of it."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ipexctl.known_errors import packages
from ipexctl.known_errors.packages import known_packages

LINES = [line for line in Path(packages.__file__).with_name("packages.txt").read_text().splitlines() if line[0] != "#"]


def test_the_table_has_each_module_once_in_order() -> None:
    modules = [line.split()[0] for line in LINES]
    assert modules == sorted(set(modules), key=lambda module: (module.lower(), module))
    assert len(modules) > 700
    assert not sys.stdlib_module_names.intersection(modules)
    assert all(part.isidentifier() for module in modules for part in module.split("."))


def test_each_package_is_a_requirement() -> None:
    names = {Requirement(each).name for found in known_packages().values() for each in found}
    assert {"opencv-python-headless", "scikit-learn", "hydra-core", "pytorch-lightning", "setuptools"} <= names


def test_a_name_is_not_written_where_the_module_says_it() -> None:
    assert [line for line in LINES if line.split()[1:] == [line.split()[0].replace("_", "-")]] == []


def test_packages_that_are_installed_here_have_the_modules_that_the_table_says() -> None:
    """Their own metadata knows."""
    installed, table = packages_distributions(), known_packages()
    checked = {module: set(map(canonicalize_name, installed[module])) for module in installed if module in table}
    assert len(checked) >= 10  # Python 3.10 knows fewer: only those with a top_level.txt
    wrong = {
        module: names
        for module, names in checked.items()
        if names.isdisjoint(canonicalize_name(Requirement(each).name) for each in table[module])
    }
    assert wrong == {}
