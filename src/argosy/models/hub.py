"""Models of the Hugging Face hub, through `huggingface_hub`: token, endpoint, mirrors and resumption are that library's.

What was chosen from a repository is noted beside the hub's own cache, at the commit it was fetched from. A noted model whose
files are there is used without asking the network; `remove` forgets it, after which a fetch takes the newest commit.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from argosy.errors import ArgosyError, FetchError, ModelFileError, UnknownModel, UnsupportedModel
from argosy.models.cache import ModelCache, Progress, no_space, write_atomically, writing_to

PREFIX = "hf:"
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
SIDE_FILES = (".json", ".jinja", ".txt", "tokenizer.model")


@dataclass(frozen=True, slots=True)
class HubName:
    """`hf:org/name[:file]`, taken apart; `file` is "" if none is named."""

    repository: str
    file: str

    @classmethod
    def parse(cls, name: str) -> HubName:
        """Raise `UnknownModel` unless `name` has that form."""
        repository, _, file = name.removeprefix(PREFIX).partition(":")
        parts = repository.split("/")
        if len(parts) != 2 or not all(parts) or name.endswith(":"):
            raise UnknownModel(f"{name!r} is not of the form hf:org/name or hf:org/name:file.gguf")
        if file and not file.endswith(".gguf"):
            raise UnknownModel(
                f"{name!r}: only a .gguf file can be named alone; hf:{repository} takes the safetensors files"
            )
        return cls(repository, file)

    @property
    def key(self) -> str:
        """A file name of its own for each hub name."""
        return f"{self.repository}:{self.file}".rstrip(":").replace("/", "--").replace(":", "---")

    def __str__(self) -> str:
        return f"{PREFIX}{self.repository}" + (f":{self.file}" if self.file else "")


@dataclass(frozen=True, slots=True)
class HubModel:
    """A fetched model: `folder` is the snapshot, `files` gives sizes in bytes by path below it."""

    name: str
    commit: str
    folder: str
    files: Mapping[str, int]

    @property
    def path(self) -> Path:
        """The GGUF file, or the folder with the safetensors files."""
        gguf = [file for file in self.files if file.endswith(".gguf")]
        return Path(self.folder, gguf[0]) if gguf else Path(self.folder)

    @property
    def size_bytes(self) -> int:
        """Of all its files."""
        return sum(self.files.values())

    def is_complete(self) -> bool:
        """Whether every file is there in its full size."""
        paths = {Path(self.folder, file): size for file, size in self.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def fetch_hub_model(
    name: str,
    cache: ModelCache,
    *,
    offline: bool = False,
    progress: Progress | None = None,
    endpoint: str | None = None,
) -> HubModel:
    """Return the hub's model, fetching what is not in the cache. `endpoint` replaces the library's own.

    Raises:
        UnknownModel: malformed name, no such repository or file, or several GGUF files and none named.
        UnsupportedModel: the repository has weights only in formats that can run code when loaded, or a split GGUF.
        FetchError: not cached and `offline`; no network; no access; disk full.
    """
    wanted = HubName.parse(name)
    if (noted := _read_note(cache, wanted)) is not None and noted.is_complete():
        return noted
    if offline:
        raise FetchError(f"{wanted} is not in the cache ({cache.hub_dir}) and may not be fetched (offline)")

    def waiting() -> None:
        if progress is not None:
            progress(0, None, f"waiting for another process that fetches {wanted}")

    with cache.lock(f"hf--{wanted.key}", waiting):
        if (noted := _read_note(cache, wanted)) is not None and noted.is_complete():
            return noted
        with _hub_errors(wanted, cache):
            model = _fetch(wanted, cache, progress, endpoint)
        with writing_to(cache.hub_dir):
            _note_path(cache, wanted).parent.mkdir(exist_ok=True)
            write_atomically(_note_path(cache, wanted), json.dumps(asdict(model)).encode())
        return model


def list_hub_models(cache: ModelCache) -> list[HubModel]:
    """The complete models in the cache, by name."""
    notes = sorted((cache.hub_dir / "argosy").glob("*.json"))
    models = [model for note in notes if (model := _parse_note(note)) is not None]
    return [model for model in models if model.is_complete()]


def remove_hub_model(name: str, cache: ModelCache) -> int:
    """Delete what was fetched under this name; returns the bytes freed. Files another name shares are kept."""
    wanted = HubName.parse(name)
    model = _read_note(cache, wanted)
    if model is None:
        return 0
    _note_path(cache, wanted).unlink(missing_ok=True)
    others = [other for other in list_hub_models(cache) if other.name.split(":")[1] == wanted.repository]
    in_use = {str(Path(other.folder, file)) for other in others for file in other.files}
    freed = 0
    for file, size in model.files.items():
        link = Path(model.folder, file)
        if str(link) in in_use or not link.exists():
            continue
        link.resolve().unlink(missing_ok=True)
        link.unlink(missing_ok=True)
        freed += size
    if not others:
        shutil.rmtree(Path(model.folder).parent.parent, ignore_errors=True)
    return freed


def choose_files(wanted: HubName, available: Sequence[str]) -> list[str]:
    """Which of a repository's files make the model: one GGUF, or the safetensors at its root with their side files.

    Raises:
        UnknownModel, UnsupportedModel, ModelFileError: as `fetch_hub_model`.
    """
    gguf = [file for file in available if file.endswith(".gguf")]
    if wanted.file:
        if wanted.file not in gguf:
            raise UnknownModel(f"{PREFIX}{wanted.repository} has no file {wanted.file!r}; {_list_gguf(gguf)}")
        _refuse_split(wanted, wanted.file)
        return [wanted.file]
    root = [file for file in available if "/" not in file]
    weights = [file for file in root if file.endswith(".safetensors")]
    standard = [file for file in weights if file == "model.safetensors" or file.startswith("model-")]
    if weights:
        return (standard or weights) + [file for file in root if file.endswith(SIDE_FILES)]
    if len(gguf) == 1:
        _refuse_split(wanted, gguf[0])
        return gguf
    if gguf:
        raise UnknownModel(f"{wanted} has several GGUF files; name one as {wanted}:FILE; {_list_gguf(gguf)}")
    if any(file.endswith(PICKLE_SUFFIXES) for file in available):
        raise UnsupportedModel(
            f"{wanted} has its weights only as pickle files ({', '.join(PICKLE_SUFFIXES)}), which can run code when loaded; "
            "convert them to safetensors"
        )
    raise ModelFileError(f"{wanted} has neither safetensors nor GGUF files")


def _list_gguf(files: Sequence[str]) -> str:
    return f"its GGUF files are {', '.join(sorted(files))}" if files else "it has no GGUF files"


def _refuse_split(wanted: HubName, file: str) -> None:
    if "-of-0" in file:
        raise UnsupportedModel(f"{PREFIX}{wanted.repository}: {file} is one part of a split GGUF; choose an unsplit file")


def _fetch(wanted: HubName, cache: ModelCache, progress: Progress | None, endpoint: str | None) -> HubModel:
    from huggingface_hub import HfApi, hf_hub_download

    info = HfApi(endpoint=endpoint).model_info(wanted.repository, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    chosen = choose_files(wanted, sorted(sizes))
    cache.check_free_space(sum(sizes[file] for file in chosen), f"model {wanted}")
    cache.hub_dir.mkdir(parents=True, exist_ok=True)
    total, done = sum(sizes[file] for file in chosen), 0
    paths = {}
    for file in chosen:
        paths[file] = Path(
            hf_hub_download(
                wanted.repository,
                file,
                revision=info.sha,
                cache_dir=cache.hub_dir,
                endpoint=endpoint,
                tqdm_class=_progress_class(progress, done, total, str(wanted)),
            )
        )
        done += sizes[file]
    folder = Path(str(paths[chosen[0]]).removesuffix(chosen[0]))
    files = {file: path.stat().st_size for file, path in paths.items()}
    return HubModel(str(wanted), str(info.sha), str(folder), files)


def _progress_class(progress: Progress | None, done_before: int, total: int, label: str) -> type:
    """A class with the part of tqdm's interface that the hub uses, which reports instead of drawing."""

    class Reporter:
        def __init__(self, *_args: Any, initial: float = 0, **_options: Any) -> None:
            self.n = initial
            self.update(0)

        def update(self, count: float | None = 1) -> None:
            self.n += count or 0
            if progress is not None:
                progress(done_before + int(self.n), total, label)

        def __enter__(self) -> Reporter:
            return self

        def __exit__(self, *_exception: object) -> None:
            pass

        def __getattr__(self, _name: str) -> Any:
            return lambda *_args, **_options: None

    return Reporter


@contextmanager
def _hub_errors(wanted: HubName, cache: ModelCache) -> Iterator[None]:
    """Turn the library's errors into ours."""
    from huggingface_hub import errors

    http_error: type[Exception] = errors.HfHubHTTPError.__mro__[1]  # of whichever HTTP client the library is built on
    try:
        yield
    except ArgosyError:
        raise
    except errors.GatedRepoError as error:
        raise FetchError(f"{wanted} is gated: accept its terms on the hub and log in with 'hf auth login'") from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UnknownModel(
            f"the hub has no repository {wanted.repository!r}, or it is private and you are not logged in ('hf auth login')"
        ) from error
    except errors.HfHubHTTPError as error:
        raise FetchError(f"cannot fetch {wanted}: the hub answered {error.response.status_code}; try again later") from error
    except (http_error, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError) as error:
        raise FetchError(
            f"cannot reach the hub for {wanted}, and it is not in the cache; check the network, or give a local path"
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free_bytes = shutil.disk_usage(cache.hub_dir).free
            raise no_space(cache.hub_dir, free_bytes + 1, free_bytes, str(wanted)) from error
        raise FetchError(f"cannot fetch {wanted}: {str(error).splitlines()[0]}") from error


def _note_path(cache: ModelCache, wanted: HubName) -> Path:
    return cache.hub_dir / "argosy" / f"{wanted.key}.json"


def _read_note(cache: ModelCache, wanted: HubName) -> HubModel | None:
    return _parse_note(_note_path(cache, wanted))


def _parse_note(path: Path) -> HubModel | None:
    try:
        return HubModel(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
