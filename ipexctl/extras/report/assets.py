"""The page's style and script; `html.py` puts their hashes into its security policy.

Colours for light, dark and paper. Work is blue and waiting orange, which colour-blind people can tell apart; more is
further from the background. The script adds cursor and zoom to complete drawings; it writes text, never markup.
"""

from __future__ import annotations

from typing import Final

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
.p-steps,.p-script{fill:var(--w4)}.p-checkpoint{fill:var(--d0)}.p-silent{fill:var(--d1)}
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
