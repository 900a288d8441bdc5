import os
import sys

import tqdm

print(os.environ["RANK"], sys.argv, tqdm)
