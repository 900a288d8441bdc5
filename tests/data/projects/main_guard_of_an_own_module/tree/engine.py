import torch


def generate():
    return torch.ones(1)


if __name__ == "__main__":
    import rich

    torch.cuda.synchronize()
    rich.print(generate())
