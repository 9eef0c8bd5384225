// Charts that answer: each SVG on the page is replaced, once it is near the screen, by the same data drawn by Vega-Lite.
"use strict";

(function () {
  const COLOURS = 8;
  const DASHES = [[1, 0], [7, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2], [1, 2], [9, 2, 2, 2, 2, 2]];
  const resolved = (name) => {
    const probe = uharness.element("span", { class: "probe-" + name });
    document.body.append(probe);
    const colour = getComputedStyle(probe).color;
    probe.remove();
    return colour;
  };

  const config = (wide) => {
    const ink = resolved("ink"), soft = resolved("soft"), line = resolved("line");
    const axis = { labelColor: soft, titleColor: ink, gridColor: line, domainColor: line, tickColor: line, titleFontWeight: "normal" };
    return {
      background: "transparent", font: getComputedStyle(document.body).fontFamily, view: { stroke: null }, axis,
      legend: { labelColor: ink, title: null, orient: "top", columns: wide < 500 ? 2 : 3, labelLimit: 220, symbolStrokeWidth: 2 },
      range: { category: Array.from({ length: COLOURS }, (_, i) => resolved("s" + i)) },
    };
  };

  const lines = (chart) => {
    const names = Object.keys(chart.lines);
    const values = names.flatMap((name) => chart.lines[name].map(([x, y]) => ({ x, y, name })));
    const colour = { field: "name", type: "nominal", sort: names, scale: { domain: names }, legend: { symbolType: "stroke", symbolSize: 300 } };
    return {
      data: { values },
      encoding: {
        x: { field: "x", type: "quantitative", title: chart.x, scale: chart.log ? { type: "log", nice: false } : { zero: false }, axis: chart.log ? { format: "~e", tickCount: 6 } : { tickCount: 6 } },
        y: { field: "y", type: "quantitative", title: chart.y, scale: { zero: false } },
        color: colour,
        tooltip: [{ field: "name", title: "line" }, { field: "x", title: chart.x }, { field: "y", title: chart.y }],
      },
      layer: [
        { mark: { type: "line", strokeWidth: 2, interpolate: chart.steps ? "step-after" : "linear" }, encoding: { strokeDash: { ...colour, scale: { domain: names, range: DASHES.slice(0, Math.max(names.length, 1)) } } } },
        { mark: { type: "point", filled: true, size: 45, opacity: 1 } },
      ],
    };
  };

  // on the axes of the picture, so that the labels which do not overlap there do not here
  const scatter = (chart, wide) => {
    const values = chart.points.map(([title, entry, x, y, xl, xh, yl, yh, best, compared, xt, yt, label, end]) =>
      ({ title, entry, x, y, xl, xh, yl, yh, kind: best ? "on the front" : compared ? "beaten" : "not compared", xt, yt, label, end }));
    const styles = { "on the front": ["circle", "s1"], beaten: ["square", "soft"], "not compared": ["cross", "s0"] };
    const kinds = Object.keys(styles).filter((kind) => values.some((value) => value.kind === kind));
    const x = { field: "x", type: "quantitative", title: chart.x, scale: { domain: chart.across, nice: false, zero: false }, axis: { tickCount: 6 } };
    const y = { field: "y", type: "quantitative", title: chart.y, scale: { domain: chart.up, nice: false, zero: false }, axis: { tickCount: 6 } };
    const labels = [false, true].map((end) => ({
      transform: [{ filter: { and: [{ field: "end", equal: end }, { not: { field: "label", equal: "" } }] } }],
      mark: { type: "text", align: end ? "right" : "left", dx: end ? -7 : 7, dy: -7, fontSize: Math.min(12, Math.max(9, wide * 12 / 640)), color: resolved("ink") },
      encoding: { x, y, text: { field: "label" } },
    }));
    const tooltip = [{ field: "title", title: "entry" }, { field: "entry", title: "id" }, { field: "xt", title: chart.x }, { field: "yt", title: chart.y }];
    const bars = [["x", "xl", "x2", "xh", "y"], ["y", "yl", "y2", "yh", "x"]].map(([a, low, b, high, other]) => ({
      transform: [{ filter: { field: low, valid: true } }],
      mark: { type: "rule", clip: true, opacity: 0.3, color: resolved("soft") },
      encoding: { [a]: { ...(a === "x" ? x : y), field: low }, [b]: { field: high }, [other]: other === "x" ? x : y },
    }));
    return {
      data: { values },
      layer: [
        ...bars,
        { transform: [{ filter: { field: "kind", equal: "on the front" } }], mark: { type: "line", strokeDash: [5, 4], color: resolved("s1") }, encoding: { x, y, order: { field: "x" } } },
        { mark: { type: "point", filled: true, opacity: 1, size: 70 }, encoding: { x, y, tooltip, shape: { field: "kind", type: "nominal", sort: kinds, scale: { domain: kinds, range: kinds.map((kind) => styles[kind][0]) } },
          color: { field: "kind", type: "nominal", sort: kinds, scale: { domain: kinds, range: kinds.map((kind) => resolved(styles[kind][1])) } } } },
        ...labels,
      ],
    };
  };

  const tip = () => {
    let box = document.getElementById("tip");
    if (!box) {
      box = uharness.element("div", { id: "tip", role: "status", hidden: true });
      document.body.append(box);
    }
    return (handler, event, item, value) => {
      if (value === null || value === undefined || value === "") { box.hidden = true; return; }
      box.replaceChildren(...Object.entries(value).map(([name, text]) => uharness.element("div", {},
        uharness.element("b", { text: name + " " }), typeof text === "number" ? uharness.number(text) : String(text))));
      box.hidden = false;
      const wide = box.offsetWidth, x = event.clientX + 14;
      box.style.left = Math.max(4, Math.min(x, innerWidth - wide - 8)) + "px";
      box.style.top = event.clientY + 14 + "px";
    };
  };

  const draw = (figure, chart) => {
    const place = uharness.element("div", { class: "drawn " + chart.kind, role: "img" });
    figure.querySelector(".drawn")?.remove();
    figure.append(place);
    const spec = {
      $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container", height: 260, autosize: { type: "fit", contains: "padding" },
      ...(chart.kind === "scatter" ? scatter(chart, place.clientWidth) : lines(chart)),
    };
    const old = figure.querySelector("svg.chart");
    const title = old ? old.querySelector("title").textContent : "";
    const about = old ? old.querySelector("desc").textContent : figure.dataset.about;
    if (old) figure.dataset.about = about;
    place.setAttribute("aria-label", (title || figure.dataset.title) + ". " + about);
    if (title) figure.dataset.title = title;
    const compiled = vegaLite.compile(spec, { config: config(place.clientWidth) }).spec;
    const view = new vega.View(vega.parse(compiled, null, { ast: true }), {
      expr: vegaInterpreter.expressionInterpreter, renderer: "canvas", container: place, hover: true, tooltip: tip(), logLevel: vega.Error,
    });
    return view.runAsync().then(() => {
      figure.classList.add("live");
      for (const made of place.querySelectorAll("[role=graphics-document], canvas")) { made.removeAttribute("role"); made.setAttribute("aria-hidden", "true"); }
    });
  };

  document.addEventListener("DOMContentLoaded", () => {
    const block = document.getElementById("charts");
    const found = [...document.querySelectorAll("figure[data-chart]")];
    if (!block || !found.length) return;
    const data = JSON.parse(block.textContent);
    const live = new Set();
    const start = (figure) => {
      const chart = data[figure.dataset.chart];
      if (!chart || live.has(figure)) return;
      live.add(figure);
      uharness.load(uharness.root() + "static/vega.js").then(() => draw(figure, chart)).catch((error) => {
        figure.querySelector(".drawn")?.remove(); // the picture made at build time stays
        figure.classList.remove("live");
        console.warn("a chart stays a picture: " + error.message);
      });
    };
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { watch.unobserve(entry.target); start(entry.target); }
    }, { rootMargin: "200px" });
    for (const figure of found) watch.observe(figure);
    document.addEventListener("uharness-theme", () => { for (const figure of live) draw(figure, data[figure.dataset.chart]); });
  });
})();
