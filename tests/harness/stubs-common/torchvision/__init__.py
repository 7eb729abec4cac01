"""Names only: lets transformers' and vLLM's image processors be imported without torchvision."""
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.28.0"


class _Names(type):

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"


def _getattr(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def unusable(self, *a, **k):
        raise NotImplementedError(f"torchvision stand-in: {name}")

    return _Names(name, (), {"__init__": unusable})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):

    def find_spec(self, fullname, path=None, target=None):
        if fullname.startswith(__name__ + "."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _getattr
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Finder())
__getattr__ = _getattr
