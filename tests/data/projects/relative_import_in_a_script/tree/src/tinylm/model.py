Model = 1
