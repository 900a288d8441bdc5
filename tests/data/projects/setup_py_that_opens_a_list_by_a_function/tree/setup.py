import os
from setuptools import setup
HERE = os.path.dirname(__file__)
def parse(path="requirements.notebooks.txt"):
    with open(path) as file:
        return file.read().splitlines()
setup(name="tinylm", extras_require={"dev": parse("requirements/build.txt")},
      install_requires=parse(os.path.join("requirements", "runtime.txt")))
