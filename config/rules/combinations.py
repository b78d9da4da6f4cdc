"""All rules that span sections of meadow.toml, in the order in which they are applied."""

from __future__ import annotations

from ..schema.rules import Rule, check_rules
from ..schema.settings import Settings
from ..sections.model import Config
from . import cohorts, differential_privacy, rounds, secure_aggregation, strategy

__all__ = ["RULES", "check_config"]

RULES: tuple[Rule[Config], ...] = (
    *cohorts.RULES,
    *strategy.RULES,
    *rounds.RULES,
    *strategy.ROBUST_RULES,
    *secure_aggregation.RULES,
    *differential_privacy.RULES,
)
"""Later ones may presume that earlier ones are kept: that an algorithm can be built, for example."""


def check_config(config: Config, given: Settings, where: str) -> None:
    """Refuse what sections exclude of each other, naming where it was said.

    Raises:
        ConfigError: a rule is broken.
    """
    check_rules(RULES, strategy.with_stand_in(config), given, where)
