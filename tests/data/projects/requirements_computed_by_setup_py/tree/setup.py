from setuptools import setup
deps = {"a": "a>=1"}
setup(name="handbook", package_dir={"": "src"}, install_requires=[deps[k] for k in sorted(deps)])
