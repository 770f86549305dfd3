"""The trials of a sandbox day, in the order in which they run."""

from tests.aws_day.trial import Trial
from tests.aws_day.trials.attachments import Attachments
from tests.aws_day.trials.broken_refresh import BrokenRefresh
from tests.aws_day.trials.destroy import Destroy
from tests.aws_day.trials.express import Express
from tests.aws_day.trials.io2_fencing import Reservations
from tests.aws_day.trials.spot import SpotInterruption
from tests.aws_day.trials.stuck_volume import StuckVolume

TRIALS: tuple[Trial, ...] = (
    Destroy(),
    Reservations(),
    Attachments(),
    StuckVolume(),
    Express(),
    SpotInterruption(),
    BrokenRefresh(),
)
