// Brings the page up to date every few seconds: keeps what is open, chosen or written, and rests while nobody looks.
"use strict";
(() => {
  const main = document.querySelector("main[data-refresh]");
  const live = document.getElementById("live");
  if (!main || !live) return;
  const every = Number(main.dataset.refresh) * 1000;
  let paused = false, timer = 0;

  const say = (text) => { status.textContent = text; };
  const button = document.createElement("button");
  const status = document.createElement("span");
  button.type = "button";
  button.textContent = "Pause";
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Continue" : "Pause";
    say(paused ? "paused " : "live ");
    plan();
  });
  live.replaceChildren(status, button);

  // Somebody who writes or has chosen something is not disturbed.
  const busy = () => {
    if (getSelection().toString()) return true;
    const at = document.activeElement;
    if (at && main.contains(at) && at.matches("input, textarea, select")) return true;
    return [...main.querySelectorAll("input")].some((one) => one.checked !== one.defaultChecked || one.value !== one.defaultValue);
  };

  async function refresh() {
    if (busy()) { say("waits for you "); return plan(); }
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "error" });
      if (!answer.ok && answer.status !== 404) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (!fresh || busy()) return plan();
      const open = new Set([...main.querySelectorAll("details[open][id]")].map((one) => one.id));
      const focused = document.activeElement && main.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
      const scrolled = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
      main.replaceChildren(...fresh.childNodes);
      for (const one of main.querySelectorAll("details[id]")) one.open = open.has(one.id);
      main.querySelectorAll(".scroll").forEach((one, place) => { one.scrollLeft = scrolled[place] || 0; });
      if (focused) main.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
      say("live ");
      if (!fresh.dataset.refresh) { say("over "); button.remove(); return; }
    } catch {
      say("not reached, trying again ");
    }
    plan();
  }

  function plan() {
    clearTimeout(timer);
    if (!paused && !document.hidden) timer = setTimeout(refresh, every);
  }

  document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else if (!paused) refresh(); });
  say("live ");
  plan();
})();
