"""Print what the experiments of the learning page find, for some seeds:

    python scripts/live_experiments.py [SEEDS, 5 by default]

Each act of each experiment is clicked in a Chromium that is installed, and the answers are those
that the page gives. It takes some five minutes on a quiet machine.
"""

import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from toytrans.live_pages.page import learning_page

PATIENCE = 600_000
"""Milliseconds that a model may take to learn."""


def answers(page: Any) -> dict[str, str]:
    """Do every act of every experiment, and give the page's answers by the names of the guesses."""
    for number in range(page.evaluate("EXPERIMENTS.length")):
        page.evaluate(f"reminded.add({number})")  # nobody is here to guess
        acts = page.locator("#try-text .do")
        asked = page.evaluate("EXPERIMENTS[state.experiment].asks.map((ask) => ask.after)")
        for act in sorted(set(asked)):
            acts.nth(act).click()
            page.wait_for_selector("body[data-learning=no][data-counted]", timeout=PATIENCE)
        if page.locator("#try-next").is_enabled():
            page.click("#try-next")
    found: dict[str, str] = page.evaluate("answers")
    return found


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    found = defaultdict[str, list[str]](list)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learn.html"
        path.write_text(learning_page())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
            page = browser.new_context(reduced_motion="reduce").new_page()
            page.goto(f"{path.as_uri()}#seed={seed}")
            page.wait_for_selector("body[data-ready=yes]")
            for name, answer in answers(page).items():
                found[name].append(answer)
            page.context.close()
            print(f"seed {seed} done", file=sys.stderr, flush=True)
        browser.close()
    for name, each in found.items():
        print(f"{name:28} {', '.join(each)}")


if __name__ == "__main__":
    main()
