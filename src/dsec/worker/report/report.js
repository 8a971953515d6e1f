"use strict";
const root = document.documentElement;
const dark = matchMedia("(prefers-color-scheme: dark)");
root.dataset.theme = dark.matches ? "dark" : "light";
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
});
const tasks = [...document.querySelectorAll(".task")];
const search = document.getElementById("search") || document.createElement("input");
const buttons = [...document.querySelectorAll("[data-outcome]")];
function filter() {
  const words = search.value.toLowerCase();
  const wanted = buttons.filter((button) => button.getAttribute("aria-pressed") === "true");
  for (const task of tasks) {
    const outcomes = task.dataset.outcomes.split(" ");
    const shown = !wanted.length || wanted.some((button) => outcomes.includes(button.dataset.outcome));
    task.classList.toggle("hidden", !shown || !task.dataset.name.includes(words));
  }
}
search.addEventListener("input", filter);
for (const button of buttons) {
  button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    filter();
  });
}
for (const link of document.querySelectorAll("svg [data-task]")) {
  link.addEventListener("click", () => {
    const task = tasks[Number(link.dataset.task)];
    if (task) { task.classList.remove("hidden"); task.open = true; task.scrollIntoView({ block: "center" }); }
  });
}
