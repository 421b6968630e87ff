/** The chosen theme, before the first paint: a module would come too late and flash. */
(() => {
  try {
    const chosen = localStorage.getItem("runlane.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // Storage is denied: the page looks as the system does.
  }
})();
