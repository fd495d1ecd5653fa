"""scripts/check-docs finds each kind of wrong name, and is silent about right ones."""
import os
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(__file__), "..", "..", "scripts", "check-docs")
PROGRAM = """#!/bin/sh
case "$1" in
  --help) echo 'verify  --version' ;;
  verify) echo '--json  print one document' ;;
  *) exit 2 ;;
esac
"""
FILES = {
    "Makefile": "all test: x\n\ttrue\nCC := gcc\n",
    "CMakePresets.json": '{"configurePresets": [{"name": "release"}, {"name": "x", "hidden": true}]}',
    "CMakeLists.txt": "option(MHLA_CUDA)\n",
    ".gitignore": "/out/\n",
    "src/mhla/mhla.h": "",
    "scripts/setup": "#!/bin/sh\n# --all\n",
    "docs/more.md": "# More\n",
}


class CheckDocs(unittest.TestCase):
    def check(self, text):
        with tempfile.TemporaryDirectory() as root:
            for name, content in {**FILES, "README.md": text, "mhla": PROGRAM}.items():
                path = os.path.join(root, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w") as file:
                    file.write(content)
            program = os.path.join(root, "mhla")
            os.chmod(program, 0o755)
            done = subprocess.run([sys.executable, SCRIPT, "--root", root, "--program", program],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 1 if done.stdout else 0, done.stderr)
            return done.stdout

    def assert_fine(self, text):
        self.assertEqual(self.check(text), "")

    def assert_problem(self, text, message):
        self.assertIn(message, self.check(text))

    def test_right_names_pass(self):
        self.assert_fine("# T\n`src/mhla/mhla.h` `mhla/mhla.h` `mhla.h` `docs/` `src/*/mhla.h` "
                         "`make test` `make test JOBS=2` `mhla verify --json` `mhla --version` "
                         "`MHLA_CUDA` `-DMHLA_CUDA=ON` `scripts/setup --all` `out/picture.png` "
                         "`cmake --preset release` [more](docs/more.md) [top](#t) `a / b` `f16`\n"
                         "```sh\nA=1 make test && ./mhla verify --json  # yes\n```\n"
                         "```cpp\n#include <mhla/mhla.h>\n```\n")

    def test_what_is_switched_off_is_not_looked_at(self):
        self.assert_fine("<!-- check-docs: off -->\n`src/gone.cpp`\n<!-- check-docs: on -->\n")

    def test_missing_file_is_found(self):
        self.assert_problem("x\n`src/mhla/gone.h`", "README.md:2: no file or folder 'src/mhla/gone.h'")
        self.assert_problem("`gone.cpp`", "no file or folder 'gone.cpp'")

    def test_broken_link_is_found(self):
        self.assert_problem("[a](docs/gone.md)", "broken link to 'docs/gone.md'")
        self.assert_problem("[a](#gone)", "no heading '#gone'")

    def test_missing_make_target_is_found(self):
        self.assert_problem("`make gone`", "the Makefile has no target 'gone'")
        self.assert_problem("```sh\ntrue && make CC\n```", "no target 'CC'")

    def test_missing_preset_is_found(self):
        self.assert_problem("`cmake --preset x`", "no preset 'x'")

    def test_missing_subcommand_and_flag_are_found(self):
        self.assert_problem("`mhla gone --json`", "mhla has no subcommand 'gone'")
        self.assert_problem("`mhla verify --jso`", "mhla verify has no flag --jso")

    def test_missing_option_is_found(self):
        self.assert_problem("`MHLA_GONE`", "nothing in the repository reads MHLA_GONE")
        self.assert_problem("```sh\ncmake -DMHLA_GONE=ON .\n```", "reads MHLA_GONE")

    def test_wrong_script_and_its_flag_are_found(self):
        self.assert_problem("`scripts/gone`", "no script 'scripts/gone'")
        self.assert_problem("`scripts/setup --none`", "scripts/setup does not know --none")

    def test_wrong_include_is_found(self):
        self.assert_problem("```cpp\n#include <mhla/gone.h>\n```", "'src/mhla/gone.h'")


if __name__ == "__main__":
    unittest.main()
