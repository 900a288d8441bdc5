import yacs
