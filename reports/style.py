"""How the report looks: one sheet, for screens and for paper."""

from __future__ import annotations

from .markup import Html

__all__ = ["PAGE_CSS"]

PAGE_CSS = Html("""
:root { color-scheme: light; --ink: #1f2933; --quiet: #52606d; --line: #e4e7eb; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 8px; }
header p { margin: 0; color: var(--quiet); letter-spacing: .02em; }
h1 { margin: 0 0 20px; font-size: 28px; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 40px 0 10px; padding-top: 10px; border-top: 1px solid var(--line); font-size: 19px; }
h3 { margin: 22px 0 6px; font-size: 15px; overflow-wrap: anywhere; }
.note { margin: 4px 0 10px; color: var(--quiet); font-size: 13.5px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 18px 5px 0; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
thead th { color: var(--quiet); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; }
th:first-child, td:first-child { text-align: left; }
details td { text-align: left; white-space: pre-wrap; overflow-wrap: anywhere; }
details thead th { text-align: left; }
details { margin: 40px 0 0; padding-top: 10px; border-top: 1px solid var(--line); }
summary { font-size: 19px; font-weight: 700; cursor: pointer; }
.status { font-weight: 600; }
.status.good { color: #046c4e; }
.status.bad { color: #b42318; }
.status.open { color: #8a5a00; }
p.bad, p.open { margin: 8px 0; padding: 9px 14px; border-left: 4px solid; border-radius: 3px;
  overflow-wrap: anywhere; }
p.bad { border-color: #b42318; background: #fef3f2; }
p.open { border-color: #c78a00; background: #fffaeb; }
.legend { position: sticky; top: 0; z-index: 1; display: flex; flex-wrap: wrap; gap: 4px 22px;
  margin-top: 34px; padding: 8px 0; background: rgb(255 255 255 / 94%); font-size: 14px;
  border-bottom: 1px solid var(--line); }
.legend + section h2 { margin-top: 6px; border-top: 0; }
.charts { display: grid; grid-template-columns: repeat(3, 1fr); gap: 18px 16px; }
.maps { display: grid; grid-template-columns: repeat(2, 1fr); gap: 20px; }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
footer { max-width: 1180px; margin: 24px auto 0; padding: 12px 24px 28px; color: var(--quiet);
  font-size: 13px; }
@media (max-width: 800px) { .charts, .maps { grid-template-columns: 1fr; } }
@media print { .legend { position: static; } section figure { break-inside: avoid; } }
""")
