from tinylm.train import Model
