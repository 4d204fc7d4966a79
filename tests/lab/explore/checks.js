// What a page must keep to be read by everybody; returns complaints. Run in the page by test_browser.py.
(() => {
  const complaints = [];
  const seen = (element) => element.checkVisibility({ checkVisibilityCSS: true, checkOpacity: true }) && !element.closest(".sr, .skip");

  const colour = (text) => {
    const numbers = text.match(/-?[\d.]+(?:e-?\d+)?/g).map(Number);
    const unit = text.startsWith("color(") ? 1 : 255;
    return { rgb: numbers.slice(0, 3).map((value) => value / unit), alpha: numbers[3] ?? 1 };
  };
  const over = (front, back) => front.rgb.map((value, index) => value * front.alpha + back[index] * (1 - front.alpha));
  const backdrop = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((back, layer) => over(layer, back), [1, 1, 1]);
  };
  const luminance = (rgb) => rgb.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  // WCAG 2.2, 1.4.3: text has a contrast of 4.5, large text of 3. What is disabled is exempt.
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode, element = text.parentElement;
    if (!text.data.trim() || !seen(element) || element.closest("script, style, noscript, option, :disabled")) continue;
    const style = getComputedStyle(element), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const back = backdrop(element), found = contrast(over(colour(style.color), back), back);
    if (found < (large ? 3 : 4.5)) complaints.push(`contrast ${found.toFixed(2)} of "${text.data.trim().slice(0, 40)}" in .${element.className}`);
  }

  // Every control has a name, every name is used once, every reference leads somewhere.
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) complaints.push(`two elements are called ${id}`);
  for (const name of ["aria-labelledby", "for", "aria-describedby"])
    for (const element of document.querySelectorAll(`[${name}]`)) if (!document.getElementById(element.getAttribute(name))) complaints.push(`${name} leads nowhere: ${element.outerHTML.slice(0, 80)}`);
  for (const control of document.querySelectorAll("select, input, button, a[href], [role=img], section")) {
    const named = control.labels?.length || control.getAttribute("aria-label") || control.getAttribute("aria-labelledby") || control.textContent.trim();
    if (!named) complaints.push(`no name: ${control.outerHTML.slice(0, 80)}`);
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption) complaints.push("a table without a caption");
    for (const head of table.querySelectorAll("th")) if (!head.scope) complaints.push(`a heading cell without a scope: ${head.textContent}`);
  }

  // Headings go down one level at a time.
  let level = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4")].filter(seen)) {
    const next = Number(heading.tagName[1]);
    if (next > level + 1) complaints.push(`a heading of level ${next} after one of level ${level}: ${heading.textContent}`);
    level = next;
  }

  // WCAG 2.2, 2.5.8: what is pressed is 24 pixels high; links in sentences are exempt.
  for (const control of [...document.querySelectorAll("select, button, .switch label, nav a")].filter(seen))
    if (control.getBoundingClientRect().height < 24) complaints.push(`only ${control.getBoundingClientRect().height} pixels high: ${control.outerHTML.slice(0, 80)}`);

  if (!document.querySelector("[aria-live=polite]")) complaints.push("changes are not announced");
  if (!document.documentElement.lang) complaints.push("the language is not named");
  if (document.documentElement.scrollWidth > innerWidth) complaints.push(`${document.documentElement.scrollWidth} pixels wide in a window of ${innerWidth}`);
  return complaints;
})()
