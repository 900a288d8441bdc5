from setuptools import Extension, setup
setup(name="det", ext_modules=[Extension("det._C", ["det/csrc.cpp"])])
