"""One run on many devices: the mesh, its memory, the hosts, and programs compiled for slices of TPUs."""
