"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  /* Numbers: the same rules as report/text.py. */
  const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
  const signed = (text) => (text[0] !== "-" ? text : /[1-9]/.test(text) ? "−" + text.slice(1) : text.slice(1));
  const count = (value) => {
    const digits = String(Math.abs(value));
    const spaced = digits.length < 5 ? digits : digits.replace(/\B(?=(\d{3})+$)/g, "\u202f");
    return value < 0 ? "−" + spaced : spaced;
  };
  const number = (value) => {
    if (Number.isNaN(value)) return "NaN";
    if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
    if (Number.isInteger(value) && Math.abs(value) < 1e15) return count(value);
    const exponent = Number(value.toExponential().split("e")[1]);
    if (exponent >= -4 && exponent < 6) return signed(value.toFixed(Math.max(0, 2 - exponent)));
    const [mantissa, power] = value.toExponential(2).split("e");
    return signed(mantissa) + "×10" + [...String(Number(power))].map((c) => SUPER[c]).join("");
  };
  const shown = (column, value) => {
    if (value === null) return "–";
    if (!column.number) return value;
    const { digits } = column;
    const size = Math.abs(value);
    if (digits === null || !Number.isFinite(value) || (size > 0 && size < 0.5 * 10 ** -digits) || size >= 1e9) return number(value);
    return digits === 0 ? count(value) : signed(value.toFixed(digits));
  };

  /* Tables: sort, filter, show all, download. */
  const load = (holder) => {
    const data = JSON.parse(holder.querySelector("script").textContent);
    for (const column of data.columns) {
      column.values = column.number
        ? column.values.map((v) => (typeof v === "string" ? Number(v) : v))
        : column.places.map((place) => column.words[place]);
    }
    return data;
  };
  const order = (column, rows, sign) => {
    const empty = (v) => v === null || Number.isNaN(v);
    const compare = (a, b) => (typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0);
    return rows.sort((i, j) => {
      const a = column.values[i], b = column.values[j];
      if (empty(a) || empty(b)) return empty(a) - empty(b); // what is missing comes last either way
      return sign * compare(a, b) || i - j;
    });
  };
  const matcher = (columns, words) => {
    const named = (name) => columns.find((column) => column.name === name);
    const tests = words.map((word) => {
      const place = /^l(\d+)(?:\.h(\d+))?$/.exec(word);
      if (place && named("layer")) {
        return (row) => named("layer").values[row] === Number(place[1]) &&
          (place[2] === undefined || !named("head") || named("head").values[row] === Number(place[2]));
      }
      return (row) => columns.some((column) => shown(column, column.values[row]).toLowerCase().includes(word));
    });
    return (row) => tests.every((test) => test(row));
  };
  const csv = (data) => {
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const line = (cells) => cells.map((v) => quoted(v === null ? "" : String(v))).join(",");
    const rows = data.columns[0].values.map((_, row) => line(data.columns.map((column) => column.values[row])));
    return [line(data.columns.map((column) => column.name)), ...rows].join("\r\n") + "\r\n";
  };

  const animate = (holder) => {
    const data = load(holder);
    const visible = data.columns.filter((column) => !column.hidden);
    const every = visible.length ? visible[0].values.map((_, row) => row) : [];
    const headings = all("th", holder), more = holder.querySelector(".more"), rest = holder.querySelector(".rest");
    const search = holder.querySelector("input"), body = holder.querySelector("tbody");
    const state = { by: null, sign: 1, open: false };
    const draw = () => {
      const words = search ? search.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      let rows = every.filter(matcher(visible, words));
      if (state.by !== null) rows = order(visible[state.by], rows, state.sign);
      const part = state.open ? rows : rows.slice(0, data.shown);
      body.replaceChildren(...part.map((row) => {
        const tr = document.createElement("tr");
        for (const column of visible) {
          const td = tr.insertCell();
          td.textContent = shown(column, column.values[row]);
          if (column.number) td.className = "n";
          else if (td.textContent.length > 44) td.className = "long";
        }
        return tr;
      }));
      if (rest) rest.textContent = `${part.length === rows.length ? "All" : `First ${part.length} of`} ${count(rows.length)} rows${words.length ? " that match" : ""}`;
      if (more) {
        more.textContent = state.open ? "Show fewer" : `Show all ${count(rows.length)}`;
        more.setAttribute("aria-expanded", String(state.open));
      }
      headings.forEach((heading, i) => {
        if (i === state.by) heading.setAttribute("aria-sort", state.sign > 0 ? "ascending" : "descending");
        else heading.removeAttribute("aria-sort");
      });
    };
    headings.forEach((heading, i) => heading.querySelector("button").addEventListener("click", () => {
      state.sign = state.by === i ? -state.sign : 1;
      state.by = i;
      draw();
    }));
    more?.addEventListener("click", () => { state.open = !state.open; draw(); });
    search?.addEventListener("input", draw);
    holder.querySelector(".csv").addEventListener("click", () => {
      download(new Blob([csv(data)], { type: "text/csv" }), `${holder.dataset.name}.csv`);
    });
  };

  const download = (blob, name) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  /* The ledger: show the claims that are asked for. */
  const filter = (bar) => {
    const claims = all(".claim"), rest = bar.querySelector(".rest");
    const value = (name) => bar.querySelector(`[name=${name}]`);
    const draw = () => {
      const words = value("words").value.toLowerCase().split(/\s+/).filter(Boolean);
      let left = 0;
      for (const claim of claims) {
        const { document: work, verdict } = claim.dataset;
        const text = words.length ? claim.textContent.toLowerCase() : "";
        claim.hidden = (value("document").value && work !== value("document").value) ||
          (value("verdict").value && verdict !== value("verdict").value) ||
          (!value("slips").checked && "slip" in claim.dataset) || !words.every((word) => text.includes(word));
        left += !claim.hidden;
      }
      rest.textContent = `${left} of ${claims.length} shown`;
    };
    bar.addEventListener("input", draw);
    draw();
  };

  /* Paper shows what a click would. */
  addEventListener("beforeprint", () => all("details:not([open])").forEach((one) => { one.open = true; one.dataset.print = ""; }));
  addEventListener("afterprint", () => all("details[data-print]").forEach((one) => { one.open = false; delete one.dataset.print; }));

  all(".table[data-name]").forEach(animate);
  all(".filters").forEach(filter);
})();
