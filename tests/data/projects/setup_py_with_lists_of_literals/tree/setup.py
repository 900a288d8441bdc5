import sys
from setuptools import setup
NUMPY = "1.20"
base = ["tqdm", f"numpy>={NUMPY}"]
base += ["einops"]
if sys.platform == "linux":
    base += ["only_here"]
def main():
    texts = '''
    rich
    peft
    '''.split()
    setup(name="tinylm", install_requires=list(base) + [*texts, "yacs"], extras_require={"dev": ["pytest"]})
main()
