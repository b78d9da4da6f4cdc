"""Who may see pages: the browsers that one-time links have opened."""

from __future__ import annotations

from meadow.pages.sessions import SESSION_IDLE_S, SESSIONS_MAX, Sessions


def test_sessions_end() -> None:
    """A link opens one session; the least used of too many ends, and one that was left alone."""
    now = [0.0]
    sessions = Sessions(clock=lambda: now[0])
    assert sessions.enter("") is None

    def opened() -> str:
        link = sessions.new_link()
        cookie = sessions.enter(link)
        assert cookie is not None and sessions.enter(link) is None
        return cookie

    cookies = [opened() for _ in range(SESSIONS_MAX)]
    assert sessions.find(cookies[0])
    cookies.append(opened())
    assert (
        sessions.find(cookies[0]) and not sessions.find(cookies[1]) and sessions.find(cookies[-1])
    )
    now[0] += SESSION_IDLE_S - 1
    assert sessions.find(cookies[0])
    now[0] += 2
    assert sessions.find(cookies[0]) and not sessions.find(cookies[2])
    old = sessions.new_link()
    sessions.new_link()
    assert sessions.enter(old) is None
