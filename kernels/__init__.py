"""What a kernel is and how one is made: the build side, imported only from the repository."""
