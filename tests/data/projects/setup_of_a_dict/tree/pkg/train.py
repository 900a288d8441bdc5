import tqdm


def main():
    pass
