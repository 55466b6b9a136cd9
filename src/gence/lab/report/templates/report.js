"use strict";
document.querySelectorAll("[data-switch]").forEach(function (box) {
  function apply() {
    document.querySelectorAll('[data-loss="' + box.dataset.switch + '"]').forEach(function (part) {
      part.classList.toggle("off", !box.checked);
    });
  }
  box.addEventListener("change", apply);
  apply(); // a browser may remember boxes over a reload
});
function compare(a, b) {
  if (a === "" || b === "") return a === b ? 0 : a === "" ? Infinity : -Infinity; // what is missing comes last
  var x = Number(a), y = Number(b);
  return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
}
document.querySelectorAll("table.sortable").forEach(function (table) {
  var heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      var body = table.tBodies[0];
      Array.from(body.rows).sort(function (p, q) {
        var order = compare(p.cells[column].dataset.value, q.cells[column].dataset.value);
        return Math.abs(order) === Infinity || !down ? order : -order;
      }).forEach(function (row) { body.appendChild(row); });
    });
  });
});
document.querySelectorAll("[data-search]").forEach(function (field) {
  var body = document.getElementById(field.dataset.search).tBodies[0];
  field.addEventListener("input", function () {
    var wanted = field.value.trim().toLowerCase();
    Array.from(body.rows).forEach(function (row) {
      row.classList.toggle("off", row.cells[0].textContent.toLowerCase().indexOf(wanted) < 0);
    });
  });
});
function hint() {
  document.querySelectorAll(".hint").forEach(function (text) {
    var box = text.nextElementSibling;
    text.hidden = box.scrollWidth <= box.clientWidth;
  });
}
hint();
if (window.innerWidth < 640) {
  document.querySelectorAll(".toc details").forEach(function (part) { part.open = false; });
}
window.addEventListener("resize", hint);
