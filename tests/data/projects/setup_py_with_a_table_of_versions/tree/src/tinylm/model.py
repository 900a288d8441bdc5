import tqdm
