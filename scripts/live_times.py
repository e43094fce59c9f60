"""Print how long a live page takes, in milliseconds: python scripts/live_times.py PAGE.html

The page is opened in a Chromium that is installed. Each number is the median of some repetitions.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

CASES = {
    "a pass over 12 + 12 tokens": (
        "[3,4,5,6,7,8,9,10,11,12,3,2], tgt = [1,3,4,5,6,7,8,9,10,11,12,3]",
        "now.model.forward(src, tgt)",
    ),
    "writing alone": ("now.src", "now.model.greedy(now.model.encode(src))"),
    "a switch until all is shown": (
        "0",
        "change({ off: n % 2 ? ['causal'] : [] }); document.body.offsetHeight",
    ),
    "a pointer that moves to another row": ("0", "preview(n % 3); document.body.offsetHeight"),
    "the fate of a symbol": ("0", "showFateOfSource(); document.body.offsetHeight"),
}
"""What is measured: what is set up, and what is done."""

MEDIAN = """() => {
  const src = %s, times = [];
  for (let n = 0; n < 40; n++) {
    const start = performance.now();
    %s;
    times.push(performance.now() - start);
  }
  counting = null;
  return times.sort((a, b) => a - b)[20];
}"""


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        page.wait_for_selector("body[data-ready=yes]")
        timing = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
        print(f"{page.evaluate(timing):8.1f}  opening, until all is drawn")
        page.evaluate("() => { counting = null; }")  # nothing is counted meanwhile
        for name, (given, done) in CASES.items():
            print(f"{page.evaluate(MEDIAN % (given, done)):8.1f}  {name}")
        browser.close()


if __name__ == "__main__":
    main()
