from org.tinylm.model import x
