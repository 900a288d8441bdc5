"""Plans a launch from facts and options. Pure: values in, values out."""
