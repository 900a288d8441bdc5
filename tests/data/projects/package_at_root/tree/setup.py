NAME = "det"
REQUIRED = ["yacs"]
from setuptools import setup
setup(name=NAME, version="1.2", packages=["det"], install_requires=REQUIRED)
