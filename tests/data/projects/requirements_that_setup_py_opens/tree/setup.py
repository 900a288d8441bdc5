from setuptools import setup
with open("requirements.txt") as file:
    needed = file.read().splitlines()
setup(name="tinylm", install_requires=needed)
