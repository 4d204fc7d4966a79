"""`posttrain init`: turn five answers into a project folder that runs immediately. Users then put in their own data."""

from posttrain.lab.init.example import EXAMPLES, make_example
from posttrain.lab.init.project import Project, make_project
from posttrain.lab.init.questions import QUESTIONS, Answers, Question

__all__ = ["EXAMPLES", "QUESTIONS", "Answers", "Project", "Question", "make_example", "make_project"]
