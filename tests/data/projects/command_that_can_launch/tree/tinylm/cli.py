import sys

LAUNCHER = "torchrun"


def main():
    import tqdm

    print(LAUNCHER if "--launch" in sys.argv else tqdm)
