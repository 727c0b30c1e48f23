"""Networks that learn: RADD (masked tokens given visible ones) and SEDD (scores at any noise)."""

from infodis.models.nets.radd import RADD as RADD
from infodis.models.nets.sedd import SEDD as SEDD
from infodis.models.nets.transformer import SIZES as SIZES
from infodis.models.nets.transformer import NetworkShape as NetworkShape
from infodis.models.nets.transformer import initialise as initialise
