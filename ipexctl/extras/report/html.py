"""The page of a run as one HTML file, in the order of a reader's questions. The file loads nothing (`default-src
'none'` and hashes of its style and script). Every text from a host is escaped, and none becomes a link. Hidden values
are not in the file. The script adds cursor and zoom to complete drawings; it writes text, never markup.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from ipexctl.extras.report import drawings
from ipexctl.extras.report.markup import Markup, duration_text, element, escaped, joined, number_text
from ipexctl.extras.report.page import Change, Fact, Incomparable, ReportPage, RunComparison, SettingRow
from ipexctl.extras.slow.slow_report import section_of
from ipexctl.node.common.records import FINAL
from ipexctl.text import counted
from ipexctl.ui.run.end_of_run import amx_text, network_text, throughput_text

MAX_SCRIPT: Final = 8000

STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--ink:#1b1f24;--soft:#57606a;--rule:#d8dee4;--box:#f6f8fa;
--w0:#deebf7;--w1:#b3d1ea;--w2:#6baed6;--w3:#2f7fbc;--w4:#08468b;--d0:#fdc38d;--d1:#f07818;--d2:#9c3404;
--idle:#c8ccd1;--line:#08468b;--bad:#a4260a;--on4:#fff}
@media (prefers-color-scheme:dark){:root{--bg:#0f1419;--ink:#e6e9ed;--soft:#a3acb6;--rule:#2d343c;--box:#181e25;
--w0:#14304a;--w1:#1d4a75;--w2:#2f73b0;--w3:#64a9e2;--w4:#bfe0ff;--d0:#74400f;--d1:#d9761a;--d2:#ffc48a;
--idle:#4a515a;--line:#64a9e2;--bad:#ff9d85;--on4:#0f1419}}
@media print{:root{color-scheme:light;--bg:#fff;--ink:#000;--soft:#444;--rule:#ccc;--box:#fff;
--w0:#deebf7;--w1:#b3d1ea;--w2:#6baed6;--w3:#2f7fbc;--w4:#08468b;--d0:#fdc38d;--d1:#f07818;--d2:#9c3404;
--idle:#c8ccd1;--line:#08468b;--bad:#a4260a;--on4:#fff}
body{font-size:10pt;max-width:none!important;padding:0!important}.readout,.figure details,.keys{display:none}
svg text{font-size:13.5px!important}
section{break-inside:avoid}section.long{break-inside:auto}h2{break-after:avoid}tr{break-inside:avoid}
.scroll{max-height:none!important}svg{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
@page{size:A4;margin:14mm}
*{box-sizing:border-box}
body{background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;
margin:0 auto;max-width:1080px;padding:24px 28px 64px}
h1{font-size:1.55em;line-height:1.25;margin:0 0 2px;overflow-wrap:anywhere}
h2{font-size:1.1em;margin:0 0 6px}h3{font-size:1em;margin:14px 0 4px}
section,header{margin:0 0 34px}p{margin:4px 0;overflow-wrap:anywhere}
.run{color:var(--soft);margin:0 0 10px}.state{display:inline-block;border:1.5px solid;border-radius:4px;
font-weight:600;padding:0 9px;margin-right:10px}.failed,.lost{color:var(--bad)}.ok,.running,.starting{color:var(--line)}
.why{border-left:3px solid var(--bad);margin:14px 0;padding:2px 0 2px 14px}.cause{font-weight:600;margin:0}
header h2{margin-top:16px}.note,.readout{color:var(--soft)}.readout{min-height:1.5em}
.note,.readout,td{font-variant-numeric:tabular-nums}
pre{background:var(--box);border:1px solid var(--rule);border-radius:6px;
font:13px/1.45 ui-monospace,"DejaVu Sans Mono",monospace;
margin:6px 0;padding:9px 12px;white-space:pre-wrap;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 22px;margin:0}dt{color:var(--soft)}
dd{margin:0;overflow-wrap:anywhere}ul{margin:4px 0;padding-left:20px}
.legend{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;padding:0;color:var(--soft)}
.legend li{display:flex;align-items:center;gap:6px}.legend svg,.key svg{width:12px;height:12px;flex:none}
.key svg{margin-right:8px;vertical-align:-1px}.key{white-space:nowrap}.fixes{margin:6px 0}
.wide>svg{display:block;width:100%;height:auto;overflow:visible}svg.plot{overflow:hidden}
svg text{fill:var(--soft);font-size:11.5px;font-variant-numeric:tabular-nums}
svg.chart{cursor:crosshair;touch-action:pan-y;user-select:none}
:focus-visible{outline:2px solid var(--line);outline-offset:3px}
.grid{stroke:var(--rule);stroke-width:1;fill:none}.line{fill:none;stroke:var(--line);stroke-width:1.7;
stroke-linejoin:round;vector-effect:non-scaling-stroke}.band{fill:var(--w1);opacity:.65}
.cursor{stroke:var(--ink);stroke-width:1;stroke-dasharray:3 2;fill:none;pointer-events:none}
.cells path{fill:none;stroke-width:.92}
.cells .w0{stroke:var(--w0)}.cells .w1{stroke:var(--w1)}.cells .w2{stroke:var(--w2)}.cells .w3{stroke:var(--w3)}
.cells .w4{stroke:var(--w4)}.cells .d0{stroke:var(--d0)}.cells .d1{stroke:var(--d1)}.cells .d2{stroke:var(--d2)}
.cells .idle{stroke:var(--idle)}
rect.w0{fill:var(--w0)}rect.w2{fill:var(--w2)}rect.w4{fill:var(--w4)}rect.d0{fill:var(--d0)}rect.d2{fill:var(--d2)}
rect.idle{fill:var(--idle)}
.p-checks,.p-start,.p-end{fill:var(--idle)}.p-sync,.p-import{fill:var(--w1)}.p-warm-up{fill:var(--w2)}
.p-steps,.p-script{fill:var(--w4)}.p-checkpoint,.p-lost{fill:var(--d0)}.p-silent{fill:var(--d1)}
rect.p-checks,rect.p-sync,rect.p-start,rect.p-import,rect.p-warm-up,rect.p-steps,rect.p-script,rect.p-end{
stroke:var(--bg);stroke-width:.7}
.again{stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3;vector-effect:non-scaling-stroke}
.p-restart{stroke:var(--bad);stroke-width:2.5;fill:var(--bad)}
svg text.in-steps,svg text.in-script{fill:var(--on4)}
svg text.in-checks,svg text.in-sync,svg text.in-start,svg text.in-import,svg text.in-end{fill:var(--ink)}
table{border-collapse:collapse;width:100%;font-size:.92em}caption{text-align:left;color:var(--soft);padding:4px 0}
th,td{text-align:left;vertical-align:top;padding:3px 14px 3px 0;border-bottom:1px solid var(--rule);
overflow-wrap:anywhere}
thead th{color:var(--soft);font-weight:600}tbody th{font-weight:500}
.plan{table-layout:fixed}.plan th:first-child{width:27%}.plan th:nth-child(2){width:30%}
.phases th:nth-child(2),.phases th:nth-child(3){width:12%}
.phases{margin-top:6px}
.scroll{max-height:420px;overflow:auto}summary{cursor:pointer;color:var(--soft)}
.hidden{color:var(--soft);font-style:italic}.keys{color:var(--soft);font-size:.92em;margin:-22px 0 30px}
@media screen and (max-width:760px){body{padding:16px 16px 48px}.wide{overflow-x:auto}.wide>svg{min-width:700px}
.wide>table{min-width:620px}
svg text{font-size:13.5px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:6px}}
""".strip()

SCRIPT: Final = r"""
"use strict";(()=>{
const L=118,R=944,P=R-L,W=960,NS="http://www.w3.org/2000/svg";
const D="0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
const STEPS=[1,2,5,10,15,30,60,120,300,600,900,1800,3600,7200,10800,21600,43200,86400,172800,432000,864000];
const make=(name,set,text)=>{const e=document.createElementNS(NS,name);
for(const k in set)e.setAttribute(k,set[k]);if(text)e.textContent=text;return e};
const two=n=>String(n).padStart(2,"0");
const clock=s=>{s=Math.round(s);const m=Math.floor(s/60),h=Math.floor(s/3600);
return s<60?s+" s":s<3600?m+":"+two(s%60)+" min":s<86400?h+":"+two(m%60)+" h":Math.floor(h/24)+" d "+h%24+" h"};
const charts=[...document.querySelectorAll("svg[data-span]")].map(svg=>{
const section=svg.closest("section"),d=svg.dataset,cursor=make("path",{class:"cursor"});svg.append(cursor);
return{svg,d,cursor,plot:svg.querySelector(".plot"),times:svg.querySelector(".times"),out:section.querySelector(".readout"),
values:d.values===undefined?null:d.values.split(","),cells:d.cells===undefined?null:d.cells.split(" "),
rows:d.rows?d.rows.split(" ").map(Number):[],names:[...section.querySelectorAll("tbody tr")]}});
if(!charts.length)return;
const span=+charts[0].d.span;let from=0,to=span,at=null,row=0,drag=null;
const inside=t=>Math.min(to,Math.max(from,t));
const axis=c=>{const top=+c.times.dataset.top,bottom=+c.times.dataset.bottom,len=to-from;
const step=STEPS.find(s=>len/s<=8)||len/8,parts=[];
for(let n=Math.ceil(from/step-1e-9);n*step<=to+1e-9;n++){const t=n*step,x=L+(t-from)/len*P;
parts.push(make("path",{class:"grid",d:"M"+x.toFixed(1)+" "+top+"V"+bottom}));
parts.push(make("text",{x:x.toFixed(1),y:bottom+16,"text-anchor":x>R-20?"end":"middle"},t?clock(t):"0"))}
c.times.replaceChildren(...parts)};
const zoom=(a,b)=>{const least=span/500;a=Math.max(0,a);b=Math.min(span,b);
if(b-a<least){b=Math.min(span,a+least);a=Math.max(0,b-least)}
from=a;to=b;const x=L+from/span*P,w=(to-from)/span*P;
for(const c of charts){const box=c.plot.getAttribute("viewBox").split(" ");
c.plot.setAttribute("viewBox",x+" "+box[1]+" "+w+" "+box[3]);axis(c)}
if(at!==null){at=inside(at);show()}};
const words=c=>{const when=clock(at)+": ";
if(c.values){const v=c.values[Math.min(c.values.length-1,Math.floor(at/span*c.values.length))];
return when+(v?v+" "+c.d.unit:"not measured")}
const line=c.cells[row];if(!line)return"";
const n=line.length/2,i=2*Math.min(n-1,Math.floor(at/span*n)),name=c.names[row].children;
const who=when+"rank "+name[0].textContent+" on "+name[1].textContent+": ";
const parts=[];if(line[i]!==".")parts.push(Math.round(D.indexOf(line[i])/63*c.d.most*100)+" % of the time working");
if(line[i+1]!==".")parts.push(Math.round(D.indexOf(line[i+1])/63*100)+" % of the time waiting");
return who+(parts.join(", ")||"no step")};
const show=()=>{for(const c of charts){if(at===null){c.cursor.removeAttribute("d");c.out.textContent="";continue}
const x=L+(at-from)/(to-from)*P;
c.cursor.setAttribute("d","M"+x.toFixed(1)+" 8V"+c.times.dataset.bottom);c.out.textContent=words(c)}};
const place=(c,e)=>{const b=c.svg.getBoundingClientRect(),x=(e.clientX-b.left)/b.width*W;
if(c.cells){const line=Math.floor(((e.clientY-b.top)/b.width*W-8)/c.d.height),n=c.rows.indexOf(line);if(n>=0)row=n}
return from+(x-L)/P*(to-from)};
for(const c of charts){const s=c.svg;
s.addEventListener("pointermove",e=>{at=inside(place(c,e));show()});
s.addEventListener("pointerleave",()=>{if(document.activeElement!==s){at=null;show()}});
s.addEventListener("pointerdown",e=>{if(e.pointerType!=="mouse"||e.button)return;
drag=inside(place(c,e));e.preventDefault();s.focus()});
s.addEventListener("pointerup",e=>{if(drag===null)return;const end=inside(place(c,e));
const a=Math.min(drag,end),b=Math.max(drag,end);
drag=null;if(b-a>(to-from)/50)zoom(a,b)});
s.addEventListener("dblclick",()=>zoom(0,span));
s.addEventListener("focus",()=>{c.out.setAttribute("aria-live","polite");if(at===null)at=from;show()});
s.addEventListener("blur",()=>{c.out.removeAttribute("aria-live");at=null;show()});
s.addEventListener("keydown",e=>{const len=to-from,near=at===null?(from+to)/2:at,step=len/(e.shiftKey?10:60);
if(e.ctrlKey||e.altKey||e.metaKey)return;
if(e.key==="ArrowRight"||e.key==="ArrowLeft"){const t=near+(e.key==="ArrowRight"?step:-step);
if(t>to&&to<span)zoom(from+step,to+step);if(t<from&&from>0)zoom(from-step,to-step);at=inside(t);show()}
else if(c.cells&&(e.key==="ArrowDown"||e.key==="ArrowUp")){
row=Math.min(c.cells.length-1,Math.max(0,row+(e.key==="ArrowDown"?1:-1)));show()}
else if(e.key==="+"||e.key==="=")zoom(near-len/4,near+len/4);
else if(e.key==="-")zoom(near-len,near+len);
else if(e.key==="Home"){at=from;show()}else if(e.key==="End"){at=to;show()}
else if(e.key==="Escape"||e.key==="0")zoom(0,span);else return;
e.preventDefault()})}
window.addEventListener("pointerup",()=>{drag=null});
for(const e of document.querySelectorAll(".keys"))e.hidden=false;
})();
""".strip()


GENERATOR: Final = Markup('<meta name="generator" content="ipexctl report">')
_STATES: Final = {
    "ok": "✓ succeeded",
    "failed": "✕ failed",
    "lost": "✕ lost",
    "stopped": "■ stopped",
    "running": "▶ running",
    "starting": "▶ starting",
}
_STREAMS: Final = {"stdout": "stdout", "stderr": "stderr", "mpirun": "mpirun.log", "supervisor": "supervise.log"}
_KEYS: Final = "Keys on a drawing: ← → move the cursor, ↑ ↓ choose a rank, + and - zoom, Esc shows all. Drag to zoom."
_MAX_LINE: Final = 4000
_FIGURES_AT: Final = 3


def page_html(page: ReportPage) -> str:
    sections = [_ending(page), _last_lines(page), _stacks(page), _facts(page)]
    if page.comparison is not None:
        sections.append(_comparison(page.comparison))
    sections.append(_slow(page))
    sections += _drawings(page)
    sections += [_plan(page), _missing(page)]
    return document(f"Run {page.run}", sections)


def document(title: str, sections: Iterable[Markup]) -> str:
    policy = f"default-src 'none'; style-src '{_hash(STYLE)}'; script-src '{_hash(SCRIPT)}'"
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup(
            f"<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}; base-uri 'none'; form-action 'none'\">"
        ),
        Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'),
        GENERATOR,
        element("title", escaped(title)),
        element("style", Markup(STYLE)),
    )
    body = element("body", element("main", *sections), element("script", Markup(SCRIPT)))
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _ending(page: ReportPage) -> Markup:
    style = page.state if page.state in _STATES else "unknown"
    state = element("span", escaped(_STATES.get(page.state, f"? {page.state}")), class_=f"state {style}")
    parts = [element("h1", escaped(page.headline)), element("p", state, escaped(f"Run {page.run}"), class_="run")]
    if page.cause:
        label = "Possible cause" if page.confidence == "possible" else "Likely cause"
        cause = [element("p", escaped(f"{label}: {page.cause}"), class_="cause")]
        if page.fixes:
            cause.append(element("ul", *(element("li", escaped(fix)) for fix in page.fixes), class_="fixes"))
        parts.append(element("div", *cause, class_="why"))
    parts += [element("p", escaped(sentence)) for sentence in page.others]
    parts += [element("p", escaped(note), class_="note") for note in page.notes]
    if page.commands:
        lines = Markup("\n".join(escaped(command) for command in page.commands))
        parts += [element("h2", escaped("Its output" if page.fixes else "Type next")), element("pre", lines)]
    return element("header", *parts)


def section(title: str, *content: Markup, is_long: bool = False) -> Markup:
    heading = element("h2", escaped(title))
    return element("section", heading, *content, class_="long") if is_long else element("section", heading, *content)


def _facts(page: ReportPage) -> Markup:
    if not page.facts:
        return joined()
    figures = [Fact("Throughput", speed)] if (speed := throughput_text(page.measured)) else []
    if page.took is not None:
        figures.insert(0, Fact("Duration", duration_text(page.took)))
    shown = [*page.facts[:_FIGURES_AT], *figures, *page.facts[_FIGURES_AT:]]
    entries = (joined(element("dt", escaped(f.label)), element("dd", escaped(f.value))) for f in shown)
    return section("What ran", element("dl", *entries))


def _slow(page: ReportPage) -> Markup:
    """Slow ranks and links, and what was compared; empty if the ranks could not be compared."""
    if page.slow is None or page.record is None:
        return joined()
    slow = page.slow
    if slow.unjudged and not slow.findings and not network_text(slow.network) and not amx_text(slow.amx_idle):
        return joined()
    shown = section_of(page.record, page.slow, is_over=page.state in FINAL)
    parts = []
    for entry in shown.entries:
        parts.append(element("p", escaped(entry.headline), class_="cause"))
        parts += [element("p", escaped(text)) for text in entry.details]
        parts.append(element("ul", *(element("li", escaped(fix)) for fix in entry.fixes), class_="fixes"))
    parts += [element("p", escaped(text), class_="note") for text in shown.closing]
    return section("Slow ranks and links", *parts)


def _drawings(page: ReportPage) -> Iterator[Markup]:
    span = page.span
    restarts = [phase.begin for phase in page.phases if phase.kind == "restart"]
    number = 0
    for curve in (page.throughput, page.loss):
        if curve is not None:
            number += 1
            yield drawings.curve(number, curve, span, restarts)
    if page.grid is not None:
        number += 1
        yield drawings.grid(number, page.grid, span, restarts)
    if number:
        yield element("p", escaped(_KEYS), class_="keys", hidden="hidden")
    if page.hosts:
        number += 1
        yield drawings.hosts(number, page.hosts, span)
    if page.phases:
        yield drawings.phases(number + 1, page.phases, span)


def _plan(page: ReportPage) -> Markup:
    if not page.settings:
        return joined()
    head = element("tr", *(element("th", escaped(cell), scope="col") for cell in ("Variable", "Value", "Why")))
    body = element("tbody", *map(_setting, page.settings))
    rows = drawings.wide(element("table", element("thead", head), body, class_="plan"), "Plan")
    more = (
        element("p", escaped(f"{counted(page.more_settings, 'more row')} in plan.json"))
        if page.more_settings
        else joined()
    )
    summary = element(
        "summary", escaped(f"{counted(len(page.settings), 'setting')} of the ranks, each with its reason")
    )
    return section("Plan", element("details", summary, rows, more), is_long=True)


def _setting(row: SettingRow) -> Markup:
    if row.is_hidden:
        value = element("span", escaped("not shown"), class_="hidden")
    elif row.value is None:
        value = element("span", escaped("removed"), class_="hidden")
    else:
        value = escaped(row.value[:_MAX_LINE])
    where = element("div", escaped(row.where), class_="note") if row.where else joined()
    name = element("th", escaped(row.name), scope="row")
    return element("tr", name, element("td", value, where), element("td", escaped(row.reason)))


def _last_lines(page: ReportPage) -> Markup:
    if not page.lines:
        return joined()
    parts: list[Markup] = []
    for stream, label in _STREAMS.items():
        lines = [escaped(line.text.expandtabs(8)[:_MAX_LINE]) for line in page.lines if line.stream == stream]
        if lines:
            parts += [element("h3", escaped(f"{page.whose}: {label}")), element("pre", Markup("\n".join(lines)))]
    return section("Last lines", *parts, is_long=True)


def _stacks(page: ReportPage) -> Markup:
    if not page.stacks:
        return joined()
    parts = []
    for stack in page.stacks:
        text = element("pre", Markup("\n".join(map(escaped, stack.lines))))
        parts.append(element("details", element("summary", escaped(stack.title)), text))
    return section("Stacks, the innermost call first", *parts, is_long=True)


def _missing(page: ReportPage) -> Markup:
    if not page.missing:
        return joined()
    return section("Not in this record", element("ul", *(element("li", escaped(part)) for part in page.missing)))


def _comparison(comparison: RunComparison) -> Markup:
    parts = [element("p", escaped(_change_sentence(comparison.change)))]
    if comparison.settings:
        rows = [
            (
                setting.name,
                "-" if setting.before is None else setting.before,
                "-" if setting.after is None else setting.after,
            )
            for setting in comparison.settings
        ]
        parts.append(drawings.table(("Setting", comparison.other, "This run"), rows, "Settings that differ"))
    else:
        parts.append(element("p", escaped("No setting differs.")))
    return section(f"Compared with {comparison.other}", *parts, is_long=True)


_INCOMPARABLE: Final[dict[Incomparable, str]] = {
    "not-measured": "a run has no measured steps",
    "other-unit": "one run has samples, the other has steps",
    "too-short": "a run ended during its warm-up; a minute of steps is enough",
}


def _change_sentence(change: Change | Incomparable) -> str:
    if isinstance(change, str):
        return f"Throughput cannot be compared: {_INCOMPARABLE[change]}."
    speeds = f"{number_text(change.before)} before, {number_text(change.after)} {change.unit} now"
    sentence = f"Throughput changed by {100 * change.ratio:+.1f} % ({speeds})"
    if change.low is None or change.high is None:
        return f"{sentence}. A run is too short for a confidence interval."
    bounds = f"between {100 * change.low:+.1f} % and {100 * change.high:+.1f} %"
    return f"{sentence}, {bounds} with 95 % confidence for these two starts; two starts of one program differ, too."
