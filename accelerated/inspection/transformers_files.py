"""The files of a model in a folder of transformers; no torch is needed."""

from pathlib import Path

from ..errors import InputError
from ..json_files import read_json
from ..wording import in_short


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model in a folder of transformers.

    Raises:
        InputError: there are none, or the index names a file outside the folder or one that is missing.
    """
    index, whole = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if whole.is_file() and not index.is_file():
        return [whole]
    if not index.is_file():
        pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt*"))
        what = "only pickled weights, which can run code and are not read" if pickled else "no safetensors file"
        raise InputError(f"{folder}: has {what}; save the model with save_pretrained of transformers 5")
    try:
        names = sorted({*read_json(index, {"weight_map": {"*": str}})["weight_map"].values()})
    except (OSError, InputError) as error:
        raise InputError(f"{index} is not an index of safetensors files; save the model again") from error
    missing = [name for name in names if Path(name).name != name or not (folder / name).is_file()]
    if missing:
        raise InputError(f"{index} lists files that are not in the folder: {in_short(missing)}; copy them there")
    return [folder / name for name in names]
