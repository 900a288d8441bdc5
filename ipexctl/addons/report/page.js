// Adds cursor and zoom to the drawings of a run's page, which are complete without it. It writes text, never markup.
"use strict";
(() => {
  const LEFT = 118,
    RIGHT = 944,
    PLOT_WIDTH = RIGHT - LEFT,
    PAGE_WIDTH = 960,
    SVG = "http://www.w3.org/2000/svg";
  const DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600,
    43200, 86400, 172800, 432000, 864000
  ];
  const make = (name, set, text) => {
    const e = document.createElementNS(SVG, name);
    for (const k in set) e.setAttribute(k, set[k]);
    if (text) e.textContent = text;
    return e;
  };
  const two = n => String(n).padStart(2, "0");
  const clock = s => {
    s = Math.round(s);
    const m = Math.floor(s / 60),
      h = Math.floor(s / 3600);
    if (s < 60) return s + " s";
    if (s < 3600) return m + ":" + two(s % 60) + " min";
    if (s < 86400) return h + ":" + two(m % 60) + " h";
    return Math.floor(h / 24) + " d " + h % 24 + " h";
  };
  const charts = [...document.querySelectorAll("svg[data-span]")].map(svg => {
    const section = svg.closest("section"),
      d = svg.dataset,
      cursor = make("path", {
        class: "cursor"
      });
    svg.append(cursor);
    return {
      svg,
      d,
      cursor,
      plot: svg.querySelector(".plot"),
      times: svg.querySelector(".times"),
      out: section.querySelector(".readout"),
      values: d.values === undefined ? null : d.values.split(","),
      cells: d.cells === undefined ? null : d.cells.split(" "),
      rows: d.rows ? d.rows.split(" ").map(Number) : [],
      names: [...section.querySelectorAll("tbody tr")]
    }
  });
  if (!charts.length) return;
  const span = +charts[0].d.span;
  let from = 0,
    to = span,
    at = null,
    row = 0,
    drag = null;
  const inside = t => Math.min(to, Math.max(from, t));
  const axis = c => {
    const top = +c.times.dataset.top,
      bottom = +c.times.dataset.bottom,
      len = to - from;
    const step = STEPS.find(s => len / s <= 8) || len / 8,
      parts = [];
    for (let n = Math.ceil(from / step - 1e-9); n * step <= to + 1e-9; n++) {
      const t = n * step,
        x = LEFT + (t - from) / len * PLOT_WIDTH;
      parts.push(make("path", {
        class: "grid",
        d: "M" + x.toFixed(1) + " " + top + "V" + bottom
      }));
      parts.push(make("text", {
        x: x.toFixed(1),
        y: bottom + 16,
        "text-anchor": x > RIGHT - 20 ? "end" : "middle"
      }, t ? clock(t) : "0"));
    }
    c.times.replaceChildren(...parts);
  };
  const zoom = (a, b) => {
    const least = span / 500;
    a = Math.max(0, a);
    b = Math.min(span, b);
    if (b - a < least) {
      b = Math.min(span, a + least);
      a = Math.max(0, b - least);
    }
    from = a;
    to = b;
    const x = LEFT + from / span * PLOT_WIDTH,
      w = (to - from) / span * PLOT_WIDTH;
    for (const c of charts) {
      const box = c.plot.getAttribute("viewBox").split(" ");
      c.plot.setAttribute("viewBox", x + " " + box[1] + " " + w + " " + box[3]);
      axis(c);
    }
    if (at !== null) {
      at = inside(at);
      show();
    }
  };
  const words = c => {
    const when = clock(at) + ": ";
    if (c.values) {
      const v = c.values[Math.min(c.values.length - 1, Math.floor(at / span * c.values.length))];
      return when + (v ? v + " " + c.d.unit : "not measured");
    }
    const line = c.cells[row];
    if (!line) return "";
    const n = line.length / 2,
      i = 2 * Math.min(n - 1, Math.floor(at / span * n)),
      name = c.names[row].children;
    const who = when + "rank " + name[0].textContent + " on " + name[1].textContent + ": ";
    const parts = [];
    const waits = line[i + 1] === "." ? 0 : Math.round(DIGITS.indexOf(line[i + 1]) / 63 * 100);
    if (line[i] !== ".") {
      const works = Math.min(100 - waits, Math.round(DIGITS.indexOf(line[i]) / 63 * c.d.most * 100));
      parts.push(works + " % of the time working");
      if (100 - works - waits) parts.push(100 - works - waits + " % else");
    }
    if (line[i + 1] !== ".") parts.push(waits + " % waiting");
    return who + (parts.join(", ") || "no step");
  };
  const show = () => {
    for (const c of charts) {
      if (at === null) {
        c.cursor.removeAttribute("d");
        c.out.textContent = "";
        continue;
      }
      const x = LEFT + (at - from) / (to - from) * PLOT_WIDTH;
      c.cursor.setAttribute("d", "M" + x.toFixed(1) + " 8V" + c.times.dataset.bottom);
      c.out.textContent = words(c);
    }
  };
  const place = (c, e) => {
    const b = c.svg.getBoundingClientRect(),
      x = (e.clientX - b.left) / b.width * PAGE_WIDTH;
    if (c.cells) {
      const line = Math.floor(((e.clientY - b.top) / b.width * PAGE_WIDTH - 8) / c.d.height),
        n = c.rows.indexOf(line);
      if (n >= 0) row = n;
    }
    return from + (x - LEFT) / PLOT_WIDTH * (to - from);
  };
  for (const c of charts) {
    const s = c.svg;
    s.addEventListener("pointermove", e => {
      at = inside(place(c, e));
      show();
    });
    s.addEventListener("pointerleave", () => {
      if (document.activeElement !== s) {
        at = null;
        show();
      }
    });
    s.addEventListener("pointerdown", e => {
      if (e.pointerType !== "mouse" || e.button) return;
      drag = inside(place(c, e));
      e.preventDefault();
      s.focus();
    });
    s.addEventListener("pointerup", e => {
      if (drag === null) return;
      const end = inside(place(c, e));
      const a = Math.min(drag, end),
        b = Math.max(drag, end);
      drag = null;
      if (b - a > (to - from) / 50) zoom(a, b);
    });
    s.addEventListener("dblclick", () => zoom(0, span));
    s.addEventListener("focus", () => {
      c.out.setAttribute("aria-live", "polite");
      if (at === null) at = from;
      show();
    });
    s.addEventListener("blur", () => {
      c.out.removeAttribute("aria-live");
      at = null;
      show();
    });
    s.addEventListener("keydown", e => {
      const len = to - from,
        near = at === null ? (from + to) / 2 : at,
        step = len / (e.shiftKey ? 10 : 60);
      if (e.ctrlKey || e.altKey || e.metaKey) return;
      if (e.key === "ArrowRight" || e.key === "ArrowLeft") {
        const t = near + (e.key === "ArrowRight" ? step : -step);
        if (t > to && to < span) zoom(from + step, to + step);
        if (t < from && from > 0) zoom(from - step, to - step);
        at = inside(t);
        show();
      } else if (c.cells && (e.key === "ArrowDown" || e.key === "ArrowUp")) {
        row = Math.min(c.cells.length - 1, Math.max(0, row + (e.key === "ArrowDown" ? 1 : -1)));
        show();
      } else if (e.key === "+" || e.key === "=") zoom(near - len / 4, near + len / 4);
      else if (e.key === "-") zoom(near - len, near + len);
      else if (e.key === "Home") {
        at = from;
        show();
      } else if (e.key === "End") {
        at = to;
        show();
      } else if (e.key === "Escape" || e.key === "0") zoom(0, span);
      else return;
      e.preventDefault();
    });
  }
  window.addEventListener("pointerup", () => {
    drag = null;
  });
  for (const e of document.querySelectorAll(".keys")) e.hidden = false;
})();
