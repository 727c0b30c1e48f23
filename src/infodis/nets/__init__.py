"""Networks that learn: RADD (masked tokens given visible ones) and SEDD (scores at any noise)."""

from infodis.nets.radd import RADD as RADD
from infodis.nets.sedd import SEDD as SEDD
from infodis.nets.transformer import SIZES as SIZES
from infodis.nets.transformer import Shape as Shape
from infodis.nets.transformer import initialise as initialise
