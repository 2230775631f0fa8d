#!/usr/bin/env python3
"""Records docs/images/kill.svg: a training on three workers, one of which is killed. From the root: python3 docs/images/kill.py

The job is real. It runs on a pseudo-terminal; its output and colours are kept with the time of each line, and drawn at
half speed as an SVG whose animation is CSS alone, for light and dark pages. Only the lists of each worker's last calls
are left out. Needs Linux. PROFILE=debug takes less time to build.
"""
import fcntl
import os
import pathlib
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from xml.sax.saxutils import escape

COLUMNS, ROWS = 104, 25
WIDTH, HEIGHT, SIZE, MARGIN = 8, 19, 13, 16  # of a character, of a row, of the font, around the text; in pixels
KILL_AT = 6  # lines of progress before the worker is killed
SLOWER = 2  # times as slow as the job was
PAUSE = 8  # seconds that the last screen stays
LONGEST_WAIT = 120  # seconds without output
COMMAND = (
    "distribute launch --workers 3 --max-restarts 5 -- \\\n    "
    "target/release/examples/digits --strategy multi-worker --replicas 1 --epochs 20"
)
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Names of colours by their number in a terminal: dark page, light page.
COLOURS = {
    31: ("#ff7b72", "#cf222e"), 32: ("#3fb950", "#1a7f37"), 33: ("#d29922", "#9a6700"), 34: ("#58a6ff", "#0969da"),
    35: ("#bc8cff", "#8250df"), 36: ("#39c5cf", "#1b7c83"), 90: ("#8b949e", "#59636e"),
}


def build():
    """Builds the programs, and returns their folder."""
    profile = os.environ.get("PROFILE", "release")
    options = ["--release"] if profile == "release" else []
    for program in ("--package=distribute-cli", "--bin=distribute"), ("--package=distribute-examples", "--example=digits"):
        subprocess.run(["cargo", "build", *options, "--locked", "--quiet", *program], check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")).resolve() / profile


def worker(launcher, index):
    """Returns the process of a worker: a child of the launcher, whose TF_CONFIG has its number."""
    children = pathlib.Path(f"/proc/{launcher}/task").glob("*/children")
    for child in " ".join(path.read_text() for path in children).split():
        environment = pathlib.Path(f"/proc/{child}/environ").read_bytes()
        # The guard of a task, a shell, has the same environment.
        program = os.path.basename(os.readlink(f"/proc/{child}/exe"))
        if b'"index":%d}' % index in environment and program == "digits":
            return int(child)
    raise SystemExit(f"kill.py: the launcher has no worker {index}")


def record(folder):
    """Runs the job, kills a worker, and returns pairs of seconds and text."""
    words = COMMAND.replace("\\\n", "").replace("target/release", str(folder)).split()
    words[0] = str(folder / "distribute")
    launcher, terminal = pty.fork()
    if launcher == 0:
        os.environ.pop("NO_COLOR", None)
        os.environ["TERM"] = "xterm-256color"
        os.execv(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    start, events, seen, killed = time.monotonic(), [(0, f"\x1b[32m$\x1b[0m {COMMAND}\n")], "", False
    while select.select([terminal], [], [], LONGEST_WAIT)[0]:
        try:
            text = os.read(terminal, 1 << 16)
        except OSError:  # the end of the job, on Linux
            break
        if not text:
            break
        text = text.decode(errors="replace")
        events.append((time.monotonic() - start, text))
        seen += text
        if not killed and len(re.findall(r"epoch +\d+", seen)) >= KILL_AT:
            victim, killed = worker(launcher, 1), True
            os.kill(victim, signal.SIGKILL)
            line = f"\x1b[31m$ kill -9 {victim}\x1b[90m   # worker 1, from another terminal\x1b[0m\r\n"
            events.append((time.monotonic() - start, line))
    else:
        os.kill(launcher, signal.SIGTERM)
        raise SystemExit(f"kill.py: no output for {LONGEST_WAIT} s")
    code = os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1])
    if code or not killed or "All train the same weights" not in seen:
        sys.stdout.write(seen)
        raise SystemExit(f"kill.py: exit code {code}; not the job that is to be shown")
    return events, time.monotonic() - start


def lines(events):
    """Returns lines of output: the time of each, and its characters with their style."""
    made, line, style = [], [], ""
    for seconds, text in events:
        for token in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]", text):
            if token.startswith("\x1b"):
                if token.endswith("m"):
                    numbers = [int(number or 0) for number in token[2:-1].split(";")]
                    style = "" if 0 in numbers else style
                    style = next((f"c{number}" for number in numbers if number in COLOURS), style)
            elif token == "\n":
                made.append((seconds, line))
                line = []
            elif token != "\r":
                line.append((token, style))
    return made


def shortened(made):
    """Replaces each list of a worker's last calls by a line."""
    kept, calls = [], {}
    for seconds, line in made:
        text = "".join(character for character, _ in line)
        if not re.match(r"worker \d │   step \d+, call", text):
            kept.append((seconds, line))
            continue
        head = line[: text.index("│") + 1]
        if text[:8] not in calls:
            calls[text[:8]] = [0, len(kept), seconds, head]
            kept.append(None)
        calls[text[:8]][0] += 1
    for count, index, seconds, head in calls.values():
        kept[index] = (seconds, head + [(character, "c90") for character in f"   … {count} calls, left out here"])
    return kept


def rows(made):
    """Wraps lines as the terminal does, and joins characters of one style."""
    wrapped = []
    for seconds, line in made:
        for start in range(0, max(len(line), 1), COLUMNS):
            row = []
            for character, style in line[start : start + COLUMNS]:
                if row and row[-1][1] == style:
                    row[-1] = (row[-1][0] + character, style)
                else:
                    row.append((character, style))
            wrapped.append((seconds, row))
    return wrapped


def keyframes(name, steps, seconds):
    """Returns an animation that jumps from one offset to the next. `steps` are times and offsets."""
    frames, before = [], None
    for at, offset in steps:
        if offset != before:
            frames.append(f"{100 * at / seconds:.2f}%{{transform:translateY({offset}px)}}")
        before = offset
    return f"@keyframes {name}{{{''.join(frames)}}}"


def draw(made, seconds):
    """Returns the SVG. Rows that are not printed yet are covered; the screen scrolls when it is full."""
    total = SLOWER * seconds + PAUSE
    printed = {}  # the number of rows at each time
    for number, (at, _) in enumerate(made, 1):
        printed[round(SLOWER * at, 2)] = number
    printed = sorted(printed.items())
    cover = [(at, count * HEIGHT) for at, count in printed]
    scroll = [(at, -max(0, count - ROWS) * HEIGHT) for at, count in printed]
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    lines = []
    for number, (_, row) in enumerate(made):
        length = sum(len(text) for text, _ in row)
        spans = "".join(f'<tspan class="{style}">{escape(text)}</tspan>' if style else escape(text) for text, style in row)
        y = number * HEIGHT + SIZE
        if length:
            lines.append(f'<text x="{MARGIN - 1}" y="{y}" textLength="{length * WIDTH}" lengthAdjust="spacingAndGlyphs">{spans}</text>')
    dark = "".join(f".c{number}{{fill:{colours[0]}}}" for number, colours in COLOURS.items())
    light = "".join(f".c{number}{{fill:{colours[1]}}}" for number, colours in COLOURS.items())
    style = f"""
text{{font:{SIZE}px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono","DejaVu Sans Mono",monospace;white-space:pre;fill:#e6edf3}}
.page{{fill:#0d1117;stroke:#30363d}}.cover{{fill:#0d1117}}{dark}
@media(prefers-color-scheme:light){{text{{fill:#1f2328}}.page{{fill:#f6f8fa;stroke:#d1d9e0}}.cover{{fill:#f6f8fa}}{light}}}
.film{{transform:translateY({scroll[-1][1]}px);animation:scroll {total:.2f}s step-end infinite}}
.cover{{transform:translateY({cover[-1][1]}px);animation:cover {total:.2f}s step-end infinite}}
{keyframes("scroll", scroll, total)}
{keyframes("cover", cover, total)}
@media(prefers-reduced-motion:reduce){{.film,.cover{{animation:none}}}}
"""
    title = "Three workers train. Worker 1 is killed and restarted, the training continues, and its weights are those of one process."
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" xml:space="preserve">
<title>{title}</title>
<style>{style}</style>
<rect class="page" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>
<svg x="1" y="{MARGIN}" width="{width - 2}" height="{height - 2 * MARGIN}"><g class="film">
{chr(10).join(lines)}
<rect class="cover" width="{width}" height="{len(made) * HEIGHT}"/>
</g></svg>
</svg>
"""


def main():
    os.chdir(ROOT)
    events, seconds = record(build())
    drawn = draw(rows(shortened(lines(events))), seconds)
    path = ROOT / "docs/images/kill.svg"
    path.write_text(drawn)
    print(f"{path.relative_to(ROOT)}: {seconds:.1f} s, {len(drawn)} bytes")


if __name__ == "__main__":
    main()
