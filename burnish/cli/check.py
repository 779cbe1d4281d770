"""``burnish check KIND ID``: the contract checks that our own tests run, for a component of anybody's."""

from dataclasses import dataclass

from burnish.cli.listing import Kind


@dataclass(frozen=True)
class Options:
    """Run the shipped contract checks on one component; an id or the dotted path of your own module."""

    kind: Kind
    """Kind of component."""
    name: str
    """Id from ``burnish list``, or a module path such as my_package.my_env."""
