"""The pages' one style sheet and one script; nothing else is loaded, from anywhere."""

from __future__ import annotations

from typing import Final

from ..reports.style import PAGE_CSS

__all__ = ["LIVE_JS", "STYLE_CSS"]

STYLE_CSS: Final = (
    PAGE_CSS
    + """
:root { color-scheme: light dark; --paper: #fff; --accent: #0b63b0; --panel: #f6f8fa; }
body { background: var(--paper); }
body > header { display: flex; flex-wrap: wrap; gap: 6px 24px; align-items: center;
  justify-content: space-between; padding: 10px 24px; border-bottom: 1px solid var(--line); }
body > header nav { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; }
body > header div { display: flex; gap: 14px; align-items: center; }
a { color: var(--accent); }
nav a { text-decoration: none; padding: 6px 2px; }
nav a[aria-current] { font-weight: 600; border-bottom: 2px solid; }
a:focus-visible, button:focus-visible, input:focus-visible, select:focus-visible,
textarea:focus-visible, pre:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
.skip { position: absolute; left: -9999px; }
.skip:focus { position: static; }
.who { color: var(--quiet); }
.words th, .words td { text-align: left; }
.words td { white-space: normal; min-width: 5em; overflow-wrap: anywhere; }
.log th, .log td { text-align: left; }
.log td { max-width: 20em; overflow: hidden; text-overflow: ellipsis; }
.log td.why { white-space: normal; min-width: 18em; max-width: 40em; overflow-wrap: anywhere; }
.events th { white-space: nowrap; color: var(--quiet); vertical-align: top; }
dl { display: flex; flex-wrap: wrap; gap: 10px 34px; margin: 0 0 12px; }
dl div { min-width: 7em; }
dt { color: var(--quiet); font-size: 13px; }
dd { margin: 0; font-size: 17px; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(290px, 1fr)); gap: 14px 22px; }
figcaption { font-size: 13.5px; color: var(--quiet); }
figcaption b { color: var(--ink); }
.curves polyline { fill: none; stroke: var(--accent); stroke-width: 1.8; stroke-linejoin: round; }
.curves circle { fill: var(--accent); }
.curves .grid { stroke: var(--line); }
.curves text { fill: var(--quiet); font-size: 10.5px; }
.curves .y { text-anchor: end; dominant-baseline: middle; }
.curves .last { text-anchor: end; }
progress { accent-color: var(--accent); width: 90px; height: 9px; vertical-align: middle; }
details { margin: 0 0 20px; padding: 0; border: 0; }
summary { font-size: 15px; font-weight: 600; color: var(--accent); }
form { margin: 12px 0; }
form.leave { margin: 0; }
form.across { display: inline-block; margin-right: 14px; }
label { display: block; margin: 0 0 10px; font-size: 14px; color: var(--quiet); }
input, select, textarea { display: block; width: 100%; max-width: 460px; margin-top: 3px;
  padding: 7px 9px; font: inherit; color: var(--ink); background: var(--paper);
  border: 1px solid #8794a3; border-radius: 4px; }
button { padding: 8px 16px; font: inherit; color: var(--ink); background: var(--panel);
  border: 1px solid #8794a3; border-radius: 4px; cursor: pointer; }
pre { padding: 10px 14px; background: var(--panel); overflow-x: auto; white-space: pre-wrap;
  overflow-wrap: anywhere; }
@media (max-width: 600px) { main, body > header { padding-left: 14px; padding-right: 14px; }
  h1 { font-size: 23px; } }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181d; --ink: #e6eaee; --quiet: #a3afbb; --line: #2d353e; --accent: #6db3f2;
    --panel: #1e242b; }
  .status.good { color: #5fd0a0; } .status.bad { color: #ff8f84; } .status.open { color: #f0c060; }
  p.bad { background: #35191a; } p.open { background: #332a12; }
}
"""
)

LIVE_JS: Final = """"use strict";
const live = document.getElementById("live");
const lost = document.getElementById("lost");
if (live) {
  const stream = new EventSource(location.pathname + location.search);
  stream.onopen = () => { lost.hidden = true; };
  stream.onerror = () => { lost.hidden = false; };
  stream.addEventListener("lost", () => { lost.hidden = false; });
  stream.onmessage = (event) => {
    const held = document.activeElement;
    const href = live.contains(held) ? held.getAttribute("href") : null;
    const scrolled = [...live.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    live.innerHTML = JSON.parse(event.data);
    lost.hidden = true;
    live.querySelectorAll(".scroll").forEach((each, place) => { each.scrollLeft = scrolled[place] || 0; });
    if (href) [...live.querySelectorAll("a")].find((each) => each.getAttribute("href") === href)?.focus();
  };
}
"""
