"""A discrete-event simulator that runs the policies of `placement`, `pools` and `scheduling` without machines."""

from dsec.sim.arrivals import Arrivals as Arrivals
from dsec.sim.distributions import Distribution as Distribution
from dsec.sim.distributions import constant as constant
from dsec.sim.distributions import exponential as exponential
from dsec.sim.figures import Figure as Figure
from dsec.sim.levels import LevelsScenario as LevelsScenario
from dsec.sim.result import LevelFigure as LevelFigure
from dsec.sim.result import Result as Result
from dsec.sim.rounds import RoundsScenario as RoundsScenario
from dsec.sim.running import run as run
