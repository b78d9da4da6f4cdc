"""The training loop: epochs of one module on one data set, with or without DP-SGD."""
