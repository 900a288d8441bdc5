import open_clip
