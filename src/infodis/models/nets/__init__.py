"""Networks that learn: RADD (masked tokens given visible ones), SEDD (scores at any noise) and its relatives."""

from infodis.models.nets.block_network import BlockNetwork as BlockNetwork
from infodis.models.nets.mean import MeanNetwork as MeanNetwork
from infodis.models.nets.mean import TimeInput as TimeInput
from infodis.models.nets.radd import RADD as RADD
from infodis.models.nets.sedd import SEDD as SEDD
from infodis.models.nets.transformer import SIZES as SIZES
from infodis.models.nets.transformer import NetworkShape as NetworkShape
from infodis.models.nets.transformer import initialise as initialise
