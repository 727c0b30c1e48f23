"""Models on the Hugging Face hub: their files, from its cache or downloaded."""

from pathlib import Path

from infodis.errors import InputError

FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py")
"""What a model is read from. Only the top directory: copies for other programs lie below."""
PICKLED = "pytorch_model.bin"
"""Fetched only where there are no safetensors: many models on the hub have their weights in both."""

LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def download(name: str) -> Path:
    """The directory with the files of a model on the hub. What the cache holds already is not downloaded again."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        raise InputError(
            f"There is no directory {name}. To fetch it from the hub: pip install 'infodis[hf]'."
        ) from error
    directory = _snapshot(name, *FILES)
    return directory if any(directory.glob("*.safetensors")) else _snapshot(name, *FILES, PICKLED)


def _snapshot(name: str, *wanted: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=list(wanted), ignore_patterns="*/*"))
    except Exception as error:  # its own errors, and those of what it talks with: requests, httpx, the file system
        raise InputError(f"There is no directory {name}, and {_reason(name, error)}") from error


def _reason(name: str, error: Exception) -> str:
    """Why a model cannot be had, and what to do about it."""
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, GatedRepoError):  # also a RepositoryNotFoundError
        return f"the model of this name on the hub is gated. Accept its terms on its page there, then {LOG_IN}."
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub shows no model of this name. Check the spelling; if the model is private, {LOG_IN}."
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"the hub cannot be reached while its cache lacks files of this model ({said}). Connect and try again, or "
            "name a directory that holds the model."
        )
    return (
        f"its download from the hub did not finish ({said}). Try again: files that arrived whole are not downloaded "
        "twice."
    )
