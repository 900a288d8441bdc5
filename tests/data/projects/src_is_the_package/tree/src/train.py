import rootutils
from src.utils import log
