"""`posttrain init`: five answers become a project folder that runs as it is, with the user's own data to be put in."""

from posttrain.lab.init.example import EXAMPLES, make_example
from posttrain.lab.init.project import Project, make_project
from posttrain.lab.init.questions import QUESTIONS, Answers, Question

__all__ = ["EXAMPLES", "QUESTIONS", "Answers", "Project", "Question", "make_example", "make_project"]
