"""From facts and options to how ranks are laid out. Pure: values in, values out."""
