"""What is known of models (docs/models.yaml, written by hand) and the page that is made of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from fixpack.errors import Problem, RegistryError
from fixpack.markdown import Linker, prose, table
from fixpack.model import Registry
from fixpack.registry import unknown
from fixpack.registry_files import NAME, RELEASE, read_registry_file
from fixpack.strictyaml import Reader, Value, parse
from fixpack.text import plural

PATH = "docs/models.yaml"


class Model(NamedTuple):
    """One model, or one family."""

    name: str
    about: str
    fixes: dict[str, str]  # fix -> why it matters here, beside those for every model
    opt_in: dict[str, str]  # the same for fixes that are off by default
    required: tuple[str, ...]  # what the named source demands; empty if there is none
    required_by: str
    notes: tuple[str, ...]
    profiles: tuple[str, ...]  # the profiles that serve it; empty: those for which every-model was written

    def has(self, registry: Registry, fix: str) -> bool:
        """Whether a fix that matters for every model can be among this model's."""
        return not self.profiles or any(
            fix in (*registry.profiles[name].fixes, *registry.profiles[name].opt_in) for name in self.profiles
        )


class Guide(NamedTuple):
    """The whole file."""

    sources: str  # where its statements come from
    every: dict[str, str]  # fix -> when it matters, whatever the model
    models: tuple[Model, ...]


def read_guide(registry: Registry) -> Guide | None:
    """The registry's guide; None if it has no such file.

    :raises RegistryError: if it is invalid, names an unknown fix, or leaves a fix out.
    """
    if not os.path.lexists(os.path.join(registry.root, PATH)):
        return None
    try:
        data = read_registry_file(registry.root, PATH)
    except OSError as error:
        raise RegistryError(Problem("registry_invalid", f"cannot read it: {error}", file=PATH)) from error
    value, problems = parse(data, PATH)
    if value is None or problems:
        raise RegistryError(*problems)
    top = Reader(value, PATH, problems, "the guide")
    sources = top.text("sources")
    every = _reasons(top, "every-model", registry, problems)
    models = tuple(_model(item, registry, every, problems) for item in top.items("models", required=True))
    top.done()
    named = {name for model in models for name in (*model.fixes, *model.opt_in)} | every.keys()
    for fix in registry.fixes.values():
        if fix.id not in named and not problems:
            message = f"it does not say for which models {fix.id} matters"
            hint = "name the fix below every-model, or below a model's fixes or opt-in"
            problems.append(Problem("fix_without_model", message, fix.id, PATH, hint=hint))
    if problems:
        raise RegistryError(*problems)
    return Guide(sources, every, models)


def _model(item: Value, registry: Registry, every: Mapping[str, str], problems: list[Problem]) -> Model:
    reader = Reader(item, PATH, problems, "a model")
    name = reader.text("model")
    reader.what = name or reader.what
    fixes = _reasons(reader, "fixes", registry, problems)
    opt_in = _reasons(reader, "opt-in", registry, problems)
    required = reader.texts("required", pattern=NAME)
    by = reader.text("required-by", default="")
    for fix in required:
        if fix not in registry.fixes:
            problems.append(unknown("fix", fix, registry.fixes)._replace(file=PATH, line=reader.line_of("required")))
        elif fix not in every and fix not in fixes and fix not in opt_in:
            reader.bad(f"{name} requires {fix}, but no reason is given", reader.line_of("required"))
    if bool(required) != bool(by):
        reader.bad("'required' and 'required-by' go together")
    for fix in sorted((fixes.keys() & opt_in.keys()) | (every.keys() & (fixes.keys() | opt_in.keys()))):
        reader.bad(f"{name} names {fix} twice, or again after every-model")
    for fix in fixes.keys() & registry.fixes.keys():
        if _only_opt_in(registry, fix):
            reader.bad(f"{fix} is off by default in every profile: name it below opt-in", reader.line_of("fixes"))
    for fix in opt_in.keys() & registry.fixes.keys():
        if not _only_opt_in(registry, fix):
            reader.bad(f"{fix} is on by default in a profile: name it below fixes", reader.line_of("opt-in"))
    profiles = reader.texts("profiles", pattern=RELEASE)
    for each in profiles:
        if each not in registry.profiles:
            missing = unknown("profile", each, registry.profiles)
            problems.append(missing._replace(file=PATH, line=reader.line_of("profiles")))
    model = Model(name, reader.text("about"), fixes, opt_in, required, by, reader.texts("notes"), profiles)
    reader.done()
    return model


def _only_opt_in(registry: Registry, fix: str) -> bool:
    return all(fix not in profile.fixes for profile in registry.profiles.values())


def _reasons(reader: Reader, key: str, registry: Registry, problems: list[Problem]) -> dict[str, str]:
    """A mapping of known fixes to sentences."""
    found: dict[str, str] = {}
    inner = reader.sub(key, required=False)
    for name, value in inner.pairs(NAME) if inner else ():
        if name not in registry.fixes:
            problem = unknown("fix", name, registry.fixes)
            problems.append(problem._replace(file=PATH, line=inner.line_of(name) if inner else 0))
        elif not isinstance(value.data, str) or not value.data.strip():
            reader.bad(f"{name!r} needs a reason in words", value.line)
        else:
            found[name] = value.data
    return found


# -- the page ---------------------------------------------------------------------------------------------------------


def models_page(registry: Registry, guide: Guide) -> str:
    """An overview, the fixes for every model, and a section for each model."""
    link = Linker(registry.fixes, folder="fixes/")
    own = dict.fromkeys(name for model in guide.models for name in (*model.fixes, *model.opt_in))
    parts = [
        "# Which fixes matter for which model",
        prose(guide.sources, link),
        table(
            ["fix", *(model.name for model in guide.models)],
            [
                *(
                    [link.to(name), *("yes" if model.has(registry, name) else "-" for model in guide.models)]
                    for name in guide.every
                ),
                *([link.to(name), *(_mark(model, name) for model in guide.models)] for name in own),
            ],
        ),
        '"yes": on by default, and it matters for this model; "opt-in": it matters, and has to be named behind the '
        'profile; "-": the model does not reach the place, or '
        "its profile has no such fix. The default fixes all go in, whatever the model.",
        "## Every model",
        _table("when it matters", guide.every, {}, link),
    ]
    for model in guide.models:
        parts += [f"## {model.name}", prose(model.about, link)]
        count = sum(model.has(registry, name) for name in guide.every)
        others = f"the {plural(count, 'fix')} for every model"
        if model.fixes or model.opt_in:
            parts.append(f"Beside {others}:" if count else "Of the fixes:")
            parts.append(_table("why it matters here", model.fixes, model.opt_in, link))
        else:
            parts.append(f"Nothing beside {others}.")
        if model.required:
            names = ", ".join(map(link.to, model.required))
            parts.append(f"Required by the {prose(model.required_by)}: {names}.")
        if model.notes:
            parts.append("\n".join(f"- {prose(note, link)}" for note in model.notes))
    return "\n\n".join(parts) + "\n"


def _mark(model: Model, name: str) -> str:
    return "yes" if name in model.fixes else "opt-in" if name in model.opt_in else "-"


def _table(head: str, fixes: Mapping[str, str], opt_in: Mapping[str, str], link: Linker) -> str:
    rows = [[link.to(name), prose(why, link)] for name, why in fixes.items()]
    rows += [[f"{link.to(name)} (opt-in)", prose(why, link)] for name, why in opt_in.items()]
    return table(["fix", head], rows)
