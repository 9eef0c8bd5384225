// Entries of a board side by side. The URL says which: #?board=tofu-mini&entry=A&entry=B.
"use strict";

(function () {
  const boards = new Map();
  uharness.board = (data) => boards.set(data.page, data);
  const { element, number, root } = uharness;

  const differences = (data, column, a, b) => {
    const info = data.columns[column], kase = info.id.split("@")[1];
    const strata = new Map();
    data.units.forEach(([name], unit) => {
      const x = a.values[column][unit], y = b.values[column][unit];
      if ((kase && kase !== name) || x === null || y === null) return;
      if (!strata.has(name)) strata.set(name, []);
      strata.get(name).push(y - x);
    });
    return uharness.stats.estimate([...strata.values()]);
  };

  const chosen = () => {
    const state = uharness.read();
    return { board: state.get("board") || "", entries: state.getAll("entry") };
  };
  const choose = (board, entries) => {
    const state = new URLSearchParams(board ? { board } : {});
    for (const entry of entries) state.append("entry", entry);
    const text = state.toString();
    try { history.replaceState(null, "", text ? "#?" + text : location.pathname.split("/").pop()); } catch (error) { location.hash = "?" + text; }
    show();
  };

  const picker = (data, entries) => {
    const set = document.getElementById("entries");
    const boxes = data.entries.map((entry) => {
      const box = element("input", { type: "checkbox", value: entry.entry });
      box.checked = entries.includes(entry.entry);
      box.addEventListener("change", () => {
        const now = chosen().entries.filter((name) => name !== entry.entry);
        choose(data.page, box.checked ? [...now, entry.entry] : now);
      });
      return element("label", {}, box, " " + entry.title + " ", element("code", { text: entry.entry }), entry.section === "ranked" ? "" : element("span", { class: "badge", text: entry.section }));
    });
    set.replaceChildren(set.firstElementChild, element("div", { class: "boxes" }, ...boxes));
    set.hidden = false;
  };

  const side = (data, entries) => {
    const [first, ...others] = entries;
    const heads = entries.map((entry, i) => element("th", { scope: "col", class: "num" },
      element("a", { class: "title", href: "methods/" + entry.method + ".html", text: entry.title }), element("span", { class: "sub", text: entry.entry }),
      i ? element("button", { type: "button", class: "quiet", text: "Compare with this", onclick: () => choose(data.page, [entry.entry, ...entries.filter((e) => e !== entry).map((e) => e.entry)]) })
        : element("span", { class: "badge", text: "compared with" })));
    const lines = data.columns.map((column, place) => {
      const cells = entries.map((entry, i) => {
        const [text, value, why] = entry.cells[place];
        const cell = element("td", { class: "num" }, value === null ? element("span", { class: "none", title: why, text: "–" }) : element("data", { value: String(value), title: String(value), text }));
        if (i) {
          const d = differences(data, place, first, entry);
          const sure = d.low !== undefined && (d.low > 0 || d.high < 0);
          const sign = { higher: 1, lower: -1 }[column.direction] || 0;
          const verdict = sure && sign ? (sign * d.mean > 0 ? "better" : "worse") : "";
          const said = d.mean === null ? "–" : (d.mean > 0 ? "+" : "") + number(d.mean, value) + (d.low === undefined ? "" : " [" + number(d.low, value) + ", " + number(d.high, value) + "]");
          cell.append(element("span", { class: "diff " + verdict, title: d.why || [d.mean, d.low, d.high].join(", "), text: said + (verdict ? " " + verdict : "") }));
        }
        return cell;
      });
      return element("tr", { class: column.id === data.rankBy ? "ranked-by" : "" }, element("th", { scope: "row" }, element("a", { href: "glossary.html#" + column.id.split("@")[0], title: column.text, text: column.head })), ...cells);
    });
    const facts = [["Rank", (e) => (e.rank === null ? "–" : String(e.rank)) + (e.group ? " (" + e.group + ")" : "")], ["Runs", (e) => e.runs]].map(([name, of]) =>
      element("tr", {}, element("th", { scope: "row", text: name }), ...entries.map((e) => element("td", { class: "num", text: of(e) }))));
    return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Comparison" },
      element("table", { class: "list compare", id: "side" }, element("thead", {}, element("tr", {}, element("th", { scope: "col", text: "Column" }), ...heads)), element("tbody", {}, ...facts, ...lines)));
  };

  const downloads = (data, entries) => {
    const lines = entries.flatMap((entry, i) => data.columns.map((column, place) => {
      const d = i ? differences(data, place, entries[0], entry) : {};
      return { entry: entry.entry, title: entry.title, column: column.id, mean: entry.cells[place][1], from: i ? entries[0].entry : null, difference: d.mean ?? null, low: d.low ?? null, high: d.high ?? null };
    }));
    const quoted = (value) => (value === null ? "" : /[",\n]/.test(String(value)) ? '"' + String(value).replaceAll('"', '""') + '"' : String(value));
    const csv = () => [Object.keys(lines[0]).join(","), ...lines.map((line) => Object.values(line).map(quoted).join(","))].join("\n") + "\n";
    return element("p", { class: "downloads" }, element("span", { text: "This comparison as" }), " ",
      element("button", { type: "button", class: "quiet", text: "CSV", onclick: () => uharness.save("compare-" + data.name + ".csv", "text/csv", csv()) }),
      element("button", { type: "button", class: "quiet", text: "JSON", onclick: () => uharness.save("compare-" + data.name + ".json", "application/json", JSON.stringify(lines, null, 1) + "\n") }),
      element("a", { href: root() + "data/boards/" + data.page + ".parquet", download: true, text: "The whole board as Parquet" }));
  };

  // as harness.pages.words.bibtex has it
  const plain = (text) => text.slice(0, 600).replace(/[\\{}]/g, "").split(/\s+/).filter(Boolean).join(" ").replace(/[%&#$_]/g, "\\$&");
  const cite = (data, entries) => {
    const fields = {
      title: entries.map((entry) => entry.title).join(", ") + " on " + data.title, howpublished: "uharness board show " + data.name,
      note: "board version " + data.version + "; entries " + entries.map((entry) => entry.entry).join(", "), year: data.year,
    };
    const lines = Object.entries(fields).filter(([, text]) => text).map(([name, text]) => "  " + name + " = {" + plain(text) + "}");
    const key = ("uharness-" + data.name + "-compared").replace(/[^A-Za-z0-9]+/g, "-");
    return [element("h2", { text: "Cite" }), uharness.copying(element("div", { class: "copyable" }, element("pre", { tabindex: "0", role: "region", "aria-label": "BibTeX of this comparison" },
      element("code", { id: "bibtex", text: "@misc{" + key + ",\n" + lines.join(",\n") + "\n}" }))))];
  };

  const show = () => {
    const { board, entries } = chosen();
    const out = document.getElementById("compared");
    document.getElementById("which").value = board;
    if (!board) { out.replaceChildren(); document.getElementById("entries").hidden = true; return; }
    if (![...document.getElementById("which").options].some((option) => option.value === board)) {
      out.replaceChildren(element("p", { class: "empty", text: "There is no such board, or it has no entry." }));
      return;
    }
    uharness.load(root() + "data/compare/" + board + ".js").then(() => {
      const data = boards.get(board);
      picker(data, entries);
      const found = entries.map((name) => data.entries.find((e) => e.entry === name)).filter(Boolean);
      const lost = entries.filter((name) => !data.entries.some((e) => e.entry === name));
      out.replaceChildren(
        element("h2", {}, element("a", { href: "boards/" + data.page + ".html", text: data.title })),
        ...(lost.length ? [element("p", { class: "reason", text: "Not on this board any more: " + lost.join(", ") })] : []),
        ...(found.length > 1 ? [side(data, found), downloads(data, found), ...cite(data, found)] : [element("p", { class: "empty", text: "Choose at least two entries." })]));
    }, () => out.replaceChildren(element("p", { class: "reason", text: "The numbers of this board could not be loaded." })));
  };

  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("choose");
    if (!form) return;
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    document.getElementById("which").addEventListener("change", (event) => choose(event.target.value, []));
    window.addEventListener("hashchange", show);
    show();
  });
})();
