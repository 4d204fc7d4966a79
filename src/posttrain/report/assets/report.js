// Shows the facts about a token, and switches between light and dark. The page is complete without this script.
(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.id = "token";
  document.addEventListener("pointerover", (event) => {
    const token = event.target.closest?.("[data-t]");
    if (!token) { tip.remove(); return; }
    const [id, advantage, logprob] = token.dataset.t.split("|");
    const chance = logprob ? ` · log-probability ${logprob} (${(100 * Math.exp(Number(logprob))).toPrecision(3)}%)` : "";
    tip.textContent = `advantage ${advantage}${chance} · token ${id}`;
    document.body.append(tip);
    const box = token.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - tip.offsetWidth - 12))}px`;
    tip.style.top = `${Math.max(8, box.top - tip.offsetHeight - 6)}px`;
  });
  addEventListener("scroll", () => tip.remove(), { passive: true });

  const button = document.getElementById("theme");
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
  button.hidden = false;
  button.addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); document.dispatchEvent(new Event("posttrain-theme")); });
  name();
})();
