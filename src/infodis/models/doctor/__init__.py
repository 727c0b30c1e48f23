"""`infodis doctor`: is a model wired as it should be? Examples to judge by, and checks with a verdict each."""

from infodis.models.doctor.checks import doctor as doctor
from infodis.models.doctor.checks import examine as examine
from infodis.models.doctor.examples import ModelUnderTest as ModelUnderTest
from infodis.models.doctor.examples import with_examples as with_examples
from infodis.models.doctor.results import CheckResult as CheckResult
from infodis.models.doctor.results import CheckResults as CheckResults
