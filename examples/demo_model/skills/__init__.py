"""What the script can do with tools: for each skill when it is meant, what to call, and how to tell the result."""

from examples.demo_model.skills.arithmetic import ARITHMETIC
from examples.demo_model.skills.clock import CLOCK
from examples.demo_model.skills.demo_tools import DEMO_TOOLS

SKILLS = (CLOCK, ARITHMETIC, *DEMO_TOOLS)
