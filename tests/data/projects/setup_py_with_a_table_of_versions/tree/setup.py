import re

from setuptools import find_packages, setup

_versions = [
    "black>=24",
    "einops[test]>=0.8,<1",
    "ruff",
    "tqdm",
]
versions = {name: text for text, name in (re.findall(r"^(([^!=<>~ \[\]]+).*)$", each)[0] for each in _versions)}

install_requires = [
    versions["einops"],
    versions["tqdm"],
]

setup(
    name="tinylm",
    version="0.1.dev0",
    package_dir={"": "src"},
    packages=find_packages("src"),
    install_requires=install_requires,
)
