if __name__ == "__main__":
    import einops
