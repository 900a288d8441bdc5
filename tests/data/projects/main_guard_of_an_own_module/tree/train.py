from engine import generate

generate()
