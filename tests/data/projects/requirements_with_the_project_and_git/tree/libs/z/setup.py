from setuptools import setup
setup(name="z", install_requires=["zstandard"])
