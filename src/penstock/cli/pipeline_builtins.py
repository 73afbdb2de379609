"""The built-in pipelines as commands: each is made from the struct that declares its arguments, when it is needed."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

import msgspec
import typer
import typer.core
import typer.main

from penstock.cli.failures import Exit, Failure
from penstock.cli.options import AliasCommand, with_parameters
from penstock.cli.pipeline_options import RunOptions, run_parameters
from penstock.spark.pipelines.builtin import SUMMARIES, builtin_named

if TYPE_CHECKING:
    from penstock.spark.pipelines.builtin import Arguments, Builtin


class BuiltinGroup(typer.core.TyperGroup):
    """Imports a built-in pipeline only for its command, or for the list of all."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *SUMMARIES]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = super().get_command(ctx, cmd_name)
        return _command(cmd_name) if found is None and cmd_name in SUMMARIES else found


def _command(name: str) -> object:
    builtin = builtin_named(name)
    own = typer.Typer(
        rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    own.command(name, cls=AliasCommand, short_help=builtin.summary)(_function(builtin))
    command = typer.main.get_command(own)
    command.name = name
    return command


def _function(builtin: Builtin[Arguments]) -> Any:
    fields = {field.name: field for field in msgspec.structs.fields(builtin.arguments)}

    def call(**given: Any) -> None:
        from penstock.cli.pipeline import run_builtin

        own = {name: value for name, value in given.items() if name in fields}
        common = RunOptions(**{name: value for name, value in given.items() if name not in fields})
        run_builtin(builtin, arguments_of(builtin.arguments, own), common)

    shared = (each for each in run_parameters(streams=builtin.streams) if each.name not in fields)
    call.__doc__ = builtin.run.__doc__ or builtin.summary
    return with_parameters([*_parameters(builtin.arguments), *shared])(call)


def arguments_of(kind: type[Arguments], given: dict[str, Any]) -> Arguments:
    """The options as the struct of the built-in pipeline."""
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if value is not None
    }
    for field in msgspec.structs.fields(kind):
        if field.required and values.get(field.name) in (None, (), ""):
            raise Failure(f"--{field.encode_name.replace('_', '-')} is missing", Exit.USAGE)
    return kind(**values)


def _parameters(kind: type[Arguments]) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    made = []
    for field in msgspec.structs.fields(kind):
        plain, meta = _split(hints[field.name])
        extra: dict[str, Any] = dict(meta.extra or {})
        several = get_origin(plain) in (tuple, list)
        if several:
            plain = list[str]
        default: object = inspect.Parameter.empty
        if not field.required:
            default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
            if several:
                plain, default = list[str] | None, list(default) or None  # type: ignore[call-overload]
        made.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=default,
                annotation=Annotated[plain, _declared(field.encode_name, plain, meta.description or "", extra)],
            )
        )
    return made


def _declared(name: str, kind: object, description: str, extra: dict[str, Any]) -> object:
    metavar = extra.get("metavar") or None
    if extra.get("positional"):
        return typer.Argument(metavar=metavar, help=description)
    flag = extra.get("flag") or f"--{name.replace('_', '-')}"
    flags = [flag, *([extra["short"]] if extra.get("short") else [])]
    return typer.Option(*flags, metavar=None if kind is bool else metavar, help=description)


def _split(hint: object) -> tuple[Any, msgspec.Meta]:
    if get_origin(hint) is not Annotated:
        return hint, msgspec.Meta()
    plain, *metas = get_args(hint)
    return plain, next((meta for meta in metas if isinstance(meta, msgspec.Meta)), msgspec.Meta())
