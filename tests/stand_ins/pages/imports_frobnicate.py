import os
import time

if os.environ["RANK"] == "1":
    print("epoch 3")
    time.sleep(2)
    import frobnicate

    frobnicate.train()
time.sleep(600)
