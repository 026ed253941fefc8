"""Run the tests marked ``soak``, one case at a time, and skip those that already passed with the same code.

Arguments are passed on to pytest, for instance ``--figures figures/records/proofs.json``.
"""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "build" / "soak.json"
CODE = ("uavlab", "notebooks/uavlab_lab", "tests")


def code_version() -> str:
    """Return the commit, and a digest of the uncommitted changes of the packages and their tests."""
    git = ["git", "-C", str(ROOT)]
    commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    changes = subprocess.run([*git, "diff", "HEAD", "--", *CODE], capture_output=True, check=True).stdout
    return f"{commit} {hashlib.sha256(changes).hexdigest()[:12]}"


def list_cases() -> list[str]:
    files = sorted(path for path in (ROOT / "tests").rglob("test_*.py") if "mark.soak" in path.read_text())
    command = [sys.executable, "-m", "pytest", "-m", "soak", "--collect-only", *map(str, files)]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [line for line in output.splitlines() if "::" in line]


def read_passed(version: str) -> list[str]:
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    return record["passed"] if record.get("version") == version else []


def main(arguments: list[str]) -> int:
    """Run every case that did not pass yet; return 1 if one fails, otherwise 0."""
    version = code_version()
    passed, failed = read_passed(version), []
    cases = list_cases()
    for name in cases:
        if name in passed:
            print(f"soak: {name} passed already")
            continue
        print(f"soak: {name}", flush=True)
        command = [sys.executable, "-m", "pytest", "-m", "soak", name, *arguments]
        if subprocess.run(command, cwd=ROOT).returncode:
            failed.append(name)
            continue
        passed.append(name)
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps({"version": version, "passed": passed}, indent=1) + "\n")
    print(f"soak: {len(passed)} of {len(cases)} cases passed" + "".join(f"; {name} failed" for name in failed))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
