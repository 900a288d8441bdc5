import tinylm.train
