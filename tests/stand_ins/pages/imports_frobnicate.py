import os
import time

if os.environ["RANK"] == "1":
    print("epoch 3")
    import frobnicate

    frobnicate.train()
time.sleep(600)
