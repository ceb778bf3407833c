"""A stand-in for tensorboardX."""  # noqa: N999 - its name

from .writer import SummaryWriter as SummaryWriter
