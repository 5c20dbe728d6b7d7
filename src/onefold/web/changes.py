"""What a person changes on the page: send dead letters back, edit one, settle held operations.

Each change is two requests: a GET that shows what it would touch, and a POST that carries what was seen. Where that is not
so any more, nothing is changed and the page says what differs. All of a queue needs its name typed; every change needs a
reason, which goes to the history with the person's name. The work itself is `admin/`'s.
Never here: who may change something (`safety.py`), when a redrive stops (`admin/redrive.py`).
Invariant: a form that is older than what it shows changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct

from onefold import errors
from onefold.admin import dead_letters, editing
from onefold.admin import held as holding
from onefold.admin import redrive as redriving
from onefold.admin.dead_letters import Select
from onefold.admin.redrive import Redrive
from onefold.contracts.admin import Peeked
from onefold.observe.wording import counted
from onefold.web.pages import is_filtered, of_its_queue, selected, shown_detail
from onefold.web.view import Redirect, Shown, View

SENT_MAX: Final = 10_000  # dead letters that one redrive of the page sends back
FORESEEN: Final = 500  # of them for which the preview says what each would do
_REASON_CHARS_MAX: Final = 500
_SETTLED_MAX: Final = 200  # operations of one form


# -- what every change asks for --------------------------------------------------------------------------------------


def reason_of(view: View) -> str:
    """Why somebody wants a change.

    Raises:
        UsageError: they did not say.
    """
    text = view.request.form.get("why", "").strip()
    if not text:
        raise errors.UsageError(
            "No reason was given.",
            meaning="Nothing was changed.",
            todo="Say in a few words why; it goes to the history.",
        )
    return text[:_REASON_CHARS_MAX]


def digest_of(parts: Sequence[str]) -> str:
    """Of what a form showed, so that it is noticed when that is not so any more."""
    return blake2b("\x00".join(parts).encode("utf-8", "replace"), digest_size=12).hexdigest()


def changed_meanwhile(what: str, todo: str) -> errors.ConflictError:
    """The error for a form that is older than what it is about."""
    return errors.ConflictError(
        what, meaning="Somebody or something changed it meanwhile. Nothing was changed.", todo=todo
    )


def _number(view: View, name: str, otherwise: int) -> int:
    text = view.request.form.get(name, "").strip()
    if not text:
        return otherwise
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise errors.UsageError(
            f"{name} {text!r:.40} is not a number.", meaning="Nothing was changed.", todo="Write digits."
        )
    return int(text)


# -- redrive ---------------------------------------------------------------------------------------------------------


def redrive_preview(view: View, queue: str) -> Shown | Redirect:
    """What sending the selected dead letters back would do to each."""
    if elsewhere := of_its_queue(view, queue):
        return elsewhere
    select = selected(view, queue)
    return _preview(view, queue, select)


def _chosen(view: View, select: Select) -> list[Peeked]:
    return list(islice(dead_letters.find(view.session, select), SENT_MAX + 1))


def _preview(view: View, queue: str, select: Select) -> Shown:
    messages = _chosen(view, select)
    more_there = len(messages) > SENT_MAX
    messages = messages[:SENT_MAX]
    problem, foreseen = "", []
    try:
        foreseen = redriving.foresee(view.session, messages[:FORESEEN], select=select)
    except errors.UsageError as error:
        problem = str(error)
    counted: dict[str, int] = {}
    for one in foreseen:
        counted[one.forecast.outcome] = counted.get(one.forecast.outcome, 0) + 1
    value = {"queue": queue, "selected": len(messages), "more": more_there, "fates": counted, "foreseen": foreseen}
    more = {
        "problem": problem, "select": select, "seen": digest_of([one.message_id for one in messages]), "most": SENT_MAX,
        "typed": not is_filtered(select), "foreseen_most": FORESEEN, "rate": redriving.PER_SECOND_DEFAULT,
        "stop_after": redriving.STOP_AFTER_DEFAULT,
        "fields": _fields(select),
    }  # fmt: skip
    return Shown(template="redrive.html", title=f"Redrive {queue}", value=value, more=more)


def _fields(select: Select) -> list[tuple[str, str]]:
    """A selection as fields of a form."""
    named = [
        (name, value)
        for name in ("reason", "error", "job", "key", "group", "contains")
        if (value := getattr(select, name)) is not None
    ]
    ages = [(name, f"{value}ms") for name in ("older", "newer") if (value := getattr(select, f"{name}_ms")) is not None]
    return [*named, *ages, *(("id", one) for one in select.ids)]


def redrive(view: View, queue: str) -> Shown | Redirect:
    """Send the selected dead letters back, as they were seen in the preview."""
    if elsewhere := of_its_queue(view, queue):
        return elsewhere
    select, form = selected(view, queue), view.request.form
    if "seen" not in form:  # some were ticked: show what it would do first
        return _preview(view, queue, select)
    messages = _chosen(view, select)[:SENT_MAX]
    if digest_of([one.message_id for one in messages]) != form["seen"]:
        raise changed_meanwhile(
            f"The selection has {counted(len(messages), 'dead letter')} now, not those that you have seen.",
            "Look at the preview again.",
        )
    if not messages:
        raise errors.NotFoundError("No dead letter matches.", meaning="Nothing was changed.", todo="Choose others.")
    if not is_filtered(select):
        view.needs("admin")
    if not is_filtered(select) and form.get("typed", "") != queue:
        raise errors.UsageError(
            f"All of {queue} would be sent back, and its name was not typed.",
            meaning="Nothing was changed.",
            todo=f"Type {queue} to confirm, or use a filter.",
        )
    made = Redrive(
        view.session,
        messages,
        per_second=_number(view, "rate", redriving.PER_SECOND_DEFAULT),
        stop_after=_number(view, "stop_after", redriving.STOP_AFTER_DEFAULT),
        reason_text=reason_of(view),
        select=select,
    )
    running = view.redrives.begin(queue, made, view.session, reason_of(view))
    return Redirect(view.link("redrives", running.number))


def redrive_progress(view: View, number: str) -> Shown:
    """How far a redrive has come."""
    one = view.redrives.one(number)
    value = {"queue": one.queue, "actor": one.actor, "reason": one.reason, "tally": one.tally, "problem": one.problem}
    more = {"number": number, "over": one.is_over}
    return Shown(
        template="redriving.html", title=f"Redrive of {one.queue}", value=value, more=more, refreshes=not one.is_over
    )


def redrive_stop(view: View, number: str) -> Redirect:
    """Send no more."""
    view.redrives.one(number).stop()
    return Redirect(view.link("redrives", number))


# -- edit ------------------------------------------------------------------------------------------------------------


def _refuse_hidden(view: View) -> None:
    if view.hiding.any:
        raise errors.UsageError(
            "Payloads are hidden on this page.",
            meaning="Nothing was changed.",
            todo="Edit with the command line, or on a page that hides nothing.",
        )


def edit_form(view: View, queue: str, message_id: str) -> Shown:
    """A dead letter's payload in a form."""
    _refuse_hidden(view)
    detail = shown_detail(view, queue, message_id)
    return _edit_page(view, queue, detail, detail.body, None, "")


def _edit_page(
    view: View, queue: str, detail: dead_letters.Detail, text: str, edited: editing.Edited | None, problem: str
) -> Shown:
    before, after = _laid_out(detail.body), _laid_out(text)
    diff = list(unified_diff(before, after, "as it is", "as you wrote it", lineterm="", n=2))
    more = {
        "queue": queue, "text": text, "seen": digest_of([detail.body]), "diff": diff, "problem": problem,
        "checked": digest_of([text]) if edited is not None else "", "new_key": "new_key" in view.request.form,
        "why": view.request.form.get("why", ""),
    }  # fmt: skip
    return Shown(
        template="edit.html", title=f"Edit {detail.letter.message_id}", value={"letter": detail.letter, "edited": edited},
        more=more, status=400 if problem else 200,
    )  # fmt: skip


def _laid_out(text: str) -> list[str]:
    try:
        return msgspec.json.format(text, indent=2).splitlines()
    except (ValueError, RecursionError):
        return text.splitlines()


def edit(view: View, queue: str, message_id: str) -> Shown | Redirect:
    """Check an edited payload, show the difference, and save it when it is confirmed."""
    _refuse_hidden(view)
    form, detail = view.request.form, shown_detail(view, queue, message_id)
    text = form.get("body", "")
    if form.get("seen") != digest_of([detail.body]):
        raise changed_meanwhile(
            f"The payload of {message_id} is another one now.", "Open the form again and make your change anew."
        )
    message = dead_letters.one_of(view.session, Select(ids=(message_id,), queue=queue))
    saves = form.get("do") == "save" and form.get("checked") == digest_of([text])
    reason = reason_of(view) if saves else None
    try:
        edited = editing.edit(
            view.session, message, body=text, new_key="new_key" in form, dry_run=not saves, reason_text=reason
        )
    except errors.UsageError as error:
        return _edit_page(view, queue, detail, text, None, str(error))
    if saves:
        return Redirect(view.link("dead", queue, "letters", message_id))
    return _edit_page(view, queue, detail, text, edited, "")


# -- settle ----------------------------------------------------------------------------------------------------------


class Settling(Struct, frozen=True, kw_only=True):
    """What became of one operation of a form: `done`, `refused` or `changed meanwhile`, and why."""

    job: str
    tenant: str
    key: str
    outcome: str
    text: str


def settle_preview(view: View) -> Shown:
    """The operations that were chosen, and a form that settles them."""
    return _settle_page(_operations(view), ())


def _operations(view: View) -> list[holding.HeldOperation]:
    wanted = set(view.request.many.get("op", ())) or {view.request.query.get("op", "")}
    if len(wanted) > _SETTLED_MAX:
        raise errors.UsageError(
            f"{len(wanted)} operations were chosen; {_SETTLED_MAX} go at a time.",
            todo="Choose fewer. Nothing was changed.",
        )
    return [one for one in holding.listed(view.session) if view.operation_name(one) in wanted]


def _settle_page(chosen: list[holding.HeldOperation], outcomes: Sequence[Settling]) -> Shown:
    value: dict[str, Any] = {"held": chosen, "outcomes": outcomes}
    return Shown(template="settle.html", title="Settle", value=value)


def settle(view: View) -> Shown:
    """Settle each chosen operation by a person's word, and say what became of each."""
    form = view.request.form
    chosen = _operations(view)
    if "done" not in form:
        return _settle_page(chosen, ())
    if form["done"] not in ("yes", "no"):
        raise errors.UsageError("Say whether the effect happened: yes or no.", meaning="Nothing was changed.")
    reason, done, found = reason_of(view), form["done"] == "yes", list[Settling]()
    result = form.get("result", "").strip() or None
    known = {view.operation_name(one) for one in chosen}
    for text in view.request.many.get("op", ()):
        try:
            job, tenant, key = msgspec.json.decode(text, type=tuple[str, str, str])
        except msgspec.MsgspecError:
            raise errors.UsageError("The form names no operation.", meaning="Nothing was changed.") from None
        outcome, said = "done", "settled as done" if done else "settled as not done"
        if text not in known:
            outcome, said = "changed meanwhile", "it is not held any more"
        else:
            try:
                settled = holding.settle(
                    view.session,
                    key,
                    done=done,
                    result=result if done else None,
                    job=job,
                    tenant=tenant,
                    reason_text=reason,
                )
                said += "; its result is null, which is not what the job returns" if settled.lacks_result else ""
                said += "; its result is null: what the job returns is not known without its app" * settled.is_unchecked
            except errors.ConflictError as error:
                outcome, said = "changed meanwhile", str(error)
            except errors.OnefoldError as error:
                outcome, said = "refused", str(error)
        found.append(Settling(job=job, tenant=tenant, key=key, outcome=outcome, text=said))
    return _settle_page([], found)
