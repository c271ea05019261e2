/* Draws what pymdownx.arithmatex marked: \(…\) in a line, \[…\] on a line of its own. */
for (const element of document.querySelectorAll(".arithmatex")) {
  const source = element.textContent.trim();
  const displayMode = source.startsWith("\\[");
  katex.render(source.slice(2, -2), element, { displayMode, throwOnError: true });
  const mark = displayMode ? null : /^[,.;:!?)]+/.exec(element.nextSibling?.data ?? "");
  if (mark) { // a comma stays on the line of its formula
    element.nextSibling.data = element.nextSibling.data.slice(mark[0].length);
    element.append(mark[0]);
    element.style.whiteSpace = "nowrap";
  }
}
