// Runs before the page is drawn: a theme that was chosen earlier, else the system's.
(function () {
  "use strict";
  try {
    var chosen = localStorage.getItem("uharness-theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch (error) { /* storage may be forbidden: the system's theme it is */ }
  document.documentElement.classList.add("js");
})();
