"""Draw moving pictures of the lab for readers of the repository: `make site`, then `python docs/site/lab/frames.py`.

Each picture shows a built page at several addresses, since the address of a page stores its state.
"""

import io
import shutil
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

HERE = Path(__file__).resolve().parent
SITE = HERE.parents[2] / "build/site/lab"
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=960,1400")
MILLISECONDS = 700

PRICES = ["0,0", "1,0", "2,0", "3,0", "3,1", "3,2", "3,2"]
GAINS = ["-0.036", "-0.03", "-0.02", "-0.01", "0", "-0.015"]
FLOPS = ["1e19", "1e20", "1e21", "1e22", "1e23", "1e24"]
PICTURES = {
    "routers": [f"lead=base&base.prices={prices},0" for prices in PRICES],
    "law": [f"table=S-Base&gain={gain}" for gain in GAINS],
    "budget": [f"flops={flops}" for flops in FLOPS],
}
"""{page: the addresses of the frames}."""


def main() -> None:
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    for page, queries in PICTURES.items():
        frames = []
        for query in queries:
            driver.get(f"file://{SITE / page}.html?{query}")
            content = driver.find_element(By.CLASS_NAME, "lab-top").screenshot_as_png
            frames.append(Image.open(io.BytesIO(content)).convert("RGB").quantize(32))
        frames[0].save(HERE / f"{page}.png", save_all=True, append_images=frames[1:], duration=MILLISECONDS, loop=0)
    driver.quit()


if __name__ == "__main__":
    main()
