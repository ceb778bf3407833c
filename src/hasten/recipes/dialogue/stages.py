"""Write conversations into one store per stage of the curriculum, and open these stores in the order of the stages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hasten.core.errors import DataError
from hasten.data import Store, StoreWriter
from hasten.data.conversation import STAGE_NAME
from hasten.data.convert.job import Result, convert
from hasten.data.private.plan import PrivatePlan, PrivateRows
from hasten.data.private.vault import SEALED
from hasten.data.store.layout import QUARANTINE
from hasten.data.store.publish import Mode, current

STAGES = (
    "foundation",
    "therapeutic_expertise",
    "edge_case_stress",
    "voice_persona",
    "long_running_therapy",
    "safety_preference",
)
"""Stages of the counselling curriculum, in order."""
_ALL = ".all"
_NUMBER = "stage_number"


def convert_stages(
    source: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    stages: Sequence[str] = STAGES,
    default: str | None = None,
    processes: int | None = None,
    max_bad_frac: float = 0.01,
    private: PrivatePlan | None = None,
) -> Result:
    """Convert conversations to the stores FOLDER/STAGE, one for each stage that has conversations.

    All stores appear at the end. An interrupted conversion continues when it is called again with the same arguments.

    Args:
        source: A file of conversations, or a folder of such files; see `hasten.data.conversation`.
        folder: Folder of the stores.
        stages: Names of the stages, in the order of training.
        default: Stage of the conversations that name none; None refuses them.
        processes: Number of worker processes; None uses the cores available to this process.
        max_bad_frac: Maximum share of bad conversations, 0 to 1.
        private: Replace identifiers and encrypt columns as this plan says; `stage` must be in the clear.

    Returns:
        The result of the conversion. Bad conversations are listed in a file under FOLDER/quarantine.

    Raises:
        DataError: A conversation belongs to none of the stages, too many are bad, or the folder already contains stages.
    """
    if wrong := [stage for stage in stages if not STAGE_NAME.fullmatch(stage) or stage == QUARANTINE]:
        raise DataError(f"{wrong[0]!r} cannot be the name of a stage: use letters, digits, '_' and '-'.")
    target = Path(folder)
    whole, have = target / _ALL, _stores(target)
    if have and current(whole) is None:
        raise DataError(f"{target} already contains the stages {', '.join(have)}: use another folder, or delete this one.")
    for stage in have:  # an earlier run was stopped between publishing the stages and removing what they were read from
        shutil.rmtree(target / stage)
    mode: Mode = "create" if current(whole) is None else "replace"
    if private and "stage" not in private.clear:
        raise DataError(f"the stage decides where a conversation goes: add it to clear in {private.folder}/plan.toml.")
    result = convert(
        source,
        whole,
        format="conversations",
        mode=mode,
        processes=processes,
        max_bad_frac=max_bad_frac,
        private=private,
    )
    try:
        _split(Store(whole), target, stages, default, is_private=private is not None)
    except DataError:
        shutil.rmtree(whole)
        raise
    if result.quarantine is not None:
        kept = target / QUARANTINE
        kept.mkdir(mode=0o700, exist_ok=True)
        result = replace(result, quarantine=result.quarantine.replace(kept / result.quarantine.name))
    shutil.rmtree(whole)
    return result


def open_stages(folder: str | os.PathLike[str]) -> dict[str, Store]:
    """Open the stores that `convert_stages` wrote, in the order of the stages. Columns are read when they are used.

    Raises:
        DataError: The folder contains no stages.
    """
    stores = _stores(Path(folder))
    if not stores:
        raise DataError(f"{folder} contains no stages: write them with convert_stages(source, {str(folder)!r}).")
    return stores


def opened(store: Store, private: PrivatePlan | None) -> Store | PrivateRows:
    """Return what reads a store: with a plan, as its role `trainer`.

    Raises:
        DataError: The store is encrypted and there is no plan, or the role may not read it.
    """
    if private is not None:
        return private.open(store, role="trainer")
    if SEALED in store.manifest.provenance:
        raise DataError(f"{store.source.where} is encrypted: give the folder of its plan (private = ...).")
    return store


def _stores(folder: Path) -> dict[str, Store]:
    stores = {path.name: Store(path) for path in folder.glob("[!.]*/") if current(path) is not None}
    numbers = {name: store.manifest.provenance.get(_NUMBER) for name, store in stores.items()}
    return {
        name: stores[name] for name in sorted(stores, key=lambda name: (numbers[name], name)) if numbers[name] is not None
    }


def _split(whole: Store, folder: Path, stages: Sequence[str], default: str | None, *, is_private: bool) -> None:
    """Write the rows of each stage to a store."""
    blocks = [whole.reader.block(number) for number in range(len(whole.reader.block_counts))]
    named: list[Any] = [
        block.column("stage") if default is None else block.column("stage").fill_null(default) for block in blocks
    ]
    counts = {item["values"]: item["counts"] for item in pa.chunked_array(named, pa.string()).value_counts().to_pylist()}
    if count := counts.pop(None, 0):
        raise DataError(f"conversations without a stage in their metadata: {count:,}. Choose one for them (default=...).")
    if unknown := sorted(counts.keys() - set(stages)):
        name = "a stage" if is_private else f"the stage {unknown[0]!r}"
        raise DataError(f"{name} (conversations: {counts[unknown[0]]:,}) is none of {', '.join(stages)}.")
    with ExitStack() as stack:
        writers = {
            stage: stack.enter_context(
                StoreWriter(folder / stage, provenance={**whole.manifest.provenance, _NUMBER: number})
            )
            for number, stage in enumerate(stages)
            if stage in counts
        }
        for block, stage_of in zip(blocks, named, strict=True):
            table = pa.Table.from_batches([block]).set_column(block.schema.get_field_index("stage"), "stage", stage_of)
            for stage, writer in writers.items():
                writer.write(table.filter(pc.equal(stage_of, stage)))
