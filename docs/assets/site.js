// What scrolls sideways can be reached and scrolled with the keyboard, and the search has a name.
const reachable = () => {
  for (const part of document.querySelectorAll("pre > code, .md-typeset__scrollwrap, p:has(> img[src$='.svg'])")) part.tabIndex = 0;
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search");
};
new MutationObserver(reachable).observe(document.body, { childList: true, subtree: true });
reachable();
