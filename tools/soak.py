"""Run the tests marked ``soak``, one file at a time, and skip the files that already passed with the same code.

Arguments are passed on to pytest, for instance ``--figures figures/records/proofs.json``.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS = 5  # pytest's exit code for a file without such tests
RECORD = ROOT / "build" / "soak.json"


def code_version() -> str:
    """Return the commit, and a digest of the uncommitted changes of the package and its tests."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    changes = subprocess.run([*git, "diff", "HEAD", "--", "uavlab", "tests"], capture_output=True, check=True).stdout
    return f"{commit} {hashlib.sha256(changes).hexdigest()[:12]}"


def read_passed(version: str) -> list[str]:
    """Return the files that already passed with this version of the code."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record["passed"] if record.get("version") == version else []


def main(arguments: list[str]) -> int:
    """Run every file that did not pass yet; return 1 if one fails, otherwise 0."""
    version = code_version()
    passed, failed = read_passed(version), []
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.soak" in path.read_text())
    for name in [str(path.relative_to(ROOT)) for path in files]:
        if name in passed:
            print(f"soak: {name} passed already")
            continue
        print(f"soak: {name}", flush=True)
        command = [sys.executable, "-m", "pytest", "-m", "soak", name, *arguments]
        if subprocess.run(command, cwd=ROOT).returncode not in (0, NO_TESTS):
            failed.append(name)
            continue
        passed.append(name)
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps({"version": version, "passed": passed}, indent=1) + "\n")
    print(f"soak: {len(passed)} of {len(files)} files passed" + "".join(f"; {name} failed" for name in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
