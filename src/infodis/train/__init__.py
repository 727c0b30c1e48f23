"""Training: a configuration file, a loop that survives being killed, one process or many."""

from infodis.train.config import Config as Config
from infodis.train.config import read_config as read_config
from infodis.train.loop import TrainingError as TrainingError
from infodis.train.loop import train as train
from infodis.train.records import Progress as Progress
from infodis.train.records import Validation as Validation
