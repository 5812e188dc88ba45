"use strict";
// Light and dark: what the system prefers, until somebody chooses. The page itself defines redraw().

const themeButton = document.getElementById("theme");
const prefersDark = matchMedia("(prefers-color-scheme: dark)");

function setTheme(theme) {
  document.documentElement.style.colorScheme = theme ?? "";
  const dark = theme ? theme === "dark" : prefersDark.matches;
  themeButton.textContent = dark ? "☀ Light" : "☾ Dark";
  themeButton.ariaLabel = dark ? "Light colours" : "Dark colours";
  themeButton.value = dark ? "light" : "dark"; // what a click makes it
}

setTheme();
themeButton.addEventListener("click", () => { setTheme(themeButton.value); redraw(); });
prefersDark.addEventListener("change", () => { setTheme(); redraw(); });
