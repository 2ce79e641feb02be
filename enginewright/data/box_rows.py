"""The rows of known boxes, as truth.npy has them for each image."""

COLUMNS = 6  # class, left, top, right, bottom, and which kind it is
COUNTED, CROWD, IGNORED = 0, 1, 2  # a crowd stands for many boxes; an ignored one may be found or not
NO_CLASS = -1  # fills the rows of images with fewer boxes than others
