"""Tell MLflow's model registry which models are used: the aliases `live` and `canary` of versions that name our folders."""

from __future__ import annotations

import os
from typing import Any

from hasten.core.errors import DataError, HastenError, MachineError
from hasten.pipeline.release import Releases

_TAG = "hasten.model"


def mirror(releases: Releases, uri: str, name: str) -> None:
    """Register the models in use and on trial, and set their aliases. A repeated call changes nothing.

    Raises:
        DataError: The name has a quote.
        MachineError: MLflow is not installed, or the registry cannot be used.
    """
    if not name or "'" in name:
        raise DataError(f"{name!r} is not a name of a registered model: --name MODEL, without quotes.")
    try:
        _tell(releases, uri, name)
    except ImportError as error:
        raise MachineError("MLflow is missing: pip install 'hasten[tracking]'.") from error
    except HastenError:
        raise
    except Exception as error:  # MLflow, its stores and HTTP have errors of their own
        raise MachineError(f"{uri}: {error}. The next change of releases tells MLflow again.") from error


def _tell(releases: Releases, uri: str, name: str) -> None:
    import mlflow  # noqa: PLC0415 - of the extra `tracking`

    if uri.startswith("file:") or "://" not in uri:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # as in `hasten.monitor.sinks.mlflow`
    client: Any = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    try:
        client.create_registered_model(name)
    except mlflow.exceptions.MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    versions = {one.tags.get(_TAG): one.version for one in client.search_model_versions(f"name = '{name}'")}
    pointer = releases.pointer
    for alias, model in (("live", pointer.used), ("canary", pointer.waiting if pointer.share else "")):
        if model:
            if model not in versions:
                source = releases.path(model).resolve().as_uri()
                versions[model] = client.create_model_version(name, source, tags={_TAG: model}).version
            client.set_registered_model_alias(name, alias, versions[model])
        elif alias in client.get_registered_model(name).aliases:
            client.delete_registered_model_alias(name, alias)
