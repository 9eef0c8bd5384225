// What every page has: the theme's button, tables that sort and filter and keep their state in the URL, copying.
"use strict";

window.uharness = (function () {
  const element = (tag, attributes, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "text") made.textContent = value;
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children);
    return made;
  };

  // --- state: "#?board.sort=m&board.q=npo", which leaves plain anchors to the browser
  const read = () => new URLSearchParams(location.hash.startsWith("#?") ? location.hash.slice(2) : "");
  const write = (changes) => {
    const state = read();
    for (const [key, value] of Object.entries(changes)) {
      if (value === "" || value === null || value === undefined) state.delete(key);
      else state.set(key, value);
    }
    const text = state.toString();
    const target = text ? "#?" + text : location.pathname.split("/").pop() + location.search;
    try { history.replaceState(null, "", target); } catch (error) { location.hash = text ? "?" + text : ""; }
    document.dispatchEvent(new CustomEvent("uharness-state"));
  };

  // --- data by script tag, so that a page opened from a file can load it
  const loaded = new Map();
  const load = (path) => {
    if (!loaded.has(path)) {
      loaded.set(path, new Promise((resolve, reject) => {
        const script = element("script", { src: path, onload: () => resolve(), onerror: () => reject(new Error(path)) });
        document.head.append(script);
      }));
    }
    return loaded.get(path);
  };
  const root = () => document.body.dataset.root || "";

  // --- numbers: as harness.tables.number has them, ties to even
  const halved = (exact, digits) => {
    const [whole, rest] = exact.split(".");
    const kept = rest.slice(0, digits), tail = rest.slice(digits);
    const text = digits ? whole + "." + kept : whole;
    const half = "5" + "0".repeat(tail.length - 1);
    const last = Number((digits ? kept : whole).slice(-1));
    return tail > half || (tail === half && last % 2) ? added(text) : text;
  };
  const rounded = (value, digits) => (value < 0 ? "-" : "") + halved(Math.abs(value).toFixed(digits + 60), digits);
  const scientific = (value) => {
    const [exact, power] = Math.abs(value).toExponential(63).split("e");
    let text = halved(exact, 3), exponent = Number(power);
    if (text === "10.000") { text = "1.000"; exponent += 1; }
    const size = String(Math.abs(exponent)).padStart(2, "0");
    return (value < 0 ? "-" : "") + text + "e" + (exponent < 0 ? "-" : "+") + size;
  };
  const added = (text) => {
    const digits = text.split("");
    for (let i = digits.length - 1; i >= 0; i--) {
      if (digits[i] === ".") continue;
      if (digits[i] !== "9") { digits[i] = String(Number(digits[i]) + 1); return digits.join(""); }
      digits[i] = "0";
    }
    return "1" + digits.join("");
  };
  const number = (value, like) => {
    if (value === null || value === undefined) return "–";
    const size = Math.max(Math.abs(value), Math.abs(like || 0));
    if (value === 0) return "0";
    if (size >= 1e6 || size < 1e-4) return scientific(value);
    if (size < 10) return rounded(value, 4);
    return size < 1000 ? rounded(value, 2) : rounded(value, 0);
  };

  // --- the theme
  const theme = () => {
    const button = document.getElementById("theme");
    if (!button) return;
    const dark = () => {
      const chosen = document.documentElement.dataset.theme;
      return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    };
    const show = () => {
      button.textContent = dark() ? "Light" : "Dark";
      button.setAttribute("aria-label", "Switch to the " + (dark() ? "light" : "dark") + " theme");
    };
    button.addEventListener("click", () => {
      const next = dark() ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try { localStorage.setItem("uharness-theme", next); } catch (error) { /* for this page only then */ }
      show();
      document.dispatchEvent(new CustomEvent("uharness-theme"));
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      show();
      document.dispatchEvent(new CustomEvent("uharness-theme"));
    });
    show();
    button.hidden = false;
  };

  // --- tables
  const valueOf = (row, place) => {
    const cell = row.cells[place];
    if (!cell) return null;
    const data = cell.querySelector("data");
    const text = data ? data.value : cell.textContent.trim();
    if (text === "" || text === "–") return null;
    const value = Number(text);
    return Number.isNaN(value) ? text.toLowerCase() : value;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en");
  };
  // words must all be in the row; "mem>0.5" and the like are bounds on a column
  const matcher = (query, places) => {
    const tests = query.split(/\s+/).filter(Boolean).map((word) => {
      const bound = word.match(/^(.+?)(>=|<=|>|<|=)(-?[\d.]+(?:e-?\d+)?)$/i);
      if (bound && places.has(bound[1].toLowerCase())) {
        const place = places.get(bound[1].toLowerCase());
        const limit = Number(bound[3]);
        const holds = { ">": (v) => v > limit, "<": (v) => v < limit, ">=": (v) => v >= limit, "<=": (v) => v <= limit, "=": (v) => v === limit };
        return (row) => {
          const value = valueOf(row, place);
          return typeof value === "number" && holds[bound[2]](value);
        };
      }
      const wanted = word.toLowerCase();
      return (row) => row.textContent.toLowerCase().includes(wanted);
    });
    return (row) => tests.every((test) => test(row));
  };

  const table = (target) => {
    const id = target.id;
    const heads = [...target.tHead.rows[0].cells];
    const columns = heads.map((head, place) => ({ head, place, name: head.dataset.column })).filter((c) => c.name);
    const places = new Map(columns.map((c) => [c.name.toLowerCase(), c.place]));
    const bodies = [...target.tBodies].map((body) => ({ body, rows: [...body.rows].filter((row) => !row.classList.contains("group")) }));
    const count = bodies.reduce((sum, b) => sum + b.rows.length, 0);
    const key = (name) => id + "." + name;
    const hiddenFirst = (target.dataset.hide || "").split(" ").filter(Boolean);
    const hidden = () => {
      const state = read();
      return new Set(state.has(key("hide")) ? state.get(key("hide")).split(" ").filter(Boolean) : hiddenFirst);
    };

    const status = element("span", { class: "status", role: "status" });
    const bar = element("div", { class: "bar" });
    if (count > 3) {
      const search = element("input", { type: "search", id: id + "-filter", placeholder: "Filter rows, or mem>0.5", autocomplete: "off" });
      search.value = read().get(key("q")) || "";
      search.addEventListener("input", () => write({ [key("q")]: search.value }));
      bar.append(element("label", { for: id + "-filter", class: "hidden", text: "Filter rows" }), search);
    }
    if (hiddenFirst.length) {
      const boxes = columns.filter((c) => c.name !== "entry" && c.name !== "rank").map((c) => {
        const box = element("input", { type: "checkbox" });
        box.checked = !hidden().has(c.name);
        box.addEventListener("change", () => {
          const now = hidden();
          if (box.checked) now.delete(c.name); else now.add(c.name);
          write({ [key("hide")]: [...now].join(" ") || " " });
        });
        return element("label", {}, box, " " + c.name);
      });
      const all = element("button", { type: "button", class: "quiet", text: "All columns", onclick: () => {
        const show = hidden().size > 0;
        write({ [key("hide")]: show ? " " : null });
        for (const label of boxes) {
          const box = label.firstChild;
          box.checked = !hidden().has(label.textContent.trim());
        }
      } });
      bar.append(all, element("details", { class: "menu" }, element("summary", { text: "Columns" }), element("div", {}, ...boxes)));
    }
    const chosen = new Set();
    let compareLink = null;
    if (target.dataset.compare) {
      compareLink = element("a", { class: "button", href: root() + "compare.html", text: "Compare" });
      bar.append(compareLink);
      for (const { rows } of bodies) {
        for (const row of rows) {
          const box = element("input", { type: "checkbox", "aria-label": "Compare " + row.dataset.entry });
          box.addEventListener("change", () => {
            if (box.checked) chosen.add(row.dataset.entry); else chosen.delete(row.dataset.entry);
            linked();
          });
          row.cells[0].prepend(box, " ");
        }
      }
    }
    const linked = () => {
      if (!compareLink) return;
      const state = new URLSearchParams({ board: target.dataset.compare });
      for (const entry of chosen) state.append("entry", entry);
      compareLink.href = root() + "compare.html#?" + state.toString();
      compareLink.textContent = chosen.size > 1 ? "Compare " + chosen.size + " entries" : "Compare";
    };
    linked();
    const link = element("a", { href: "#", class: "quiet link", text: "Link to this view" });
    link.addEventListener("click", () => {
      if (navigator.clipboard) navigator.clipboard.writeText(link.href).then(() => { status.textContent = "Link copied"; }, () => {});
    });
    const clear = element("button", { type: "button", class: "quiet", text: "Reset", onclick: () => {
      write({ [key("sort")]: null, [key("dir")]: null, [key("q")]: null, [key("hide")]: null });
      const search = document.getElementById(id + "-filter");
      if (search) search.value = "";
      for (const box of bar.querySelectorAll(".menu input")) box.checked = !hidden().has(box.parentNode.textContent.trim());
    } });
    bar.append(link, clear, status);
    const around = target.closest(".scroll") || target;
    around.before(bar);

    for (const column of columns) {
      const button = element("button", { type: "button", class: "sort", "aria-label": "Sort by " + column.name, onclick: () => {
        const state = read();
        const same = state.get(key("sort")) === column.name;
        const better = column.head.querySelector(".dir");
        const first = better && better.textContent.startsWith("↑") ? "desc" : "asc";
        const dir = same ? (state.get(key("dir")) === "asc" ? "desc" : "asc") : first;
        if (same && dir === first) write({ [key("sort")]: null, [key("dir")]: null });
        else write({ [key("sort")]: column.name, [key("dir")]: dir });
      } }, element("span", { "aria-hidden": "true" }));
      column.head.append(button);
    }

    let shownBefore = "";
    const show = () => {
      const state = read();
      const now = ["sort", "dir", "q", "hide"].map((name) => state.get(key(name)) || "").join("\n");
      if (now === shownBefore && shownBefore !== "") return;
      shownBefore = now;
      const column = columns.find((c) => c.name === state.get(key("sort")));
      const sign = state.get(key("dir")) === "desc" ? -1 : 1;
      const fits = matcher(state.get(key("q")) || "", places);
      let visible = 0;
      for (const { body, rows } of bodies) {
        const order = rows.slice();
        if (column) {
          const values = new Map(rows.map((row) => [row, valueOf(row, column.place)]));
          order.sort((a, b) => {
            const x = values.get(a), y = values.get(b);
            if (x === null || y === null) return (x === null) - (y === null) || rows.indexOf(a) - rows.indexOf(b);
            return sign * compare(x, y) || rows.indexOf(a) - rows.indexOf(b);
          });
        }
        for (const row of order) {
          row.hidden = !fits(row);
          visible += row.hidden ? 0 : 1;
        }
        body.append(...order);
      }
      for (const c of columns) {
        const mine = c === column;
        if (mine) c.head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
        else c.head.removeAttribute("aria-sort");
      }
      const away = hidden();
      for (const c of columns) {
        const off = away.has(c.name);
        if (c.head.classList.contains("off") === off) continue;
        c.head.classList.toggle("off", off);
        for (const { rows } of bodies) for (const row of rows) row.cells[c.place]?.classList.toggle("off", off);
      }
      status.textContent = visible < count ? visible + " of " + count + " rows" : "";
      link.href = location.href;
      link.hidden = clear.hidden = now.trim() === "";
    };
    document.addEventListener("uharness-state", show);
    window.addEventListener("hashchange", () => {
      const search = document.getElementById(id + "-filter");
      if (search) search.value = read().get(key("q")) || "";
      show();
    });
    show();
  };

  // --- a box that finds among pieces of a page
  const search = (target) => {
    const pieces = [...target.querySelectorAll(target.dataset.search)];
    const box = element("input", { type: "search", id: "find", autocomplete: "off", placeholder: target.dataset.label });
    const look = () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const piece of pieces) piece.hidden = !words.every((word) => piece.textContent.toLowerCase().includes(word));
    };
    box.value = read().get("find") || "";
    box.addEventListener("input", () => { write({ find: box.value }); look(); });
    target.before(element("div", { class: "bar" }, element("label", { for: "find", class: "hidden", text: target.dataset.label }), box));
    look();
  };

  const copying = (around) => {
    if (!navigator.clipboard) return around;
    const button = element("button", { type: "button", class: "quiet copy", text: "Copy" });
    button.addEventListener("click", () => navigator.clipboard.writeText(around.querySelector("code").textContent).then(
      () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); }, () => {}));
    around.append(button);
    return around;
  };

  const save = (name, kind, text) => {
    const url = URL.createObjectURL(new Blob([text], { type: kind }));
    element("a", { href: url, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  };

  document.addEventListener("DOMContentLoaded", () => {
    theme();
    for (const target of document.querySelectorAll("table[data-table]")) table(target);
    for (const target of document.querySelectorAll("[data-search]")) search(target);
    for (const target of document.querySelectorAll(".copyable")) copying(target);
    // footnotes and the like that an anchor points into are opened
    const open = () => {
      const place = location.hash.length > 1 && !location.hash.startsWith("#?") && document.getElementById(decodeURIComponent(location.hash.slice(1)));
      for (let at = place || null; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    };
    window.addEventListener("hashchange", open);
    open();
  });

  return { element, read, write, load, root, number, save, copying };
})();
