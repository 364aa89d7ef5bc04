"""Puts the configurations, which the repository keeps at its top, into the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigurations(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._configurations().items():
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        found = super().get_outputs(include_bytecode)
        return found + [str(target) for target in self._configurations().values()]

    def _configurations(self) -> dict[Path, Path]:
        folder = Path(self.build_lib) / "implicit_rnn" / "configs"
        return {path: folder / path.name for path in sorted(Path("configs").glob("*.toml"))}


setup(cmdclass={"build_py": BuildWithConfigurations})
