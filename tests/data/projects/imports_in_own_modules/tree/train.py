import sys
sys.path.append('lib')
import helper, ghost
from pk.data import load
