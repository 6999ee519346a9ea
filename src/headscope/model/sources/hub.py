"""Models from a hub, only when the user asked for it: safetensors and JSON, never pickle, never code."""

from pathlib import Path

from headscope.errors import CheckpointError, ResourceError, UsageError
from headscope.model.transformers.library_messages import quiet, reason
from headscope.progress import Step

_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.jinja", "README.md"]
_UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


def fetch(name: str, progress: Step | None = None) -> Path:
    """The local folder of a hub model; fetched unless the hub's own cache has it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    if progress is not None:
        progress(f"fetching {name}", 0, 0)
    try:
        with quiet():
            return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except HFValidationError as error:
        raise UsageError(f"{name!r} is not the name of a hub model: {reason(error)}") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no model {name!r} that may be fetched without signing in", hint="check the spelling"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        # Offline, the error is about the local cache; what kept it from the network is its cause.
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ResourceError(
            f"cannot fetch {name!r} from the hub: {reason(cause)}",
            hint="a network is needed; without one use tiny, tiny-translate, smollm2, minilm or a local folder",
        ) from error
