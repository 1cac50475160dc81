#!/usr/bin/env python3
"""Opens a run's page in headless Chromium and checks that the browser lays out every plot with all its series.

    scripts/check-page.py RUN/report.html [--screenshot FILE.png]

A copy of the page gets a script that measures the figures; the page itself has none. Needs `chromium` (Debian's package)
and nothing from the network. Ends with 1 and says what is not drawn.
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

# Series are coloured, axes and texts are grey; a shape counts when it has an extent on the page.
MEASURE = """
<script>
addEventListener('load', () => {
  const figures = [...document.querySelectorAll('figure')].map(figure => {
    const svg = figure.querySelector('svg').getBoundingClientRect();
    const shapes = [...figure.querySelectorAll('svg polyline, svg polygon, svg rect')].filter(shape => {
      const box = shape.getBoundingClientRect();
      return box.width + box.height > 1;
    });
    const colours = new Set(shapes.flatMap(s => [s.getAttribute('stroke'), s.getAttribute('fill')]).filter(Boolean));
    const legend = [...figure.querySelectorAll('.legend i')].map(i => getComputedStyle(i).backgroundColor);
    return { id: figure.id, series: +figure.dataset.series, points: +figure.dataset.points, width: svg.width,
             height: svg.height, colours: [...colours], legend, texts: figure.querySelectorAll('svg text').length };
  });
  const pre = document.createElement('pre');
  pre.id = 'measured';
  pre.textContent = JSON.stringify({ figures, overflow: document.documentElement.scrollWidth - innerWidth });
  document.body.append(pre);
});
</script>
"""


def browse(browser: str, page: Path, *options: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        command += ["--disable-dev-shm-usage", "--window-size=1360,900", *options, page.resolve().as_uri()]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def hexadecimal(rgb: str) -> str:
    return "#" + "".join(f"{int(part):02X}" for part in re.findall(r"\d+", rgb)[:3])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("--screenshot", type=Path)
    arguments = parser.parse_args()
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("check-page: there is no chromium")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "page.html"
        copy.write_text(arguments.page.read_text().replace("</body>", MEASURE + "</body>"))
        dom = browse(browser, copy, "--dump-dom")
    measured = json.loads(html.unescape(re.search(r'<pre id="measured">(.*?)</pre>', dom, re.S).group(1)))
    assert measured["figures"], "the page has no plot"
    assert measured["overflow"] <= 0, f"the page is {measured['overflow']} pixels wider than the window"
    for figure in measured["figures"]:
        name = figure["id"]
        assert figure["width"] > 300 and figure["height"] > 60, f"{name}: {figure['width']} by {figure['height']} pixels"
        assert figure["points"] > 1 and figure["texts"] >= 4, f"{name}: {figure['points']} points, {figure['texts']} texts"
        drawn = {colour.upper() for colour in figure["colours"]}
        missing = [c for c in map(hexadecimal, figure["legend"]) if c not in drawn]
        assert not missing, f"{name}: no shape has the legend's {missing}"
    if arguments.screenshot:
        browse(browser, arguments.page, f"--screenshot={arguments.screenshot.resolve()}", "--window-size=1360,2400")
    print(f"{arguments.page}: {len(measured['figures'])} plots are drawn")


if __name__ == "__main__":
    try:
        main()
    except AssertionError as error:
        sys.exit(f"check-page: {error}")
