"""Scores what follows the chunks of a prompt: where a server joins chunks, only there what it does to them shows, and only there
it can tell laws, since it does not compute what it takes from elsewhere."""

from netgain.measuring.quality.laws import Law
from netgain.measuring.quality.teacher_forcing import Form, Scored, Teacher, Unscored
from netgain.measuring.quality.texts import Text


async def score_behind_chunks(teacher: Teacher, text: Text, form: Form) -> Scored | Unscored:
    """The laws of what stands from the token `text.behind` on, whose first is given. A server that joins chunks joins those of
    the text."""
    if not teacher.joins_chunks:
        found = await teacher.score(text, form)
        if isinstance(found, Unscored):
            return found
        laws = found.laws[len(found.laws) - (len(found.tokens) - text.behind - 1) :]
        return Scored(text=text, tokens=found.tokens, laws=laws)
    asked = {"chunks": text.chunks, "logprobs_from": text.behind}
    told = await teacher.ask(text, form, max_tokens=1, echo=True, netgain=asked)
    if isinstance(told, str):
        return Unscored(name=text.name, reason=told)
    if told.prompt_tokens is None:
        return Unscored(name=text.name, reason="it does not say how many tokens the prompt has")
    wanted = told.laws[text.behind + 1 : told.prompt_tokens]
    known: tuple[Law, ...] = tuple(law for law in wanted if law is not None)
    if not known or len(known) < len(wanted):
        return Unscored(name=text.name, reason=f"{len(wanted) - len(known)} of {len(wanted)} positions have no value")
    return Scored(text=text, tokens=told.tokens[: told.prompt_tokens], laws=known)
