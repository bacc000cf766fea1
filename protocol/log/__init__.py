"""The rules of a replica's log: append, truncation, leader epochs, high watermark, retention."""
