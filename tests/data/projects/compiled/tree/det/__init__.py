from det import _C
