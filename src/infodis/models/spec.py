"""A model by name with its options: what the command line builds and jobs carry."""

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from infodis.models.options import ModelOptions
from infodis.settings import Named, option

if TYPE_CHECKING:
    from infodis.models.files import ModelFiles
    from infodis.models.model import Model


@dataclasses.dataclass(frozen=True)
class ModelSpec(Named):
    """A model by name, and how it is wanted. Equal ones of equal files give equal numbers.

    >>> ModelSpec("dna-tiny", ModelOptions(device="cpu")).load().vocab_size
    4
    """

    name: str = option(
        "text8-tiny", "A model that ships with infodis, a directory, or a name on the hub.", "--model", "-m"
    )
    options: ModelOptions = ModelOptions()
    """The device `auto` is resolved when this is made: workers and settings see that of the machine of the run."""

    def __post_init__(self) -> None:
        from infodis.device import resolve_device

        device = resolve_device(self.options.device)
        object.__setattr__(self, "options", dataclasses.replace(self.options, device=device))

    @functools.cached_property
    def files(self) -> "ModelFiles":
        """The files that the model is read from, as they were on first use. Travels with this value to workers."""
        from infodis.models.files import ModelFiles, locate

        return ModelFiles.of(locate(self.name), self.options)

    @property
    def fingerprint(self) -> str:
        """A hash of configuration and weights, computed once."""
        return self.files.model.digest

    def load(self) -> "Model":
        """The model in `files`; an `InputError` if they were replaced since."""
        from infodis.models.loading import load_with

        files, model = self.files, load_with(self.name, self.options)
        if model.files is not None:
            files.check_same(model.files)
        return model

    def settings(self, name: str = "model") -> dict[str, Any]:
        """What a result depends on. Where the model lies does not count, its files do."""
        how = {field.name: getattr(self.options, field.name) for field in dataclasses.fields(self.options)}
        prefix = "" if name == "model" else f"{name}_"
        told = {
            prefix + key: value
            for key, value in {
                **how,
                "tokenizer": self.files.tokenizer.digest,
                "surrogate": self.files.surrogate_fingerprint,
            }.items()
        }
        return {name: self.fingerprint, **told}
