// Keeps a page fresh. Without this script everything is there, as of the moment it was loaded.
"use strict";
(() => {
  const main = document.querySelector("main[data-refresh-seconds]");
  if (!main) return;
  const every = Number(main.dataset.refreshSeconds) * 1000;
  const clock = document.querySelector("[data-clock]");
  const button = document.querySelector("[data-pause]");
  const status = document.querySelector("[role=status]");
  const patience = 10000;
  let paused = false, fetching = false, updated = Date.now(), due = updated + every, failed = "";

  const announced = () => [...main.querySelectorAll("[data-announce]")].map((e) => e.textContent.trim()).join("; ");

  // The element of the new page that stands where the focused one stood: by its id, else by its kind and address.
  const place = (element) => {
    if (element.id) return (root) => root.ownerDocument.getElementById(element.id);
    const key = (e) => [e.tagName, e.getAttribute("href"), e.getAttribute("name"), e.getAttribute("aria-label")].join(" ");
    const kin = (root) => [...root.querySelectorAll(element.tagName)].filter((e) => key(e) === key(element));
    const live = element.closest("[data-live]");
    const number = kin(live).indexOf(element);
    const title = element.closest("th[scope=col]");
    const column = title ? title.cellIndex : -1; // a column's address changes with the order
    return (root) => kin(root)[number] || (column < 0 ? null : root.querySelectorAll("th[scope=col]")[column].querySelector("a"));
  };

  const swap = (old, fresh) => {
    const focused = old.contains(document.activeElement) ? document.activeElement : null;
    const find = focused && focused !== old ? place(focused) : null;
    for (const details of old.querySelectorAll("details[id][open]")) {
      const same = [...fresh.querySelectorAll("details")].find((e) => e.id === details.id);
      if (same) same.open = true;
    }
    const scrolled = [...old.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
    old.replaceChildren(...document.adoptNode(fresh).childNodes);
    old.querySelectorAll(".scroll").forEach((e, n) => { e.scrollLeft = scrolled[n] || 0; });
    const again = find && find(old);
    if (again) again.focus({ preventScroll: true });
  };

  const selecting = () => {
    const selection = document.getSelection();
    return selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  };

  const take = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    const fresh = page.querySelector("main");
    if (!fresh) throw new Error("no page");
    const said = announced();
    const ids = (root) => [...root.querySelectorAll("[data-live]")].map((e) => e.id).join(" ");
    if (ids(main) === ids(fresh)) {
      for (const old of [...main.querySelectorAll("[data-live]")]) swap(old, page.getElementById(old.id));
    } else {
      main.replaceChildren(...document.adoptNode(fresh).childNodes);
    }
    document.title = page.title;
    if (announced() !== said) status.textContent = announced();
  };

  const refresh = async () => {
    if (fetching || selecting()) return;
    fetching = true;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(patience), redirect: "error" });
      if (!answer.ok && answer.status !== 404) throw new Error(`status ${answer.status}`);
      take(await answer.text());
      updated = Date.now();
      failed = "";
    } catch (error) {
      failed = "no answer from this program";
    }
    due = Date.now() + every;
    fetching = false;
    tell();
  };

  const words = (seconds) => (seconds < 120 ? `${seconds} s` : `${Math.floor(seconds / 60)} min`);
  const tell = () => {
    const text = `Updated ${words(Math.round((Date.now() - updated) / 1000))} ago`;
    clock.textContent = text + (paused ? ", paused" : failed ? `: ${failed}` : "");
    clock.classList.toggle("late", Boolean(failed));
  };

  const tick = () => {
    if (document.hidden) return;
    tell();
    if (!paused && Date.now() >= due) refresh();
  };

  button.hidden = false;
  button.addEventListener("click", () => {
    paused = !paused;
    button.textContent = paused ? "Go on" : "Pause";
    if (!paused) due = 0;
    tick();
  });
  document.addEventListener("visibilitychange", tick);
  setInterval(tick, 1000);
  tell();
})();
