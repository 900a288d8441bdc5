from tinylm.train import Model


def main():
    pass
