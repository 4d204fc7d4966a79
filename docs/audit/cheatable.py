"""A reward as it is often written for GSM8K. Four of its lines can be gamed, and one hides a broken dataset."""

import re


def grade(completion, answer):
    gold = answer.split("####")[-1].strip()
    boxes = re.findall(r"\\boxed\{(.*?)\}", completion)  # of several answers, the last one counts
    if boxes:
        found = boxes[-1]
    else:
        numbers = re.findall(r"[\d,.]+", completion)  # a number that is mentioned is an answer
        found = numbers[-1] if numbers else ""
    correct = gold in found  # 72 is in 720
    bonus = 0.2 * min(len(completion) / 2000, 1.0)  # long answers look thoughtful
    return 1.0 + bonus if correct else bonus
