// A run's questions: loaded when they are asked for, searched, filtered by what was still known, page by page.
"use strict";

(function () {
  const PAGE = 50, LONG = 240;
  const got = new Map();
  uharness.questions = (run, probes) => got.set(run, probes);

  const preferred = ["rougeL_recall", "prob", "es", "acc"];
  const main = (probe) => preferred.map((p) => probe.metrics.findIndex((m) => m.split(".").pop() === p)).find((i) => i >= 0) ?? 0;

  const long = (text) => {
    if (text.length <= LONG) return uharness.element("td", { class: "text", text });
    return uharness.element("td", { class: "text" }, uharness.element("details", {},
      uharness.element("summary", { text: text.slice(0, LONG) + " …" }), "… " + text.slice(LONG)));
  };

  document.addEventListener("DOMContentLoaded", () => {
    const asked = document.getElementById("asked");
    if (!asked) return;
    const start = uharness.element("button", { type: "button", class: "button", id: "load-questions", text: "Search all " + asked.dataset.count + " questions" });
    asked.before(uharness.element("p", {}, start));
    const begin = () => {
      start.disabled = true;
      start.textContent = "Loading";
      uharness.load(asked.dataset.questions).then(() => show(asked, start, got.get(asked.dataset.run)), () => {
        start.textContent = "The questions could not be loaded";
      });
    };
    start.addEventListener("click", begin);
    if (uharness.read().has("probe")) begin();
  });

  const show = (asked, start, probes) => {
    const { element, read, write, number } = uharness;
    const state = read();
    const field = (label, control) => element("div", { class: "field" }, element("label", { for: control.id, text: label }), control);
    const which = element("select", { id: "probe" }, ...probes.map((p) => element("option", { value: p.probe, text: p.probe + " (" + p.rows.length + ")" })));
    const first = probes.find((p) => p.texts.length) || probes[0];
    which.value = probes.some((p) => p.probe === state.get("probe")) ? state.get("probe") : first.probe;
    const search = element("input", { type: "search", id: "search", autocomplete: "off" });
    search.value = state.get("q") || "";
    const metric = element("select", { id: "metric" });
    const bound = element("input", { type: "number", id: "bound", step: "any", value: state.get("bound") || "0.5" });
    const kind = element("select", { id: "kind" }, ...[["", "all"], ["high", "at or above"], ["low", "below"], ["none", "no value"]].map(([value, text]) => element("option", { value, text })));
    kind.value = state.get("kind") || "";
    const order = element("select", { id: "order" }, ...[["", "as asked"], ["down", "highest first"], ["up", "lowest first"]].map(([value, text]) => element("option", { value, text })));
    order.value = state.get("order") || "";
    const told = element("p", { role: "status", id: "told" });
    const body = element("tbody");
    const head = element("tr");
    const table = element("table", { class: "list rows", id: "answers" }, element("thead", {}, head), body);
    const more = element("button", { type: "button", class: "quiet", text: "Show more" });
    let count = PAGE, mine = [], probe = null;

    const headed = (wanted) => {
      probe = probes.find((p) => p.probe === which.value);
      metric.replaceChildren(...probe.metrics.map((m, i) => element("option", { value: m, text: m, selected: i === main(probe) })));
      if (probe.metrics.includes(wanted)) metric.value = wanted;
    };
    headed(state.get("metric"));
    const find = () => {
      const place = probe.metrics.indexOf(metric.value);
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const limit = Number(bound.value);
      const fits = { "": () => true, high: (v) => typeof v === "number" && v >= limit, low: (v) => typeof v === "number" && v < limit, none: (v) => typeof v !== "number" };
      mine = probe.rows.filter(([id, texts, values]) => {
        if (!fits[kind.value](values[place])) return false;
        const text = (id + " " + texts.join(" ")).toLowerCase();
        return words.every((word) => text.includes(word));
      });
      if (order.value) {
        const sign = order.value === "up" ? 1 : -1;
        const at = (row) => (typeof row[2][place] === "number" ? row[2][place] : null);
        mine = mine.slice().sort((a, b) => {
          const x = at(a), y = at(b);
          return x === null || y === null ? (x === null) - (y === null) : sign * (x - y);
        });
      }
      const known = probe.rows.map((row) => row[2][place]).filter((v) => typeof v === "number");
      const above = known.filter((v) => v >= limit).length;
      told.textContent = mine.length + " of " + probe.rows.length + " questions shown. " + metric.value + " is at or above " + bound.value + " on " + above + ", below on " + (known.length - above) + ".";
    };
    const draw = () => {
      const place = probe.metrics.indexOf(metric.value);
      const order = [place, ...probe.metrics.map((_, i) => i).filter((i) => i !== place)];
      head.replaceChildren(element("th", { scope: "col", text: "Row" }), ...probe.texts.map((t) => element("th", { scope: "col", text: t })),
        ...order.map((i) => element("th", { scope: "col", class: i === place ? "num key" : "num", text: probe.metrics[i] })));
      body.replaceChildren(...mine.slice(0, count).map(([id, texts, values]) => element("tr", {},
        element("th", { scope: "row" }, element("code", { text: id })),
        ...texts.map(long),
        ...order.map((i) => {
          const value = values[i];
          const key = i === place ? "num key" : "num";
          if (typeof value !== "number") return element("td", { class: key }, element("span", { class: "none", title: value, text: "–" }));
          return element("td", { class: key }, element("data", { value: String(value), title: String(value), text: number(value) }));
        }))));
      more.hidden = mine.length <= count;
      more.textContent = "Show " + Math.min(PAGE, mine.length - count) + " more";
    };
    const again = () => {
      count = PAGE;
      find();
      draw();
      write({ probe: which.value, q: search.value, metric: metric.value, kind: kind.value, order: order.value, bound: bound.value === "0.5" ? null : bound.value });
    };
    which.addEventListener("change", () => { headed(metric.value); again(); });
    for (const control of [search, bound]) control.addEventListener("input", again);
    for (const control of [metric, kind, order]) control.addEventListener("change", again);
    more.addEventListener("click", () => { count += PAGE; draw(); });
    const lines = () => mine.map(([id, texts, values]) => ({
      row: id, ...Object.fromEntries(probe.texts.map((t, i) => [t, texts[i]])),
      ...Object.fromEntries(probe.metrics.map((m, i) => [m, typeof values[i] === "number" ? values[i] : null])),
    }));
    const quoted = (value) => (value === null ? "" : /[",\n\r]/.test(String(value)) ? '"' + String(value).replaceAll('"', '""') + '"' : String(value));
    const name = asked.dataset.run + "-";
    const csv = element("button", { type: "button", class: "quiet", text: "CSV", onclick: () => {
      const all = lines(), heads = ["row", ...probe.texts, ...probe.metrics];
      uharness.save(name + probe.probe + ".csv", "text/csv", [heads, ...all.map((line) => heads.map((h) => line[h]))].map((row) => row.map(quoted).join(",")).join("\n") + "\n");
    } });
    const json = element("button", { type: "button", class: "quiet", text: "JSON", onclick: () => uharness.save(name + probe.probe + ".json", "application/json", JSON.stringify(lines(), null, 1) + "\n") });
    start.parentNode.remove();
    asked.replaceChildren(
      element("div", { class: "bar wrap" }, field("Probe", which), field("Search", search), field("Metric", metric), field("Show", kind), field("Bound", bound), field("Order", order)),
      told, element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Questions and answers" }, table),
      element("p", { class: "bar" }, more, element("span", { class: "small", text: "What is shown as" }), csv, json));
    find();
    draw();
  };
})();
