def main():
    from . import launcher

    launcher.launch()
