# The public names, and where they live: the one list of them. `__init__.py` reads it, and so do type checkers.
from fedasmu.algorithms.base import Aggregate as Aggregate
from fedasmu.algorithms.base import Aggregator as Aggregator
from fedasmu.algorithms.base import Algorithm as Algorithm
from fedasmu.algorithms.base import Federation as Federation
from fedasmu.algorithms.base import Learner as Learner
from fedasmu.algorithms.base import Pace as Pace
from fedasmu.data.federated import FederatedData as FederatedData
from fedasmu.errors import UserError as UserError
from fedasmu.experiment import Experiment as Experiment
from fedasmu.network.device import Device as Device
from fedasmu.protocol import Fetch as Fetch
from fedasmu.protocol import Memory as Memory
from fedasmu.protocol import Model as Model
from fedasmu.protocol import Poll as Poll
from fedasmu.protocol import Probe as Probe
from fedasmu.protocol import Probed as Probed
from fedasmu.protocol import Report as Report
from fedasmu.protocol import Session as Session
from fedasmu.protocol import Task as Task
from fedasmu.protocol import Train as Train
from fedasmu.protocol import Trained as Trained
from fedasmu.protocol import Upload as Upload
from fedasmu.protocol import Workload as Workload
from fedasmu.report.writing import write_report as write_report
from fedasmu.run.result import Result as Result
from fedasmu.run.result import load_runs as load_runs
from fedasmu.schedule import Periodic as Periodic
from fedasmu.schedule import Rounds as Rounds
from fedasmu.study.comparison import Comparison as Comparison
from fedasmu.study.comparison import compare as compare
from fedasmu.study.sweeping import Sweep as Sweep
from fedasmu.study.sweeping import sweep as sweep

__all__: list[str]
__version__: str
