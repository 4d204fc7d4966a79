// Keeps a page of the dashboard up to date: the server announces changed files, and the changed parts are replaced.
// The reader's state is kept: zooms, open details, selected text, the focused field.
(() => {
  "use strict";
  const { live, seen: first } = document.body.dataset;
  if (!live) return;
  const sign = document.getElementById("live"), parser = new DOMParser();
  const INSIDE = "main, section, .charts, details, form, .scroll, .verdict";
  const drawn = typeof Plots !== "undefined";
  let seen = first, told = first, busy = false, failures = 0, news = null;

  // The element that the reader is using: it is not replaced.
  const inUse = (element) => {
    const marked = getSelection();
    return element.contains(document.activeElement) || (marked && !marked.isCollapsed && element.contains(marked.anchorNode));
  };

  const put = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    const plot = drawn && old.dataset.chart && old.dataset.chart === fresh.dataset.chart && Plots.plots.get(old.dataset.chart);
    if (plot) { plot.update(PlotData.page.charts[old.dataset.chart], fresh); return; }
    if (old.matches("table[data-finds], [data-finder]") && fresh.matches("table[data-finds], [data-finder]")) return;  // table.js updates them
    if (old.tagName === "DETAILS" && fresh.tagName === "DETAILS") fresh.open = old.open;
    const [mine, theirs] = [[...old.children], [...fresh.children]];
    if (old.matches(INSIDE) && fresh.matches(INSIDE) && mine.length === theirs.length) mine.forEach((child, place) => put(child, theirs[place]));
    else if (!inUse(old)) old.replaceWith(fresh);
  };

  const putAll = (page) => {
    const [main, fresh] = [document, page].map((one) => one.querySelector("main"));
    document.title = page.title;
    if (drawn) Plots.load(JSON.parse(page.getElementById("chart-data").textContent));
    const header = main.querySelector("header.title"), news = fresh.querySelector("header.title");
    if (header && news) put(header, news);
    let before = null;
    for (const section of [...fresh.querySelectorAll(":scope > section")]) {
      const old = main.querySelector(`:scope > section[id="${section.id}"]`);
      if (old) { put(old, section); before = main.querySelector(`:scope > section[id="${section.id}"]`); continue; }
      if (before) before.after(section); else main.querySelector("footer").before(section);
      before = section;
    }
    for (const [old, now] of [["nav", "nav"], ["footer", "footer"]]) put(document.querySelector(old), page.querySelector(now));
    Tables.refresh(page);
    if (drawn) Plots.mount();
  };

  const update = async () => {
    busy = true;
    const begun = performance.now();
    try {
      const answer = await fetch(location.href, { redirect: "error" });
      if (answer.ok) {
        const page = parser.parseFromString(await answer.text(), "text/html");
        seen = page.body.dataset.seen;
        putAll(page);
        failures = 0;
      } else failures += 1;
    } catch { failures += 1; }
    // At most a tenth of the time goes into slow pages; a failed request is tried again with growing delays.
    const pause = Math.max(500, 9 * (performance.now() - begun)) * 2 ** Math.min(failures, 6);
    setTimeout(() => { busy = false; if (told !== seen) update(); }, pause);
  };

  // Ages ("2 min ago") keep counting from the time when the page was made.
  const ago = (age) => {
    for (const [size, unit] of [[86400, "days"], [3600, "h"], [60, "min"]]) {
      if (age >= (unit === "days" ? 2 * size : size)) return `${Math.round(age / size)} ${unit} ago`;
    }
    return `${Math.round(age)} s ago`;
  };
  setInterval(() => {
    for (const cell of document.querySelectorAll("[data-age]")) {
      cell.made ??= performance.now();
      cell.textContent = ago(Number(cell.dataset.age) + (performance.now() - cell.made) / 1000);
    }
  }, 2000);

  const listen = () => {
    news?.close();
    news = new EventSource(`${live}${live.includes("?") ? "&" : "?"}seen=${encodeURIComponent(seen)}`);
    news.onopen = () => { sign.textContent = "live"; };
    news.onerror = () => { sign.textContent = news.readyState === EventSource.CLOSED ? "not live" : "connection lost"; };
    news.onmessage = (event) => { told = event.data; if (!busy && told !== seen) update(); };
  };
  // A browser allows few connections to one server: hidden pages close theirs.
  document.addEventListener("visibilitychange", () => { if (document.hidden) news?.close(); else listen(); });
  listen();
})();
