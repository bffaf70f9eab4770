"""How a report page looks: light or dark as the reader's system is, and nothing fetched from anywhere."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #ffffff; --ink: #1b2733; --soft: #5d6b7a; --line: #e1e6ec;
  --k0: #1f5f99; --k1: #d1603d; --k2: #3a8c6e; --blank: #eef1f5; }
@media (prefers-color-scheme: dark) { :root { --page: #12171d; --card: #1a2129; --ink: #e6ebf0; --soft: #9aa8b6;
  --line: #2b3540; --k0: #6fb1ec; --k1: #f0906f; --k2: #6cc7a5; --blank: #222b35; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 3rem; max-width: 76rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.7rem; } h1 small { font-weight: 400; color: var(--soft); }
h2 { margin: 2.2rem 0 0.7rem; font-size: 1.1rem; }
header p { margin: 0.25rem 0 0; color: var(--soft); }
.grid { display: grid; gap: 0.9rem; }
.cards { grid-template-columns: repeat(4, 1fr); margin-top: 1.4rem; }
.three { grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); }
.two { grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); }
@media (max-width: 50rem) { .cards { grid-template-columns: repeat(2, 1fr); } }
.card, figure { margin: 0; padding: 0.9rem 1.05rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; min-width: 0; }
.card b { display: block; font-size: 1.45rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span, .card small { color: var(--soft); } .card small { display: block; font-size: 0.8rem; }
.card h3 { margin: 0 0 0.5rem; font-size: 0.95rem; }
figcaption { margin-bottom: 0.5rem; font-weight: 600; font-size: 0.95rem; }
.key { margin-right: 0.8rem; font-weight: 400; color: var(--soft); white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 0.9em; height: 3px; margin-right: 0.35em;
  vertical-align: middle; background: var(--k0); }
.key.k1::before { background: var(--k1); } .key.k2::before { background: var(--k2); }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .grid { stroke: var(--line); } svg .line { fill: none; stroke: var(--k0); stroke-width: 2; stroke-linejoin: round; }
svg .line.k1 { stroke: var(--k1); } svg .line.k2 { stroke: var(--k2); }
svg .dot { fill: var(--k0); } svg .dot.k1 { fill: var(--k1); } svg .dot.k2 { fill: var(--k2); }
svg .bar, svg .cell { fill: var(--k0); } svg .blank { fill: var(--blank); }
table { width: 100%; border-collapse: collapse; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.6rem 0.3rem 0; text-align: left; vertical-align: top; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; }
tr:first-child > * { border-top: 0; } th { font-weight: 400; color: var(--soft); width: 8rem; }
td.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
td.bar { width: 50%; } td.bar div { height: 0.75rem; margin-top: 0.35rem; min-width: 2px; border-radius: 3px;
  background: var(--k0); }
footer { margin-top: 2rem; color: var(--soft); font-size: 0.85rem; }
"""

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
