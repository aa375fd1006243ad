"""What the script can do with tools: each skill knows its questions, the call to make, and how to phrase the result."""

from examples.demo_model.skills.arithmetic import ARITHMETIC
from examples.demo_model.skills.clock import CLOCK
from examples.demo_model.skills.demo_tools import DEMO_TOOLS

SKILLS = (CLOCK, ARITHMETIC, *DEMO_TOOLS)
