"""Write the vectors: `python -m routelaws.conformance.vectors --out DIR`."""

from routelaws.conformance.vectors.files import main

main()
