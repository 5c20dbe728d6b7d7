"""The changes a person can make on the page: send dead letters back, edit one, settle held operations.

Each change is two requests: a GET that shows what it would touch, and a POST that carries what was seen. If that has
changed meanwhile, nothing is done and the page says what differs. To redrive all of a queue, its name must be typed;
every change needs a reason, which goes to the history with the person's name. `admin/` does the work itself.
Never here: permissions (`safety.py`), when a redrive stops (`admin/redrive.py`).
Invariant: a form that is out of date changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import unified_diff
from hashlib import blake2b
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
from onefold.web.pages import name_of, of_its_queue, selected, shown_detail
from onefold.web.view import Redirect, Shown, View

SENT_MAX: Final = 10_000  # dead letters that one redrive from the page sends back
FORESEEN: Final = 500  # dead letters for which the preview shows what each would do
_REASON_CHARS_MAX: Final = 500
_SETTLED_MAX: Final = 200  # operations in one form


# -- what every change needs -----------------------------------------------------------------------------------------


def reason_of(view: View) -> str:
    """The reason for a change.

    Raises:
        UsageError: the form has none.
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
    """A digest of what a form showed, so that it is noticed if that has changed since."""
    made = blake2b(digest_size=12)
    for part in parts:
        made.update(f"{len(part)}:{part}".encode("utf-8", "surrogatepass"))
    return made.hexdigest()


def changed_meanwhile(what: str, todo: str) -> errors.ConflictError:
    """The error for a form that is out of date."""
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
    """What sending the selected dead letters back would do with each."""
    if elsewhere := of_its_queue(view, queue):
        return elsewhere
    select = selected(view, queue)
    return _preview(view, queue, select)


class _Chosen(Struct, frozen=True, kw_only=True):
    """The dead letters that a redrive sends.

    Args:
        messages: the oldest, at most 10,000. more: whether there are others that match.
        is_all: nothing up to the last of these was left out, and they were not named one by one, by id or key.
    """

    messages: list[Peeked]
    more: bool
    is_all: bool

    def digest(self, view: View) -> str:
        """The digest of what would be sent: each message with its content, and where it would go."""
        return digest_of([part for one in self.messages for part in _content(view, one)])


def _chosen(view: View, select: Select) -> _Chosen:
    """The selected dead letters, read in one pass, which also shows whether the filter matches the whole queue."""
    is_by_name = bool(select.ids) or (select.key is not None and not any(one in select.key for one in "*?"))
    found: list[Peeked] = []
    left_out = is_by_name
    for one in dead_letters.find(view.session, select if is_by_name else Select(queue=select.queue)):
        if is_by_name or dead_letters.fits(view.session, one, select):
            found.append(one)
        else:
            left_out = True
        if len(found) > SENT_MAX:
            break
    return _Chosen(messages=found[:SENT_MAX], more=len(found) > SENT_MAX, is_all=bool(found) and not left_out)


def _content(view: View, one: Peeked) -> tuple[str, ...]:
    attributes = msgspec.json.encode(sorted((name, value.value, value.type) for name, value in one.attributes.items()))
    goes_to = redriving.target(view.session, one) or one.source or ""
    return one.message_id, one.body, attributes.decode(), one.group or "", goes_to


def _preview(view: View, queue: str, select: Select) -> Shown:
    chosen = _chosen(view, select)
    problem, foreseen = "", []
    try:
        foreseen = redriving.foresee(view.session, chosen.messages[:FORESEEN], select=select)
    except errors.UsageError as error:
        problem = str(error)
    counted: dict[str, int] = {}
    for one in foreseen:
        counted[one.forecast.outcome] = counted.get(one.forecast.outcome, 0) + 1
    selected_count = len(chosen.messages)
    value = {"queue": queue, "selected": selected_count, "more": chosen.more, "fates": counted, "foreseen": foreseen}
    more = {
        "problem": problem, "select": select, "seen": chosen.digest(view), "most": SENT_MAX, "typed": chosen.is_all,
        "foreseen_most": FORESEEN, "rate": redriving.PER_SECOND_DEFAULT, "stop_after": redriving.STOP_AFTER_DEFAULT,
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
    """Send back the selected dead letters, if they are still as the preview showed them."""
    if elsewhere := of_its_queue(view, queue):
        return elsewhere
    select, form = selected(view, queue), view.request.form
    if "seen" not in form:  # some were ticked: first show what it would do
        return _preview(view, queue, select)
    chosen = _chosen(view, select)
    if chosen.digest(view) != form["seen"]:
        raise changed_meanwhile(
            f"The selection has {counted(len(chosen.messages), 'dead letter')} now, not the ones you have seen, or not as"
            " you have seen them.",
            "Look at the preview again.",
        )
    if not chosen.messages:
        raise errors.NotFoundError("No dead letter matches.", meaning="Nothing was changed.", todo="Choose others.")
    if chosen.is_all:
        view.needs("admin")
    if chosen.is_all and form.get("typed", "") != queue:
        raise errors.UsageError(
            f"All of {queue} would be sent back, and its name was not typed.",
            meaning="Nothing was changed.",
            todo=f"Type {queue} to confirm, or use a filter.",
        )
    reason = reason_of(view)
    made = Redrive(
        view.session,
        chosen.messages,
        per_second=_number(view, "rate", redriving.PER_SECOND_DEFAULT),
        stop_after=_number(view, "stop_after", redriving.STOP_AFTER_DEFAULT),
        reason_text=reason,
        select=select,
    )
    running = view.redrives.begin(queue, made, view.session, reason)
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


def _check_may_edit(view: View) -> None:
    """Refuse to show a whole payload for editing if it could not be saved, or if part of it is hidden."""
    view.needs("operator")
    if view.is_read_only:
        raise errors.UsageError(
            "This page is read-only.", meaning="It was started with --read-only.", todo="Use the command line."
        )
    if view.hiding.any:
        raise errors.UsageError(
            "Payloads are hidden on this page.",
            meaning="Nothing was changed.",
            todo="Edit with the command line, or on a page that hides nothing.",
        )


def edit_form(view: View, queue: str, message_id: str) -> Shown:
    """A form with a dead letter's payload."""
    _check_may_edit(view)
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
    """Check an edited payload and show the difference; save it once it is confirmed."""
    _check_may_edit(view)
    form, detail = view.request.form, shown_detail(view, queue, message_id)
    text = form.get("body", "")
    if form.get("seen") != digest_of([detail.body]):
        raise changed_meanwhile(
            f"The payload of {message_id} has changed.", "Open the form again and make your change anew."
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

_Judged = tuple[str, str, str, str]  # job, tenant, key and hold


class Settling(Struct, frozen=True, kw_only=True):
    """The outcome for one operation in a form: `done`, `refused` or `changed meanwhile`, and why."""

    job: str
    tenant: str
    key: str
    outcome: str
    text: str


def settle_preview(view: View) -> Shown:
    """The chosen operations, and a form that settles them."""
    return _settle_page(view, _judged(view))


def _judged(view: View) -> list[_Judged]:
    """The holds that a form or an address names.

    Raises:
        UsageError: there are too many, or one cannot be read.
    """
    given = dict.fromkeys(view.request.many.get("op", ()) or [one for one in [view.request.query.get("op")] if one])
    if len(given) > _SETTLED_MAX:
        raise errors.UsageError(
            f"{len(given)} operations were chosen; {_SETTLED_MAX} go at a time.",
            todo="Choose fewer. Nothing was changed.",
        )
    try:
        return [msgspec.json.decode(text, type=_Judged) for text in given]
    except msgspec.MsgspecError:
        raise errors.UsageError(
            "The form names no operation.",
            meaning="Each is JSON of job, tenant, key and hold, as /api/held returns them. Nothing was changed.",
            todo=f"Choose at {view.link('held')}.",
        ) from None


def _settle_page(view: View, judged: Sequence[_Judged], outcomes: Sequence[Settling] = ()) -> Shown:
    """What came of a form, and a form for those that are judged, with what was typed before."""
    wanted = set(judged)
    held = [
        one for one in holding.listed(view.session) if wanted and (one.job, one.tenant, one.key, one.hold) in wanted
    ]
    value: dict[str, Any] = {"held": held, "outcomes": outcomes}
    return Shown(
        template="settle.html", title="Settle", value=value,
        more={"ops": [("op", name_of(one)) for one in held], "typed": view.request.form if outcomes else {}},
    )  # fmt: skip


def settle(view: View) -> Shown:
    """Settle each chosen operation as the person decided, and report each result. The whole form is checked first."""
    form, judged = view.request.form, _judged(view)
    if "done" not in form:
        return _settle_page(view, judged)
    if form["done"] not in ("yes", "no"):
        raise errors.UsageError(
            "The form does not say whether the effect happened.",
            meaning="Nothing was changed.",
            todo="Choose yes or no.",
        )
    reason, done = reason_of(view), form["done"] == "yes"
    result = (form.get("result", "").strip() or None) if done else None
    outcomes = [_settled(view, one, done=done, result=result, reason=reason) for one in judged]
    again = [one for one, came in zip(judged, outcomes, strict=True) if came.outcome == "refused"]
    return _settle_page(view, again, outcomes)


def _settled(view: View, judged: _Judged, *, done: bool, result: str | None, reason: str) -> Settling:
    job, tenant, key, hold = judged
    outcome, said = "done", "settled as done" if done else "settled as not done"
    try:
        settled = holding.settle(
            view.session, key, done=done, result=result, job=job, tenant=tenant, hold=hold, reason_text=reason
        )
        said += "; its result is null, which is not what the job returns" if settled.lacks_result else ""
        said += "; its result is null: what the job returns is not known without its app" * settled.is_unchecked
        said += "; its message is gone: it runs only if it is sent again under the same key" * settled.message_gone
    except (errors.ConflictError, errors.NotFoundError) as error:
        outcome, said = "changed meanwhile", str(error)
    except errors.OnefoldError as error:
        outcome, said = "refused", str(error)
    return Settling(job=job, tenant=tenant, key=key, outcome=outcome, text=said)
