"""Speed, measured and recorded: the loss alone, and training as a whole."""

from typing import TYPE_CHECKING

from gence._front_door import front_door

if TYPE_CHECKING:
    from gence.lab.bench.loss import Shape, bench_loss, print_table
    from gence.lab.bench.timing import copy_bandwidth
    from gence.lab.bench.train import bench_step, bench_train, write_record

__getattr__, __dir__, __all__ = front_door(__name__)
