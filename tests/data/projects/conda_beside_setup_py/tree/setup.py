from setuptools import setup
setup(name='tinylm', install_requires=['tqdm'])
