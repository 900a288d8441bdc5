import argparse

from setuptools import find_packages, setup

parser = argparse.ArgumentParser()
args, others = parser.parse_known_args()
commands = {"console_scripts": ["pkg-train = pkg.train:main"]}
args = dict(name="pkg", version="1.2", packages=find_packages(), install_requires=["tqdm"], entry_points=commands)

setup(**args)
