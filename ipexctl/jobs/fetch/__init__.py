"""Files of a run or of a host, brought here whole: what is asked, what a host gives, where it lands."""
