"""The call of ``simulate`` that runs one seed again, if the scenario has a name by which others reach it."""

from __future__ import annotations

import sys
from functools import reduce
from typing import Any

import attrs

from meshq.testing.scenario._seed_run import Scenario, ScenarioPlan


def again_call(scenario: Scenario, plan: ScenarioPlan, seed: int) -> str:
    """Return the call as text; for a scenario without a name, how to repeat it."""
    name = _name_of(scenario)
    if not name:
        shown = getattr(scenario, "__qualname__", None) or type(scenario).__qualname__
        return f"the same call of simulate, with seeds=[{seed}]: {shown} has no name by which it could be imported"
    given, objects = _settings_of(plan)
    facts = [name, f"seeds=[{seed}]", *(f"{key}={value!r}" for key, value in given.items())]
    call = f"simulate({', '.join(facts)})"
    return f"{call}, with the same {' and '.join(objects)}" if objects else call


def _name_of(scenario: Scenario) -> str:
    """The module and name under which the scenario is found; empty: it is found under none."""
    module, path = getattr(scenario, "__module__", ""), getattr(scenario, "__qualname__", "")
    try:
        found: object = reduce(getattr, path.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return ""
    if found is not scenario:
        return ""
    return path if module == "__main__" else f"{module}.{path}"


def _settings_of(plan: ScenarioPlan) -> tuple[dict[str, Any], list[str]]:
    """Return the settings without their defaults: values that have a text, and the names of the other settings."""
    given: dict[str, Any] = {}
    objects: list[str] = []
    for settings in (plan.cluster, plan):
        for field in attrs.fields(type(settings)):
            value = getattr(settings, field.name)
            if not field.init or field.name == "cluster" or value == field.default:
                continue
            if field.name in ("address_settings", "security", "services", "invariants"):
                objects.append(field.name)
            else:
                given[field.name] = list(value) if isinstance(value, tuple) else value
    return given, objects
