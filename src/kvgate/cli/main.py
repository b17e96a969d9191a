"""The command line's entry: finds the verbs, maps every error to one line and an exit code.

Exit codes: 0 PASS, 1 FAIL, 3 INCONCLUSIVE, 4 INVALID (also: the record could not be written, or kvgate itself broke),
2 usage (nothing was started), 130 interrupted.
"""

from __future__ import annotations

import importlib
import pkgutil
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import kvgate.cli
from kvgate.cli._process import end_on_signals, guard_streams, ignore_signals
from kvgate.core.errors import KvgateError, UserError

if TYPE_CHECKING:
    import typer

USAGE, INVALID, INTERRUPTED = 2, 4, 130
#: In fewer columns than this the boxes of a help page would cut the names of options off.
BOXED_COLUMNS, LEAST_COLUMNS = 80, 20
_INTERRUPTED = "interrupted; the same command goes on where it stopped"


def build_app(first_word: str = "") -> typer.Typer:
    """The application with every verb in `cli/` registered, in name order; or only the one that is asked for.

    Args:
        first_word: what the command line begins with. If a verb is called so, the others need not be built.
    """
    import typer  # takes long enough for a Ctrl-C, so only once that is handled

    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
    columns = shutil.get_terminal_size().columns
    if columns < BOXED_COLUMNS:
        settings["terminal_width"] = max(LEAST_COLUMNS, columns)
    app = typer.Typer(
        name="kvgate",
        help="May I store the KV cache in FP8, q8_0 or smaller, on my model, engine build and context lengths?",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if columns >= BOXED_COLUMNS else None,
        context_settings=settings,
    )

    @app.callback()
    def top() -> None:
        """Accept or refuse a KV cache dtype, with evidence."""

    verbs = [m.name for m in pkgutil.iter_modules(kvgate.cli.__path__) if m.name != "main" and m.name[0] != "_"]
    for name in [first_word] if first_word in verbs else sorted(verbs):
        register = getattr(importlib.import_module(f"kvgate.cli.{name}"), "register", None)
        if register is not None:
            register(app)
    return app


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        args = ["version"] if given == ["--version"] else given
        code = build_app(args[0] if args else "")(args=args, prog_name="kvgate", standalone_mode=False)
    except KeyboardInterrupt:
        return _say(_INTERRUPTED, INTERRUPTED)
    except UserError as e:
        return _say(str(e), USAGE)
    except KvgateError as e:
        return _say(str(e), INVALID)
    except Exception as e:
        # typer carries its own copy of click's exceptions from 0.29 on; both have format_message.
        if hasattr(e, "format_message"):
            said = e.format_message()
            # Nothing to say: nothing was asked for, and the help page has been printed already.
            verb = getattr(getattr(e, "ctx", None), "command_path", "kvgate")
            return _say(f"{said} (see {verb} --help)", USAGE) if said.strip() else USAGE
        if type(e).__name__ == "Abort":
            return _say(_INTERRUPTED, INTERRUPTED)
        return _say(f"internal error: {type(e).__name__}: {e}; traceback in {_keep_traceback()}", INVALID)
    if code == INTERRUPTED:  # typer has caught the KeyboardInterrupt
        return _say(_INTERRUPTED, INTERRUPTED)
    return code if isinstance(code, int) else 0


def _say(text: str, code: int) -> int:
    from kvgate.core.text import one_line

    print(f"kvgate: {one_line(text)}", file=sys.stderr)  # noqa: T201 - the contract: one line on stderr
    return code


def _keep_traceback() -> str:
    try:
        with tempfile.NamedTemporaryFile("w", prefix="kvgate-", suffix=".txt", delete=False) as f:
            traceback.print_exc(file=f)
    except OSError as e:
        return f"no file: {e.strerror or e}"
    return f.name


def run() -> NoReturn:
    """Console script."""
    guard_streams()
    end_on_signals()
    code = main()
    try:
        sys.stdout.flush()
    except KvgateError as e:
        code = _say(str(e), INVALID)
    sys.stderr.flush()
    ignore_signals()
    sys.exit(code)
