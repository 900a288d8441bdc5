import tinylm.model
